"""Layers that each take what the one before returns, in the loop that an author writes.

    layers = [ConvBlock(in_channels, c1)]
    channels = c1
    for out_channels, stride in ((c1, 1), (c2, 2), (c2, 1)):
        layers.append(ConvBlock(channels, out_channels, stride))
        channels = out_channels
    self.features = nn.Sequential(*layers)

    dims = [in_channels, *widths]
    self.stages = nn.Sequential(*[ConvBlock(a, b) for a, b in zip(dims, dims[1:])])

Goes in: the classes of a file. Comes out: the same classes; a container is filled so where that takes fewer lines. One
that goes through all widths of a table takes a table of any length. The modules are made in the same order.

`written_short` comes after that. It names the widths of a table, `c1, c2, c3 = widths`, where the network's constructor
reads most of them more than once. A loop over the table needs its places, which stay then.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase

from onnxgen.code.alike import (
    MAX_PERIOD,
    SEQUENTIAL,
    Lists,
    entry,
    filled,
    has_arguments,
    height,
    items_of,
    repeats,
    written_once,
)
from onnxgen.code.class_tree import ClassTree, length
from onnxgen.code.printer import GLANCE, INDENT, LINE_LENGTH, target
from onnxgen.code.quote import call, quote, rewrite, walk
from onnxgen.code.torch_api import SIGNATURES, dotted, function_of
from onnxgen.common.names import UNUSED

LAYERS, DIMS, DEPTH = "layers", "dims", "depth"
LEAST_ITEMS = 4  # items that a loop makes
DEEP = 1.5  # items of a row, if a row has a depth
MAX_ROW = 3  # numbers in which the turns may differ, beside the widths
WIDTH = re.compile("channels|features|dim|width")  # the name of one
TAKEN = "in_"  # begins the names of what a layer takes
WALKED = {"in_channels": "channels", "in_features": "dim"}  # what the next layer takes, if an argument has its name

Column = tuple[str, ...]  # what one place of a group is in each turn
NONE: Column = ()


def chained(classes: Sequence[ClassTree], reserved: frozenset[str]) -> list[ClassTree]:
    """Return the classes, whose containers are filled in loops where that is shorter.

    Args:
        classes: those of a file.
        reserved: names that no variable may have.
    """
    known = SIGNATURES | {tree.name: tuple(p.name for p in tree.parameters) for tree in classes}
    defaults = {tree.name: {p.name: p.default_tree for p in tree.parameters if p.default} for tree in classes}
    return [_Chains(tree, known, reserved, defaults).looped() for tree in classes]


@dataclass
class _Run:
    """Groups of items of one outline; their places in the list, and what they are called with in each turn."""

    start: int
    end: int
    group: list[ast.expr]
    leaves: list[list[tuple[ast.expr, str]]]

    def __post_init__(self) -> None:
        self.columns: list[Column] = [
            tuple(ast.unparse(own[i][0]) for own in self.leaves) for i in range(len(self.leaves[0]))
        ]
        varying = list(dict.fromkeys(column for column in self.columns if len({*column}) > 1))
        widths = [column for column in varying if WIDTH.search(self.name(column))]
        results = [column for column in widths if not self.name(column).startswith(TAKEN)]
        pairs = ((a, b) for a in widths for b in results if a != b and a[1:] == b[:-1])
        self.before, self.after = next(pairs, (NONE, NONE))
        self.rest = [column for column in varying if column not in (self.before, self.after)]

    @property
    def count(self) -> int:
        """How many items the groups have."""
        return len(self.group) * len(self.leaves)

    def is_cut(self, others: list[ast.expr]) -> bool:
        """True if other items of a list belong to the run: but for one layer that begins or ends a list of groups."""
        kinds = [dotted(one.func) for one in others if isinstance(one, ast.Call) and has_arguments(one)]
        own = {dotted(one.func) for one in self.group if isinstance(one, ast.Call)}
        return any(kinds.count(kind) > (len(self.group) > 1) for kind in own)

    def tree(self, column: Column, turn: int) -> ast.expr:
        return self.leaves[turn][self.columns.index(column)][0]

    def name(self, column: Column) -> str:
        return self.leaves[0][self.columns.index(column)][1]

    def stages(self, once: Column) -> list[list[int]]:
        """Return the turns that have equal numbers, but for what the first alone has of a column, such as a stride."""
        stages: list[list[int]] = []
        for i in range(len(self.leaves)):
            same = all(column[i] == column[i - 1] for column in (self.after, *self.rest) if column != once)
            if stages and same and (not once or once[i] == _common(once)):
                stages[-1].append(i)
            else:
                stages.append([i])
        return stages


class _Chains(Lists):
    """Fills the containers that one class makes. `defaults`: of the arguments of the file's classes."""

    def __init__(
        self,
        tree: ClassTree,
        known: Mapping[str, tuple[str, ...]],
        reserved: frozenset[str],
        defaults: Mapping[str, Mapping[str, ast.expr | None]],
    ) -> None:
        super().__init__(tree, known, reserved)
        self.defaults = defaults
        self.opened: dict[str, int] = {}  # the tables that may have any length, with the one that they have

    def looped(self) -> ClassTree:
        for at, statement in reversed([*enumerate(self.tree.setup)]):
            items = items_of(statement.value) if isinstance(statement, ast.Assign) else None
            for run in sorted(self._runs(items or []), key=lambda run: (-run.count, len(run.group))):
                self.opened = {}
                loop = self._way(self.tree.setup[at], items or [], run)
                if loop and _are_fewer(loop, statement):
                    setup = [*self.tree.setup[:at], *loop, *self.tree.setup[at + 1 :]]
                    self.tree = replace(self.tree, setup=[self._with_last(part) for part in setup])
                    break
        return self.tree

    def _runs(self, items: Sequence[ast.expr]) -> Iterator[_Run]:
        """Yield the runs of a list; one has all or nothing of what `*[layer for _ in range(3)]` makes."""
        wholes = [_counted(item) for item in items]
        begins = {sum(map(len, wholes[:i])): i for i in range(len(wholes) + 1)}
        items = self._full([item for whole in wholes for item in whole])
        outlines = [*map(self.outline, items)]
        for period in range(1, min(MAX_PERIOD, len(items) // 2) + 1):
            for start in range(len(items) - 2 * period + 1):
                if not isinstance(items[start], ast.Call) or not has_arguments(items[start]):
                    continue  # a group does not begin with the activation of the layer before it
                end = start + period * repeats(outlines, start, period)
                if end - start > period and begins.keys() >= {start, end}:
                    groups = [items[i : i + period] for i in range(start, end, period)]
                    leaves = [[leaf for item in group for leaf in self.leaves(item)] for group in groups]
                    yield _Run(begins[start], begins[end], groups[0], leaves)

    def _full(self, items: Sequence[ast.expr]) -> list[ast.expr]:
        """Return the items with the keywords that any item of their class is given."""
        keywords_of_class = {
            (dotted(item.func), k.arg) for item in items if isinstance(item, ast.Call) for k in item.keywords
        }

        def full(item: ast.expr) -> ast.expr:
            defaults = self.defaults.get(dotted(item.func), {}) if isinstance(item, ast.Call) else {}
            if not isinstance(item, ast.Call) or not defaults:
                return item
            own = {keyword.arg: keyword.value for keyword in item.keywords}
            keywords = [(name, own.get(name, value)) for name, value in defaults.items()]
            wanted = [
                ast.keyword(n, value) for n, value in keywords if (dotted(item.func), n) in keywords_of_class and value
            ]
            return ast.Call(item.func, item.args, wanted)

        return [full(item) for item in items]

    def _way(self, statement: ast.stmt, items: list[ast.expr], run: _Run) -> list[ast.stmt]:
        """Return the statements that may stand for one that fills a container; [] if the turns differ in too much."""
        begin, behind = items[: run.start], items[run.end :]
        is_many = run.count >= LEAST_ITEMS
        if run.is_cut(begin) or run.is_cut(behind):
            return []
        if not {DIMS, LAYERS}.isdisjoint(self.taken):
            return []
        if run.before and not run.rest:
            return self._over_sizes(statement, begin, behind, run, is_many)
        if not is_many or (run.rest and not run.before) or len(run.rest) > MAX_ROW:
            return []
        if run.rest:
            return self._over_rows(statement, begin, behind, run)
        loop = ast.For(target([UNUSED]), call("range", len(run.leaves)), self._appended(run, {}), [])
        return [_list_of(begin), loop, _filled(statement, behind)] if len(run.group) > 1 else []

    def _over_sizes(
        self, statement: ast.stmt, begin: list[ast.expr], behind: list[ast.expr], run: _Run, is_many: bool
    ) -> list[ast.stmt]:
        """A run that goes through sizes: all of a table, perhaps behind another size, or others if they are many."""
        dims = self._dims(statement, run, is_many)
        if dims is None:
            return []
        first = [] if isinstance(dims, ast.Name) else [_assigned(DIMS, dims)]
        source = quote("zip(dims, dims[1:])", dims=quote(DIMS) if first else dims)
        names = dict(zip((run.before, run.after), (letter for letter in ascii_lowercase if letter not in self.taken)))
        variables = target([*names.values()])
        if len(run.group) > 1:
            loop = ast.For(variables, source, self._appended(run, names), [])
            return [*first, _list_of(begin), loop, _filled(statement, behind)]
        (item,) = self._turn(run, names)
        row = ast.ListComp(item, [ast.comprehension(variables, source, [], 0)])
        return [*first, _filled(statement, [*begin, ast.Starred(row, ast.Load()), *behind], [])]

    def _dims(self, statement: ast.stmt, run: _Run, is_many: bool) -> ast.expr | None:
        """Return the sizes that a run goes through: a table, or a list; None if that is not worth it."""
        trees = [run.tree(run.before, 0), *(run.tree(run.after, i) for i in range(len(run.leaves)))]
        sizes = [*map(ast.unparse, trees)]
        dims: ast.expr | None = None
        is_repeated = len({*zip(run.before, run.after)}) < len(run.leaves)  # equal items are in a loop anyway
        # `Block(c1, c2)` reads as well as a list of entries
        has_entries = any(entry(node) is not None for tree in trees for node in walk(tree))
        if is_many and not is_repeated and not (len(run.group) == 1 and has_entries):
            dims = ast.List(trees, ast.Load())
        for table, count in self._tables():
            whole = [f"{table}[{i}]" for i in range(count)]
            if whole in (sizes, sizes[1:]) and self._is_free(table, count, statement):
                self.opened[table] = count
                dims = quote(table) if sizes == whole else quote("[n, *dims]", n=trees[0], dims=quote(table))
        return dims

    def _over_rows(
        self, statement: ast.stmt, begin: list[ast.expr], behind: list[ast.expr], run: _Run
    ) -> list[ast.stmt]:
        """All items of a class that also differ in other numbers: a row has these, and how many items it makes."""
        names = self._names_of(run)
        others = {function_of(item) for item in (*begin, *behind)}
        if names is None or len(run.group) > 1 or function_of(run.group[0]) in others:
            return []
        once, stages = min(((column, run.stages(column)) for column in (NONE, *run.rest)), key=lambda one: len(one[1]))
        is_deep = DEEP * len(stages) <= len(run.leaves) and {DEPTH, "i"}.isdisjoint({*self.taken, *names.values()})
        if not is_deep:
            once, stages = NONE, [[i] for i in range(len(run.leaves))]
        rows: list[ast.expr] = []
        for turns in stages:
            width, *rest = (run.tree(column, turns[0]) for column in (run.after, *run.rest))
            rows.append(ast.Tuple([width, *[ast.Constant(len(turns))] * is_deep, *rest], ast.Load()))
        walked = _assigned(names[run.before], ast.Name(names[run.after], ast.Load()))
        body: list[ast.stmt] = [*self._appended(run, names, once), walked]
        if is_deep:
            body = [ast.For(target(["i" if once else UNUSED]), call("range", ast.Name(DEPTH, ast.Load())), body, [])]
        row = target([names[run.after], *[DEPTH] * is_deep, *(names[column] for column in run.rest)])
        first = _assigned(names[run.before], run.tree(run.before, 0))
        loop = ast.For(row, ast.Tuple(rows, ast.Load()), body, [])
        return [_list_of(begin), first, loop, _filled(statement, behind)]

    def _with_last(self, statement: ast.stmt) -> ast.stmt:
        """Return a statement with `widths[-1]` for the last entry of a table that may have any length."""

        def change(node: ast.AST) -> ast.expr | None:
            table = dotted(node.value) if isinstance(node, ast.Subscript) else ""
            return quote(f"{table}[-1]") if table and entry(node) == self.opened.get(table, 0) - 1 else None

        return rewrite(statement, change)  # type: ignore[no-any-return]

    def _tables(self) -> Iterator[tuple[str, int]]:
        """Yield the arguments that are tables of widths, with how many they are."""
        for parameter in self.tree.parameters:
            if isinstance(table := parameter.default_tree, ast.Tuple):
                yield parameter.name, len(table.elts)

    def _is_free(self, table: str, count: int, statement: ast.stmt) -> bool:
        """True if a table may have any length.

        The class reads nothing but its first and its last entry beside a statement, which makes an `nn.Sequential` that
        is always called as a whole.
        """
        nodes = [node for part in self.tree.setup if part is not statement for node in walk(part)]
        read = [entry(node) for node in nodes if isinstance(node, ast.Subscript) and dotted(node.value) == table]
        if not {*read} <= {0, count - 1} or len(read) < sum(isinstance(n, ast.Name) and n.id == table for n in nodes):
            return False
        assert isinstance(statement, ast.Assign)
        is_row = function_of(statement.value) == SEQUENTIAL
        return is_row and self._is_called(dotted(statement.targets[0])) and not self.tree.ties

    def _is_called(self, name: str) -> bool:
        """True if a layer is always called as a whole."""
        inside = [node for part in (*self.tree.body, *self.tree.own) for node in walk(part)]
        places = sum(isinstance(node, ast.Attribute) and dotted(node) == name for node in inside)
        return sum(function_of(node) == name for node in inside) == places

    def _names_of(self, run: _Run) -> dict[Column, str] | None:
        """Return the names of the variables of a loop over rows; None if a width has none."""
        own, after = run.name(run.before), run.name(run.after)
        own = own if own not in self.taken else WALKED.get(own, "")
        if not own or not after or own == after or not {own, after}.isdisjoint(self.taken):
            return None
        names = {run.before: own, run.after: after}
        letters = (letter for letter in ascii_lowercase if letter not in self.taken)
        for column in run.rest:
            is_free = run.name(column) and run.name(column) not in {*self.taken, *names.values()}
            names[column] = run.name(column) if is_free else next(letters)
        return names

    def _turn(self, run: _Run, names: Mapping[Column, str], once: Column = NONE) -> list[ast.expr]:
        """Return the items of a turn. `once`: what the first of several alone has of its row."""
        at = iter(run.columns)

        def named(tree: ast.expr, _: str) -> ast.expr:
            column = next(at)
            if column not in names:
                return tree
            name = ast.Name(names[column], ast.Load())
            common = run.tree(column, once.index(_common(once))) if column == once else None
            return name if common is None else quote("name if i == 0 else common", name=name, common=common)

        return [self._short(self.rebuilt(item, "", named)) for item in run.group]

    def _short(self, item: ast.expr) -> ast.expr:
        """Return an item without the keywords whose values are the defaults."""
        if not isinstance(item, ast.Call):
            return item
        defaults = {name: ast.dump(tree) for name, tree in self.defaults.get(dotted(item.func), {}).items() if tree}
        keywords = [keyword for keyword in item.keywords if ast.dump(keyword.value) != defaults.get(keyword.arg or "")]
        return ast.Call(item.func, item.args, keywords)

    def _appended(self, run: _Run, names: Mapping[Column, str], once: Column = NONE) -> list[ast.stmt]:
        layers = ast.Name(LAYERS, ast.Load())
        return [ast.Expr(quote("layers.append(x)", layers=layers, x=item)) for item in self._turn(run, names, once)]


def _common(column: Column) -> str:
    return Counter(column).most_common(1)[0][0]


def _assigned(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _list_of(items: list[ast.expr]) -> ast.stmt:
    return _assigned(LAYERS, ast.List(items, ast.Load()))


def _filled(statement: ast.stmt, items: list[ast.expr], before: Sequence[str] = (LAYERS,)) -> ast.stmt:
    """Return a statement that makes a container of the items of lists and of others."""
    assert isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
    lists = [ast.Starred(ast.Name(name, ast.Load()), ast.Load()) for name in before]
    return ast.Assign(statement.targets, filled(statement.value, [*lists, *items]))


def _counted(item: ast.expr) -> list[ast.expr]:
    """Return the items that `*[layer for _ in range(3)]` makes, or the item alone."""
    comprehension = item.value if isinstance(item, ast.Starred) else None
    if not isinstance(comprehension, ast.ListComp) or len(comprehension.generators) > 1:
        return [item]
    turns = comprehension.generators[0].iter
    count = turns.args[0] if isinstance(turns, ast.Call) and dotted(turns.func) == "range" else None
    is_number = isinstance(count, ast.Constant) and isinstance(comprehension.elt, ast.Call)
    return [comprehension.elt] * count.value if is_number and len(turns.args) == 1 else [item]  # type: ignore


def _are_fewer(statements: list[ast.stmt], statement: ast.stmt) -> bool:
    """True if statements take fewer lines than another one, as they are read at a glance or as the file has them."""
    return any(sum(_lines(one, room) for one in statements) < _lines(statement, room) for room in (GLANCE, LINE_LENGTH))


def _lines(statement: ast.stmt, room: int, column: int = 2 * len(INDENT)) -> int:
    """Return how many lines a statement takes, as black breaks lines of `room`."""
    if isinstance(statement, ast.For):
        head = len(f"for {ast.unparse(statement.target)} in ")
        inner = sum(_lines(one, room, column + len(INDENT)) for one in statement.body)
        return height(statement.iter, column, head, room) + inner
    before = len(f"{ast.unparse(statement.targets[0])} = ") if isinstance(statement, ast.Assign) else 0
    return height(statement.value, column, before, room)  # type: ignore[attr-defined]


TABLE = "widths"
LEAST_ENTRIES = 3  # entries of a table that is worth a line
OFTEN = 2  # times that an entry is read, on average


def written_short(classes: Sequence[ClassTree], reserved: frozenset[str]) -> list[ClassTree]:
    """Return the classes with lists written once, and with names of widths in the network if that is no longer.

    Args:
        classes: those of a file, the network last.
        reserved: names that no variable may have.
    """
    once = written_once(chained(classes, reserved), reserved)
    apart = _taken_apart(classes[-1], reserved)
    if apart is None or not all(entry(node) is not None for node in _of_table(once[-1])):
        return once
    short = written_once(chained([*classes[:-1], apart], reserved), reserved)
    return short if length(short[-1].source) <= length(once[-1].source) else once


def _taken_apart(tree: ClassTree, reserved: frozenset[str]) -> ClassTree | None:
    """Return a class that takes a table apart; None if that is not worth a line."""
    default = next((p.default for p in tree.parameters if p.name == TABLE and p.default), "()")
    names = [f"c{i + 1}" for i in range(len(ast.literal_eval(default)))]
    uses = Counter(map(entry, _of_table(tree)))
    if len(names) < LEAST_ENTRIES or sum(uses.values()) < OFTEN * len(names) or tree.items:
        return None
    taken = {dotted(node) for part in tree.setup for node in walk(part)}
    if not {*names}.isdisjoint((*taken, *(parameter.name for parameter in tree.parameters), *reserved)):
        return None

    def named(node: ast.AST) -> ast.expr | None:
        place = entry(node) if _is_of_table(node) else None
        return None if place is None else ast.Name(names[place], ast.Load())

    apart = ast.Assign([target([n if i in uses else UNUSED for i, n in enumerate(names)])], quote(TABLE))
    return replace(tree, setup=[apart, *(rewrite(part, named) for part in tree.setup)])


def _of_table(tree: ClassTree) -> list[ast.AST]:
    return [node for part in tree.setup for node in walk(part) if _is_of_table(node)]


def _is_of_table(tree: ast.AST) -> bool:
    return isinstance(tree, ast.Subscript) and isinstance(tree.value, ast.Name) and tree.value.id == TABLE
