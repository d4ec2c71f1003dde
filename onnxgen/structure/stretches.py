"""Loops over stretches of statements that repeat with other operands: the steps of a solver, unrolled by an exporter.

k = self.f(y + k * 0.1)                 for _ in range(5):
y = y + k                                   k = self.f(y + k * 0.1)
k = self.f(y + k * 0.1)                     y = y + k
...

Goes in: a scope whose submodules are called. Comes out: the scope with loops. A period is looked for in the texts of
the statements, without their operands and numbers. `stretch.py` proves that the turns are alike, and writes the loop.
Each search has a budget, so the time stays linear.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from onnxgen.code.module_def import Assign, Loop, ModuleDef, Statement, assigned, members_of, used
from onnxgen.code.quote import MemberRef, Ref, refs, rewrite, value_of, walk
from onnxgen.structure.literals import collected, differing, with_names
from onnxgen.structure.loops import ITEM, is_item, is_operand, listed, listed_name, text_of
from onnxgen.structure.order import depth_first
from onnxgen.structure.scopes import SEVERAL, Scope, callee, needs
from onnxgen.structure.stretch import Around, Stretch, is_progression
from onnxgen.structure.turns import is_activation

GRAMS = (1, 3, 8)  # lengths of the stretches by whose distances a period is found
MAX_PERIODS = 8  # distances that are tried in a body
MAX_TRIES = 12  # stretches that are tried in a body before another loop is looked for
MAX_ROTATIONS = 16  # statements that are tried as the first of a turn
MAX_LOOPS = 24  # in one body
MAX_PERIOD = 1000  # statements of a turn
MANY_SIZES = 4  # a loop of more turns goes over no sizes that somebody would have to count
MAX_NUMBERS = 4  # sequences of numbers that a loop goes over
FEW = 4  # turns that are enough to compare rotations
LEAST_GAIN = 2.0  # lines, about
MANY, LEAST_OF_MANY = 4, 1.0  # a loop of so many turns may gain less
STATEMENTS_A_LINE = 2.0
IN_LANES = 0.9  # what a stretch of statements is worth that do not follow each other
WITH_NUMBERS = 0.8  # what a stretch with other numbers in each turn is worth beside one that is the same
_NUMBER = re.compile("%=[^;]*;")


@needs(SEVERAL)
def roll(scope: Scope, module: ModuleDef, loops: Iterable[Loop] = ()) -> None:
    """Replace stretches of a body that repeat by loops, and then stretches within these loops, and within others.

    `loops`: loops of the body that structure has made.
    """
    texts: dict[int, str] = {}
    rolled = [*loops]
    for _ in range(MAX_LOOPS):
        loop = _next(scope, module, texts)
        if loop is None:
            break
        rolled.append(loop)
    for loop in rolled:
        inner = Scope(scope.path, members=scope.members, body=loop.body, outputs=[Ref(name) for name in loop.targets])
        inner.containers = scope.containers  # of the same module
        roll(inner, module)
        loop.body = inner.body


def _next(scope: Scope, module: ModuleDef, texts: dict[int, str]) -> Loop | None:
    """Make one loop: the one that saves most of those that can be made. Returns None if there is none."""
    if len(scope.body) < 2:
        return None
    uses = scope.uses()
    for i, statement in enumerate(scope.body):
        if id(statement) not in texts:
            texts[id(statement)] = text_of(statement, i)
    repeats = sorted(_weighed(scope, texts, uses), key=lambda r: (-r[0], r[1].period, r[1].start))[:MAX_TRIES]
    if not repeats:
        return None
    around = Around(scope, uses)
    loops = (_loop(around, module, rows[repeat.start : repeat.end], repeat.period) for _, repeat, rows in repeats)
    return next((loop for loop in loops if loop is not None), None)


def _weighed(
    scope: Scope, texts: dict[int, str], uses: Counter[str]
) -> Iterator[tuple[float, _Repeat, list[Statement]]]:
    """Yield the stretches that repeat, each with what it is worth and the statements in the order that it is in."""
    exact = numbered([texts[id(statement)] for statement in scope.body])
    skipped = common(scope.body, exact, uses)
    vague = numbered([_NUMBER.sub("#", texts[id(statement)]) for statement in scope.body])
    for worth, order in ((1.0, range(len(exact))), *((IN_LANES, order) for order in _lanes(scope))):
        rows = [i for i in order if i not in skipped]
        statements = [scope.body[i] for i in rows]
        for share, tokens in ((WITH_NUMBERS, vague), (1.0, exact)):
            for repeat in _repeats([tokens[i] for i in rows]):
                yield worth * share * repeat.saved, repeat, statements


def _lanes(scope: Scope) -> Iterator[list[int]]:
    """Yield other orders of the statements, in which all that an operand needs stands together.

    So the levels of a pyramid follow each other, of which a file computes one operator for all, and then the next. What
    several levels need is one of them, or comes before them.
    """
    maker = dict[str, int]()
    before: list[list[int]] = []
    for i, statement in enumerate(scope.body):
        before.append([maker[name] for name in used(statement) if name in maker])
        maker.update(dict.fromkeys(assigned(statement), i))
    returned = [maker[name] for output in scope.outputs for name in refs(output) if name in maker]
    users = Counter(i for needed in (*before, returned) for i in set(needed))
    for first in ((), [i for i in range(len(before)) if users[i] > 1]):
        order = depth_first(before, first)
        if order != sorted(order) and _calls_in_order(scope.body, order):
            yield order


def _calls_in_order(body: Sequence[Statement], order: Sequence[int]) -> bool:
    """True if an order leaves the calls of each module in theirs."""
    last: dict[int, int] = {}
    for i in order:
        for member in (one for one in members_of(body[i]) if one.kind == "module"):
            if last.setdefault(id(member), i) > i:
                return False
            last[id(member)] = i
    return True


def numbered(texts: Sequence[str]) -> list[int]:
    """Return a number for each text, equal for equal texts."""
    number: dict[str, int] = {}
    return [number.setdefault(text, len(number)) for text in texts]


def common(body: Sequence[Statement], tokens: Sequence[int], uses: Counter[str]) -> set[int]:
    """Return the statements that are like no others and whose results are used several times.

    Exporters compute equal values once. So the first turn may have a statement that the others lack.
    """
    count = Counter(tokens)
    indices: set[int] = set()
    for i, statement in enumerate(body):
        if isinstance(statement, Assign) and count[tokens[i]] == 1 and any(uses[t] > 1 for t in statement.targets):
            if all(callee(node) is None for node in walk(statement.value)):  # a layer's calls keep their order
                indices.add(i)
    return indices


@dataclass(frozen=True)
class _Repeat:
    """The statements from `start` to `end` repeat after a `period`. The last turn may be followed by part of one."""

    start: int
    end: int
    period: int

    @property
    def saved(self) -> int:
        return (self.end - self.start) // self.period * self.period - self.period


def _repeats(tokens: list[int]) -> Iterable[_Repeat]:
    for period in _periods(tokens):
        start = 0
        for i in range(len(tokens) - period + 1):
            if i < len(tokens) - period and tokens[i] == tokens[i + period]:
                continue
            if i - start >= period:
                yield _Repeat(start, i + period, period)
            start = i + 1


def _periods(tokens: list[int]) -> list[int]:
    """Return the distances at which equal statements, and equal stretches, most often follow each other."""
    distances: Counter[int] = Counter()
    for size in GRAMS:
        last: dict[tuple[int, ...], int] = {}
        for i in range(len(tokens) - size + 1):
            gram = tuple(tokens[i : i + size])
            if gram in last and i - last[gram] <= MAX_PERIOD:
                distances[i - last[gram]] += 1
            last[gram] = i
    return [distance for distance, _ in distances.most_common(MAX_PERIODS)]


def _loop(around: Around, module: ModuleDef, statements: list[Statement], period: int) -> Loop | None:
    """Replace statements that repeat by a loop, if the turns are alike from some statement on."""
    assigns = [statement for statement in statements if isinstance(statement, Assign)]
    plans: list[tuple[float, bool, int, int]] = []
    for first, turns in _ways(len(assigns), period):
        few = _stretch(around, module, assigns[first:], period, turns, FEW)
        if few is not None and few[1].is_regular:
            lines = few[1].cost - period * turns / STATEMENTS_A_LINE
            plans.append((lines, is_activation(assigns[first]), first, turns))
    scope = around.scope
    body = scope.body
    for *_, first, turns in sorted(plans):
        candidate = _stretch(around, module, assigns[first:], period, turns, turns)
        if candidate is None:
            continue
        changed, stretch = candidate
        gain = (turns - 1) * period / STATEMENTS_A_LINE - stretch.cost
        if stretch.is_regular and (stretch.goes_over_lists or gain >= _least(turns, bool(stretch.starts))):
            scope.body = [changed.get(id(statement), statement) for statement in body]
            if stretch.arrange():
                return next(s for s in stretch.write() if isinstance(s, Loop))
            scope.body = body
    return None


def _least(turns: int, carries: bool) -> float:
    """Return how many lines a loop must gain."""
    if not carries:  # one item for each turn, as in a list of scales
        return LEAST_GAIN if turns < 3 else 0
    return LEAST_GAIN if turns < MANY else LEAST_OF_MANY


def _ways(size: int, period: int) -> list[tuple[int, int]]:
    """Return the first statement and the number of turns, for each way to divide a stretch."""
    ways = []
    for first in range(min(2 * period, MAX_ROTATIONS)):
        turns = (size - first) // period
        if turns > 1:
            ways.append((first, turns))
        if turns > 2 and first < 2:
            ways.append((first, turns - 1))
    return ways


def _stretch(
    around: Around, module: ModuleDef, assigns: list[Assign], period: int, turns: int, most: int
) -> tuple[dict[int, Assign], Stretch] | None:
    """Return the turns (at most the first `most`) as a stretch, and its statements by the `id` of those they replace.

    None if a turn has other members than another, or if too many numbers differ.
    """
    count = min(most, turns)
    divided = [assigns[n * period : (n + 1) * period] for n in range(count)]
    naming = _Naming(count)
    if not all(naming.see(row) for row in zip(*divided)) or len(naming.kinds) > MAX_NUMBERS:
        return None
    changed: dict[int, Assign] = {}
    for statements, names in zip(divided, naming.named):
        changed |= {id(statement): with_names(statement, names) for statement in statements}
    renamed = [[changed[id(statement)] for statement in statements] for statements in divided]
    return changed, Stretch(around, renamed, module, naming.numbers, count < turns)


class _Naming:
    """Gives names to what differs from turn to turn and is no value: numbers, items of lists, a tensor of the module.

    Attributes:
        numbers: what has a name, by name.
        named: the names, by the `id` of an expression, for each turn.
        kinds: the sequences of numbers.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.numbers: dict[str, ast.expr] = {}
        self.named: list[dict[int, str]] = [{} for _ in range(count)]
        self.kinds: set[tuple[str, ...]] = set()

    def see(self, row: tuple[Assign, ...]) -> bool:
        """Name what differs between the same statements of all turns. Returns False if the turns cannot be alike."""
        for texts, column in differing(_without_items(statement.value) for statement in row):
            if self.count > MANY_SIZES and not is_progression(list(map(value_of, column))):
                return False
            self.kinds.add(texts)
            for turn, (text, tree) in enumerate(zip(texts, column)):
                self._name(turn, f"%number {text}", tree)
        for items in zip(*(_items(statement) for statement in row)):
            if any(item.member is not items[0].member for item in items):
                for turn, item in enumerate(items):
                    self._name(turn, f"{ITEM}{'.'.join(item.member.path)}", item)
        return all(self._see_operands(operands) for operands in zip(*(_operands(statement) for statement in row)))

    def _see_operands(self, operands: tuple[ast.expr, ...]) -> bool:
        """Name a tensor of the module that the first turn has where others have a value, and items of lists."""
        if len({*map(listed, operands)}) > 1:
            for turn, operand in enumerate(operands):
                if (item := listed(operand)) is not None:
                    self._name(turn, listed_name(item), operand)
        members = [node.member for node in operands if isinstance(node, MemberRef)]
        if not members or (len(members) == self.count and all(member is members[0] for member in members)):
            return True
        first = operands[0]
        if len(members) > 1 or not isinstance(first, MemberRef):
            return False
        self._name(0, f"%member {'.'.join(first.member.path)}", first)
        return True

    def _name(self, turn: int, name: str, tree: ast.expr) -> None:
        self.named[turn][id(tree)] = name
        self.numbers[name] = tree


def _operands(statement: Assign) -> list[ast.expr]:
    return collected(statement.value, lambda node: is_operand(node) or listed(node) is not None)


def _without_items(tree: ast.expr) -> ast.expr:
    """Return an expression without the indices of what it reads from lists."""
    return rewrite(tree, lambda node: ast.Name("item", ast.Load()) if listed(node) else None)


def _items(statement: Assign) -> list[MemberRef]:
    return [node for node in walk(statement.value) if isinstance(node, MemberRef) and is_item(node.member)]
