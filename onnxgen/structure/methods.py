"""Methods of the network's class: repeated stretches of statements, and parts of a long `forward`.

    x = F.relu(self.conv1(a))                    def encode(self, x):
    x = self.fc(x.flatten(1))                        x = F.relu(self.conv1(x))
    y = F.relu(self.conv1(b))                        return self.fc(x.flatten(1))
    y = self.fc(y.flatten(1))
                                                 x, y = self.encode(a), self.encode(b)

`extract`: goes in the body of the root, with its loops, comes out the body with calls, and the methods. Stretches are
found by the texts of their statements without operands. They are alike if each operand is made by the same statement of
the stretch, or is an argument. Each search has a budget, so the time stays linear.

`divide`: a part of a long `forward` that hands on little becomes a method. Goes in: the body of the root with its
loops, and what share of it may stay. A part is a run of statements, of the body or of a loop. It is a good one if it
has many statements, and few values go in and come out, such as the encoder before a decoder's loop, or a cell in that
loop.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from onnxgen.code.module_def import Assign, Input, Loop, ModuleDef, Statement, annotation, expressions, flattened, used
from onnxgen.code.quote import Ref, put, refs, rewrite, walk
from onnxgen.common.names import MODULE_ATTRIBUTES
from onnxgen.lowering.roles import seen_through
from onnxgen.shapes.info import Info
from onnxgen.structure.clues import made_by
from onnxgen.structure.layout import SELF
from onnxgen.structure.loops import text_of
from onnxgen.structure.order import grouped
from onnxgen.structure.scopes import SEVERAL, Method, Scope, callee, needs, wired
from onnxgen.structure.stretches import common, numbered

LEAST_STATEMENTS = 3  # of a method
MAX_STATEMENTS = 400
MAX_ARGUMENTS, MAX_RESULTS = 4, 3
MAX_METHODS = 6
MAX_TRIES = 8  # stretches that are tried in a body
LEAST_GAIN = (3.0, 3.0, 0.5, -1.0)  # lines, about, by the number of layers: three layers are a part with a name
STATEMENTS_A_LINE = 2.0


@needs(SEVERAL)
def extract(scope: Scope, module: ModuleDef) -> None:
    """Give the root methods for the stretches that its body, or the body of one of its loops, has several times."""
    loops = loops_of(scope.body)
    inner = [Scope(scope.path, body=loop.body, outputs=[Ref(name) for name in loop.targets]) for loop in loops]
    for body in (scope, *inner):
        while len(scope.methods) < MAX_METHODS and _Search(body, scope, module).run():
            pass
    for body, loop in zip(inner, loops):
        loop.body = body.body


def loops_of(block: Sequence[Statement]) -> list[Loop]:
    """Return the loops of a block, each before those in it."""
    return [statement for statement in flattened(block) if isinstance(statement, Loop)]


@dataclass
class _Stretch:
    """One place where the statements of a method stand: their indices in the body, and what they compute (`Wired`)."""

    rows: list[int]
    lines: list[str]
    given: list[str]
    made: list[str]


class _Search:
    """Looks for one method in a body."""

    def __init__(self, body: Scope, root: Scope, module: ModuleDef) -> None:
        self.body, self.root, self.module = body, root, module
        self.uses = body.uses()
        tokens = numbered([text_of(statement, i) for i, statement in enumerate(body.body)])
        skipped = common(body.body, tokens, self.uses)
        self.rows = [i for i in range(len(tokens)) if i not in skipped]
        self.tokens = [tokens[i] for i in self.rows]

    def run(self) -> bool:
        """Make the method that saves most. Returns False if there is none."""
        candidates = sorted((-(len(starts) - 1) * length, length, starts) for starts, length in self._repeats())
        return any(self._make(starts, length) for _, length, starts in candidates[:MAX_TRIES])

    def _repeats(self) -> Iterator[tuple[list[int], int]]:
        """Yield stretches that stand in several places: where they begin, and how long they are."""
        ends = range(LEAST_STATEMENTS, len(self.tokens) + 1)
        at = grouped((tuple(self.tokens[end - LEAST_STATEMENTS : end]), end - LEAST_STATEMENTS) for end in ends)
        seen: set[int] = set()
        for starts in at.values():
            apart = _apart(starts, LEAST_STATEMENTS)
            if len(apart) < 2 or apart[0] in seen:
                continue
            length = LEAST_STATEMENTS
            room = min(b - a for a, b in zip(apart, apart[1:]))
            while length < min(room, MAX_STATEMENTS) and apart[-1] + length < len(self.tokens):
                if len({self.tokens[i + length] for i in apart}) > 1:
                    break
                length += 1
            seen.update(range(apart[0], apart[0] + length - LEAST_STATEMENTS + 1))
            yield apart, length

    def _make(self, starts: list[int], length: int) -> bool:
        """Make a method of the longest part of the stretches that can be one."""
        for first, size in _spans(length):
            stretches = [self._stretch(start + first, size) for start in starts]
            if any(stretch is None for stretch in stretches):
                continue
            alike = [stretch for stretch in stretches if stretch is not None]
            results = self._alike(alike)
            if results is not None and self._gain(alike) >= 0:
                self._write(alike, results)
                return True
        return False

    def _gain(self, stretches: list[_Stretch]) -> float:
        """Return about how many lines a method saves, less those that it must save."""
        calls, rows = len(stretches), stretches[0].rows
        layers = sum(callee(node) is not None for row in rows for node in walk(self._statement(row).value))
        saved = (calls - 1) * len(rows) / STATEMENTS_A_LINE - 2 - 0.5 * calls
        return saved - LEAST_GAIN[min(layers, 3)]

    def _stretch(self, start: int, size: int) -> _Stretch | None:
        """Return a stretch; None if a statement between its own needs what it makes."""
        rows = self.rows[start : start + size]
        stretch = _Stretch(rows, *wired(map(self._statement, rows)))
        mine, known = set(rows), set(stretch.made)
        for row in range(rows[0], rows[-1]):
            if row not in mine and not known.isdisjoint(used(self.body.body[row])):
                return None
        return stretch

    def _alike(self, stretches: list[_Stretch]) -> list[int] | None:
        """Return the indices of the results that are used outside; None if the stretches differ or need too much."""
        first, *others = stretches
        if any(other.lines != first.lines for other in others) or not 0 < len(first.given) <= MAX_ARGUMENTS:
            return None
        if len({*map(self._kinds, stretches)}) > 1 or all(other.given == first.given for other in others):
            return None
        results: set[int] = set()
        for stretch in stretches:
            inside = Counter(n for row in stretch.rows for n in refs(self._statement(row).value))
            results |= {i for i, name in enumerate(stretch.made) if self.uses[name] > inside[name]}
        return sorted(results) if 0 < len(results) <= MAX_RESULTS else None

    def _kinds(self, stretch: _Stretch) -> tuple[object, ...]:
        infos = (self.module.infos.get(name, Info()) for name in stretch.given)
        return tuple((info.kind, info.dtype) for info in infos)

    def _statement(self, row: int) -> Assign:
        statement = self.body.body[row]
        assert isinstance(statement, Assign)
        return statement

    def _write(self, stretches: list[_Stretch], results: list[int]) -> None:
        first, infos = stretches[0], self.module.infos
        name = self._name(first, stretches)
        own = {value: f"{name}.{value}" for value in (*first.given, *first.made)}
        for value, mine in own.items():
            infos[mine] = infos.get(value, Info())
            if value in self.module.roles:
                self.module.roles[mine] = self.module.roles[value]
        inner = Scope(self.root.path, is_method=True)
        inner.inputs = [Input(own[value], annotation(infos[own[value]])) for value in first.given]
        inner.outputs = [Ref(own[first.made[i]]) for i in results]
        for row in first.rows:
            statement = self._statement(row)
            tree = rewrite(statement.value, put(own))
            targets = tuple(own[target] for target in statement.targets)
            nodes = tuple(node for s in stretches for node in self.body.body[s.rows[first.rows.index(row)]].nodes)
            inner.body.append(Assign(targets, tree, statement.scope, nodes, statement.form))
        alike = [dict(zip(own.values(), (*stretch.given, *stretch.made))) for stretch in stretches]
        self.root.methods.append(Method(name, inner, alike))
        self._call(name, stretches, results)

    def _call(self, name: str, stretches: list[_Stretch], results: list[int]) -> None:
        calls: dict[int, Assign] = {}
        for stretch in stretches:
            targets = [stretch.made[i] for i in results]
            calls[stretch.rows[-1]] = _call_of(name, stretch.given, targets, self.root)
        gone = {row for stretch in stretches for row in stretch.rows} - calls.keys()
        body = self.body.body
        self.body.body = [calls.get(i, statement) for i, statement in enumerate(body) if i not in gone]

    def _name(self, first: _Stretch, stretches: list[_Stretch]) -> str:
        """Return a name by what the method is given and whether it has layers."""
        layers = any(callee(node) is not None for row in first.rows for node in walk(self._statement(row).value))
        inputs = {argument.value for argument in self.root.inputs}
        own = zip(*(column for column in zip(*(s.given for s in stretches)) if len(set(column)) > 1))
        begins = all(inputs.intersection(arguments) for arguments in own)
        steps = [self._statement(row).value for row in first.rows]
        wanted = "step" if not begins else "encode"
        if not layers:
            wanted = "rearrange" if all(map(_is_view, steps)) else "transform"
        return method_name(self.root, self.module, wanted, steps)


def method_name(root: Scope, module: ModuleDef, wanted: str, steps: Sequence[ast.expr]) -> str:
    """Return the name. If it is taken, a word is added that says what the last of the steps makes, or a number."""
    taken = {member.path[0] for member in root.members if member.path} | MODULE_ATTRIBUTES
    taken |= {method.name for method in root.methods} | module.reserved
    origins = [made_by(step) for step in reversed(steps)]
    words = (re.sub(r"_?\d+$", "", m.layer or m.result or m.plain or m.vague) for m in origins)
    extended = (f"{wanted}_{word}" for word in words if word)
    names = (wanted, *extended, *(f"{wanted}_{n}" for n in range(2, len(taken) + 3)))
    return next(name for name in names if name not in taken)


def _call_of(method: str, arguments: list[str], targets: list[str], root: Scope) -> Assign:
    function = ast.Attribute(SELF, method, ast.Load())
    return Assign(tuple(targets), ast.Call(function, [*map(Ref, arguments)], []), root.path)


def _is_view(tree: ast.AST) -> bool:
    """True for a view of a value, perhaps with another sign."""
    while isinstance(tree := seen_through(tree), ast.UnaryOp):
        tree = tree.operand
    return isinstance(tree, Ref)


def _apart(starts: list[int], length: int) -> list[int]:
    kept: list[int] = []
    for start in starts:
        if not kept or start >= kept[-1] + length:
            kept.append(start)
    return kept


def _spans(length: int) -> Iterator[tuple[int, int]]:
    """Yield parts of a stretch, longest first: without its last and first statements, up to a third of them."""
    for cut in range(length // 3 + 1):
        for first in range(cut + 1):
            if length - cut >= LEAST_STATEMENTS:
                yield first, length - cut


LEAST = 10  # statements of a part
MOST_GIVEN, MOST_MADE = 6, 3
PRICE = 3  # statements that a value is worth which goes in or comes out
TRIED = 400  # statements of a body in which parts are looked for


@dataclass
class _Part:
    """Statements of a block, from `first` to before `end`, with the values that go in and come out."""

    block: list[Statement]
    first: int
    end: int
    size: int
    given: list[str]
    made: list[str]

    def worth(self, whole: int) -> int:
        """Return how good the part is: both it and the rest of `whole` statements should be short."""
        return min(self.size, whole - self.size) - PRICE * (len(self.given) + len(self.made))


@needs(SEVERAL)
def divide(scope: Scope, module: ModuleDef, share: float) -> None:
    """Make methods of parts of the root until this share of its statements is left, or no part is good."""
    most = int(share * _size(scope.body))
    before = len(scope.methods)
    while (left := _size(scope.body)) > most and len(scope.methods) < before + MAX_METHODS:
        lists = {s.targets[0] for s in flattened(scope.body) if isinstance(s, Assign) and isinstance(s.value, ast.List)}
        parts = (part for block, after in _blocks(scope) for part in _parts(block, after, most))
        apart = (part for part in parts if lists.isdisjoint((*part.given, *part.made)))
        best = max(apart, key=lambda part: part.worth(left), default=None)
        if best is None or best.worth(left) <= 0:
            return
        _write(best, scope, module)


def _blocks(scope: Scope) -> Iterator[tuple[list[Statement], list[str]]]:
    """Yield the body and those of its loops, each with the values that are used after it."""
    yield scope.body, [name for tree in scope.outputs for name in refs(tree)]
    for loop in loops_of(scope.body):
        yield loop.body, [*loop.targets, *(refs(loop.stop) if loop.stop is not None else ())]


def _size(block: Iterable[Statement]) -> int:
    return sum(1 for _ in flattened(block))


def _parts(block: list[Statement], after: Sequence[str], most: int) -> Iterator[_Part]:
    """Yield the parts of a block that can be methods. `after`: the values that are used after the block."""
    if len(block) > TRIED:
        return
    sizes = [_size([statement]) for statement in block]
    needs = [used(statement) for statement in block]
    last = _last_uses(needs) | dict.fromkeys(after, len(block))
    for first in range(len(block)):
        inputs: dict[str, None] = {}
        defined: dict[str, None] = {}
        size = 0
        for i in range(first, len(block)):
            size += sizes[i]
            inputs.update((name, None) for name in needs[i] if name not in defined)
            defined.update(dict.fromkeys(block[i].targets))
            if size > most or len(inputs) > MOST_GIVEN:
                break
            results = [name for name in defined if last.get(name, -1) > i]
            if inputs and LEAST <= size < sum(sizes) and 0 < len(results) <= MOST_MADE:
                yield _Part(block, first, i + 1, size, list(inputs), results)


def _last_uses(needs: list[list[str]]) -> dict[str, int]:
    """Return the last statement that needs each value, by what each statement needs."""
    return {name: i for i, names in enumerate(needs) for name in names}


def _write(part: _Part, root: Scope, module: ModuleDef) -> None:
    inside = part.block[part.first : part.end]
    layers = any(callee(node) for s in inside for tree in expressions(s) for node in walk(tree))
    begins = not {argument.value for argument in root.inputs}.isdisjoint(part.given)
    where = "step" if part.block is not root.body else "encode" if begins else "decode"
    steps = [s.value for s in flattened(inside) if isinstance(s, Assign)]
    name = method_name(root, module, where if layers else "transform", steps)
    method = Scope(root.path, body=inside, is_method=True)
    method.inputs = [Input(value, annotation(module.infos.get(value, Info()))) for value in part.given]
    method.outputs = [Ref(value) for value in part.made]
    root.methods.append(Method(name, method, [{v: v for v in (*part.given, *part.made)}]))
    part.block[part.first : part.end] = [_call_of(name, part.given, part.made, root)]
