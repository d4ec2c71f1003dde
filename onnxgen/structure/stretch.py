"""Loops beside those over a list of several items: a stretch of statements that repeats, and a list of one item.

Goes in: the statements of each turn, in which numbers that differ from turn to turn have names. Comes out: the loop
over a range, over these numbers, or over values that each turn has its own of.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from onnxgen.code.module_def import Assign, Member, ModuleDef, Statement, expressions, members_of
from onnxgen.code.quote import MemberRef, Ref, call, quote, refs, value_of, walk
from onnxgen.common.names import ModulePath, identifier, singular
from onnxgen.structure.literals import is_plain_number
from onnxgen.structure.loops import (
    ITEM,
    Result,
    Run,
    columns_of,
    is_row,
    listed,
    names_in,
    part_of,
    position,
    taken,
    text_of,
)
from onnxgen.structure.order import grouped
from onnxgen.structure.scopes import Scope
from onnxgen.structure.turns import Items

CHAINED = 3  # statements that become one expression
SHORT = 4  # a tuple of fewer numbers tells more than a range with a step
UNLISTED = ast.Constant(None)
PARTS = ("unbind", "chunk", "split")  # methods whose result can be looped over


@dataclass
class Around:
    """A scope, as its stretches need to know it.

    Attributes:
        uses: how often each value is used.
        lists: the lists that a value is an item of, by the value.
        parts: the statement that makes a value by dividing another, by the value.
    """

    scope: Scope
    uses: Counter[str]
    lists: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    parts: dict[str, Assign] = field(default_factory=dict)

    def __post_init__(self) -> None:
        trees = (tree for statement in self.scope.body for tree in expressions(statement))
        lists: list[ast.List | ast.Tuple] = [n for tree in trees for n in walk(tree) if isinstance(n, ast.List)]
        lists += [column for statement in self.scope.body for column in columns_of(statement)]
        self.lists = grouped((name, names) for names in map(names_in, lists) for name in dict.fromkeys(names))
        self.outputs = tuple(o.value if isinstance(o, Ref) else "" for o in self.scope.outputs)
        for statement in self.scope.body:
            if isinstance(statement, Assign) and _divides(statement):
                self.parts.update(dict.fromkeys(statement.targets, statement))

    @cached_property
    def ways(self) -> dict[str, set[tuple[str, int]]]:
        """How statements use a value, by the value: what they do, and which operand it is."""
        ways: dict[str, set[tuple[str, int]]] = {}
        for i, statement in enumerate(self.scope.body):
            for at, name in enumerate(taken(statement.value) if isinstance(statement, Assign) else ()):
                ways.setdefault(name, set()).add((text_of(statement, i), at))
        return ways

    @cached_property
    def calls(self) -> dict[ModulePath, set[str]]:
        """What statements do with a module, by its path."""
        calls: dict[ModulePath, set[str]] = {}
        for i, statement in enumerate(self.scope.body):
            for member in members_of(statement):
                calls.setdefault(member.path, set()).add(text_of(statement, i))
        return calls

    def has_all(self, names: tuple[str, ...]) -> bool:
        """True if values are items of a list, or results of the scope, all in a row."""
        lists = (*self.lists.get(names[0], ()), self.outputs)
        return any(position(way, items) is not None for way in (names, names[::-1]) for items in lists)

    def takes_alike(self, names: tuple[str, ...]) -> bool:
        """True if all these values are used in one way, as in a loop that will take them."""
        return bool(set.intersection(*(self.ways.get(name, set()) for name in names)))

    def holds_all(self, names: tuple[str, ...]) -> bool:
        """True if values are items of a list, all in a row, and are all used as often."""
        alike = len({self.uses[name] for name in names}) == 1
        return alike and any(position(names, items) is not None for items in self.lists.get(names[0], ()))

    def returns_or_holds_all(self, names: tuple[str, ...]) -> bool:
        """The same, or true if they are results of the scope, all in a row."""
        return self.holds_all(names) or position(names, self.outputs) is not None


class Stretch(Run):
    """The turns of a stretch.

    Attributes:
        is_part: there are more turns.
        dropped: the `id`s of statements that the loop replaces.
    """

    def __init__(
        self,
        around: Around,
        turns: list[list[Assign]],
        module: ModuleDef,
        numbers: Mapping[str, ast.expr],
        is_part: bool,
    ) -> None:
        self.around, self.numbers, self.is_part = around, numbers, is_part
        self.dropped: set[int] = set()
        super().__init__(around.scope, Items(None, [{}]), turns, around.uses, module)

    def _do_the_same(self) -> bool:
        return True

    def _is_worth(self, later: Counter[Result]) -> bool:
        last = len(self.turns) - 1
        users: dict[Result, set[int]] = {}
        for name in self.outside:
            turn, result = self.made[name]
            users.setdefault(result, set()).add(turn)
        self.left = sorted(r for r, turns in users.items() if r not in self.starts and turns == {last})
        self.kept = [result for result in self.kept if result not in self.left]
        if not self._takes_lists():
            return False
        if not self.starts:
            return bool(self.kept) and not self.left and self._collects_all(later)
        least = last if self.goes_over_lists else max(2, last)
        return all(later[r] >= least and self._will_be_taken(r) for r in self.kept)

    def _collects_all(self, later: Counter[Result]) -> bool:
        """True if what the turns make, of which none needs another, is one list for what follows."""
        if not self.goes_over_lists:
            return all(self.around.holds_all(self._names(result)) for result in self.kept)
        of_all = all(later[r] == len(self.turns) for r in self.kept) and len({at for at, _ in self.kept}) == 1
        is_many = len(self.turns) > 2 or all(map(self._will_be_taken, self.kept))
        return (of_all and is_many) or all(self.around.returns_or_holds_all(self._names(r)) for r in self.kept)

    def _will_be_taken(self, result: Result) -> bool:
        """True if the results of all turns, or those of all before the last and the start, are used in one way."""
        names = self._names(result)
        before = (self.starts[result], *names[:-1]) if result in self.starts else names
        return self.around.has_all(names) or self.around.takes_alike(names) or self.around.takes_alike(before)

    @property
    def goes_over_lists(self) -> bool:
        """True if the turns go over all items of lists, or all values but one that a loop has collected.

        Such a list is there for a loop, but one in a list for a turn.
        """
        lists = [self._items(names)[0] for names in self.own if names[0].startswith(ITEM)]
        return any(not path[-1].isdigit() for path in lists) or any(map(self._is_most, self.own))

    def _is_most(self, names: tuple[str, ...]) -> bool:
        part = self._listed(names)
        whole = next((node.value for node in walk(part) if isinstance(node, Ref)), "") if part is not None else ""
        return whole != "" and self.module.lengths[whole] <= len(names) + 1

    @property
    def cost(self) -> float:
        """About how many lines the loop has besides the statements of one turn."""
        if self._is_listed():
            return 0.3 + 0.3 * len(self.own)
        return 1 + 0.5 * len(self.starts) + 2 * len(self.kept) + 0.3 * len(self.own)

    def _is_listed(self) -> bool:
        """True if a turn is one short chain of layers and functions, whose result a list has: a comprehension."""
        turn = self.turns[0]
        chained = all(
            len(a.targets) == 1 and self.uses[a.targets[0]] == 1 and a.targets[0] in refs(b.value)
            for a, b in pairwise(turn)
        )
        return not self.starts and self.kept == [(len(turn) - 1, 0)] and len(turn) <= CHAINED and chained

    def _value(self, kind: str, role: str) -> str:
        value = f"{self.turns[0][0].targets[0]}%{kind}"
        if role:
            self.module.roles[value] = role
        return value

    def _role(self, value: str) -> str:
        if value.startswith(ITEM):
            return identifier(singular(self._items((value,))[0][-1]))
        number = self.numbers.get(value)
        if number is not None and (item := listed(number)) is not None:
            return singular(self.module.roles.get(item[0], ""))
        if number is not None and not isinstance(number, MemberRef):
            return self._of_number(value)
        return self.module.roles.get(value, "")

    def _of_number(self, value: str) -> str:
        """Return the name of a number: the keyword that takes it, `stride` for those that double, or a letter."""
        keywords = (node for s in self.turns[0] for node in walk(s.value) if isinstance(node, ast.keyword))
        taken = (k.arg for k in keywords for v in _each(k.value) if isinstance(v, Ref) and v.value == value)
        names = next(names for names in self.own if names[0] == value)
        numbers = [value_of(self.numbers[name]) for name in names]
        letter = "t" if isinstance(numbers[0], float) else "i"
        return next(taken, None) or ("stride" if _double(numbers) else letter)

    def _column(self, names: tuple[str, ...]) -> ast.expr:
        if names[0].startswith(ITEM):
            return self._list(names)
        if (part := self._listed(names)) is not None:
            return part
        if all(name in self.numbers and listed(self.numbers[name]) is None for name in names):
            trees = [self._before(name) for name in names]
            values = [value_of(tree) for tree in trees]
            is_short = len(values) < SHORT and values[1] - values[0] != 1
            return (None if is_short else _range(values)) or ast.Tuple(trees, ast.Load())
        return self._divided(names) or super()._column(names)

    def _divided(self, names: tuple[str, ...]) -> ast.expr | None:
        """Return what is divided into these values, or the rest of it; None if something else needs the parts."""
        statement = self.around.parts.get(names[0])
        at = None if statement is None else position(names, statement.targets)
        if statement is None or at is None or statement.targets[at:] != names:
            return None
        if any(self.uses[name] for name in statement.targets[:at]) or any(self.uses[name] != 1 for name in names):
            return None
        self.dropped.add(id(statement))
        return statement.value if not at else quote("x[n:]", x=statement.value, n=at)

    def _halves(self) -> dict[int, int]:
        numbers = {n: values for n, names in enumerate(self.own) if (values := self._integers(names))}
        halves = dict[int, int]()
        for n, values in numbers.items():
            whole = (m for m, others in numbers.items() if m not in halves and values == [v // 2 for v in others])
            if any(values) and (of := next(whole, n)) != n:
                halves[n] = of
        return halves

    def _integers(self, names: tuple[str, ...]) -> list[int]:
        """Return the integers that have these names; [] if one is something else."""
        trees = [self.numbers[name] for name in names if name in self.numbers]
        values = [value_of(tree) for tree in trees if is_plain_number(tree)]
        return values if len(values) == len(names) and all(type(value) is int for value in values) else []

    def _listed(self, names: tuple[str, ...]) -> ast.expr | None:
        """Return the list, or the part of it, whose items have these names; None if they are something else."""
        if self.numbers.keys().isdisjoint(names):  # a list of another module may hold them, too
            return None
        both = ((listed(self.numbers.get(n, UNLISTED)), self.module.items.get(n)) for n in names)
        places = [dict(item for item in items if item is not None) for items in both]
        for whole in places[0]:
            at = [place[whole] for place in places if whole in place]
            if len(at) == len(names) and is_row(at):
                return part_of(Ref(whole), at, self.module.lengths[whole])
        return None

    def write(self) -> list[Statement]:
        self.halves = self._halves()
        statements = super().write()
        self.scope.body = [statement for statement in self.scope.body if id(statement) not in self.dropped]
        return statements

    def _items(self, names: tuple[str, ...]) -> tuple[ModulePath, list[int]]:
        """Return the list whose items have these names, and their numbers."""
        paths = [tree.member.path for name in names if isinstance(tree := self.numbers[name], MemberRef)]
        return paths[0][:-1], [int(path[-1]) for path in paths]

    def _takes_lists(self) -> bool:
        """True if the items that the turns call are those of whole lists, or turns of a chain."""
        lists = [names for names in self.own if names[0].startswith(ITEM)]
        if not all(map(self._is_list, lists)):
            return False
        short = [] if self.is_part else [names for names in lists if self._is_short(names)]
        chained = len(short) < len(lists) or any(self._feeds(names, names) for names in short)
        return not short or (len(self.turns) > 2 and chained and all(map(self._feeds, short)))

    def _is_list(self, names: tuple[str, ...]) -> bool:
        """True for all items of a list, upwards or downwards, or all but one at an end."""
        path, numbers = self._items(names)
        below = self._below(path)
        is_most = below == {(*path, str(n)) for n in range(len(below))} and len(numbers) >= len(below) - 1
        return is_row(numbers) and (is_most or self.is_part)

    def _is_short(self, names: tuple[str, ...]) -> bool:
        """True if an item is left that is called as those of the turns are."""
        path, numbers = self._items(names)
        rest = self._below(path) - {(*path, str(n)) for n in numbers}
        alike = self.around.calls.get((*path, str(numbers[0])), set())
        return any(not alike.isdisjoint(self.around.calls.get(item, set())) for item in rest)

    def _feeds(self, names: tuple[str, ...], others: tuple[str, ...] = ()) -> bool:
        """True if the turns use what an item makes, to make what an item of `others` takes in the next turn."""
        derived = set[str]()
        for statement in (*self.turns[0], *self.turns[1]):
            takes = refs(statement.value)
            if not derived.isdisjoint(takes):
                if not others or others[1] in takes:
                    return True
                derived.update(statement.targets)
            elif names[0] in takes:
                derived.update(statement.targets)
        return False

    def _below(self, path: ModulePath) -> set[ModulePath]:
        return {m.path[: len(path) + 1] for m in self.scope.members if m.path[: len(path)] == path}

    def _list(self, names: tuple[str, ...]) -> ast.expr:
        path, numbers = self._items(names)
        whole = self.scope.containers.setdefault(path, Member(path, quote("nn.ModuleList"), "module"))
        return part_of(MemberRef(whole), numbers, len(self._below(path)))

    def _first(self, result: Result) -> tuple[str, ...]:
        names = (self.starts[result], *self._names(result)) if result in self.starts else ()
        lists = self.around.lists.get(names[1], ()) if names and self.uses[names[1]] > 0 else ()
        return names[:1] if names in lists or names[::-1] in lists else super()._first(result)


class OneTurn(Run):
    """A loop over a list of one item, where the same list of another module has several: both may be of one class.

    The statement that calls the item does what a turn of the other loop, `like`, does.
    """

    def __init__(
        self, scope: Scope, items: Items, statement: Assign, uses: Counter[str], module: ModuleDef, like: Run
    ) -> None:
        super().__init__(scope, items, [[statement]], uses, module)
        operands = refs(statement.value)
        self.is_regular = (
            like.kept == [(0, 0)] == [*like.starts]
            and len(like.turns[0]) == 1
            and not like.own
            and like.items.text(like.turns[-1][0]) == items.text(statement)
            and len(operands) == len(like.reads[0])
            and self._is_listed(statement.targets[0], like.beside)
        )
        if self.is_regular:
            self.reads, self.kept = like.reads, like.kept
            self.starts = {(0, 0): operands[like.reads[0].index((0, 0))]}

    def _is_listed(self, value: str, beside: int) -> bool:
        """True if a value is an item of a list with so many others."""
        trees = (node for tree in self.scope.expressions() for node in walk(tree))
        lists = [tree.elts for tree in trees if isinstance(tree, ast.List)]
        return any(len(e) - 1 == beside and any(isinstance(i, Ref) and i.value == value for i in e) for e in lists)


def _divides(statement: Assign) -> bool:
    """True for `a, b = x.chunk(2)`."""
    function = statement.value.func if isinstance(statement.value, ast.Call) else None
    has_parts = len(statement.targets) > 1 and not statement.form
    return has_parts and isinstance(function, ast.Attribute) and function.attr in PARTS


def _double(numbers: list[float]) -> bool:
    """True for the strides of a pyramid."""
    return len(numbers) > 2 and numbers[0] >= 4 and all(b == 2 * a for a, b in pairwise(numbers))


def _each(tree: ast.expr) -> list[ast.expr]:
    """Return the items of a tuple; an expression that is none is the only one."""
    return tree.elts if isinstance(tree, ast.Tuple) else [tree]


def is_progression(values: list[float]) -> bool:
    """True for integers in equal steps, for those that grow or shrink by one factor, and for other numbers."""
    if type(values[0]) is not int or _range(values) is not None:
        return True
    return 0 not in values and all(a * c == b * b for a, b, c in zip(values, values[1:], values[2:]))


def _range(values: list[float]) -> ast.expr | None:
    if any(type(value) is not int for value in values) or len(values) < 2:
        return None
    start, step = int(values[0]), int(values[1] - values[0])
    if step == 0 or values != [start + step * n for n in range(len(values))]:
        return None
    stop = start + step * len(values)
    bounds = (stop,) if (start, step) == (0, 1) else (start, stop) if step == 1 else (start, stop, step)
    return call("range", *bounds)
