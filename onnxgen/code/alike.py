"""Lists of items that are alike, written once: what a constructor makes of items that differ in a few numbers.

nn.ModuleList([nn.Embedding(7, 4), nn.Embedding(12, 6), nn.Embedding(31, 16)])
nn.ModuleList([nn.Embedding(a, b) for a, b in ((7, 4), (12, 6), (31, 16))])

nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.ReLU())])

Goes in: the classes of a file. Comes out: the same classes; a list is written so where that takes fewer lines. The
modules are made in the same order.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import groupby, pairwise
from string import ascii_lowercase

from onnxgen.code.allowed import BUILTINS
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.printer import GLANCE, INDENT, target
from onnxgen.code.quote import call, quote, rewrite, walk
from onnxgen.code.torch_api import SIGNATURES, dotted

MIN_ITEMS = 3
MAX_COLUMNS = 3  # in which the items of a list may differ
MAX_PERIOD = 6
SEQUENTIAL = "nn.Sequential"
LAYER = "layer"  # the variable of an item
BEGIN = len(INDENT) * 2  # where a statement of a method begins

MUCH = 0.75  # of the lines
SHORT = 3  # lines of a list whose items share one
MANY = 5  # numbers that a range is easier to read than

Leaf = Callable[[ast.expr, str], ast.expr]
Whole = Callable[[list[ast.expr]], ast.expr]


def written_once(classes: Sequence[ClassTree], reserved: frozenset[str]) -> list[ClassTree]:
    """Return the classes with shorter lists. `reserved`: names that no variable may have."""
    known = SIGNATURES | {tree.name: tuple(p.name for p in tree.parameters) for tree in classes}
    return [Lists(tree, known, reserved).changed() for tree in classes]


class Lists:
    """Shortens the lists that one class makes. `taken`: names that no variable may have."""

    def __init__(self, tree: ClassTree, known: Mapping[str, tuple[str, ...]], reserved: Collection[str]) -> None:
        self.tree, self.known = tree, known
        names = (n.id for part in (*tree.setup, *tree.items) for n in walk(part) if isinstance(n, ast.Name))
        self.taken = {*reserved, *BUILTINS, *names, *(parameter.name for parameter in tree.parameters)}

    def changed(self) -> ClassTree:
        own = quote("super().__init__")
        items = self._items(self.tree.items, lambda layers: ast.Call(own, layers, []), BEGIN, 0)
        return replace(self.tree, setup=[self._statement(s, BEGIN) for s in self.tree.setup], items=items)

    def _statement(self, statement: ast.stmt, column: int) -> ast.stmt:
        shortened = copy(statement)
        if isinstance(shortened, ast.If):
            shortened.body = [self._statement(inner, column + len(INDENT)) for inner in shortened.body]
        elif isinstance(shortened, ast.Assign):
            shortened.value = self._value(shortened.value, column, len(ast.unparse(shortened.targets[0])) + len(" = "))
        return shortened

    def _value(self, tree: ast.expr, column: int, before: int = 0) -> ast.expr:
        """Shorten the list that a call of a container is given, and those of the containers in it."""
        items = items_of(tree)
        if items is None or not isinstance(tree, ast.Call):
            return tree
        return filled(tree, self._items(items, lambda layers: filled(tree, layers), column, before))

    def _items(self, items: list[ast.expr], whole: Whole, column: int, before: int) -> list[ast.expr]:
        """Return the items of a container, perhaps fewer of them. `whole` makes the container."""
        inner = column + len(INDENT)
        least = height(whole(items), column, before) if len(items) >= MIN_ITEMS else 0
        if least > SHORT:  # each item has lines of its own
            row = self._row(items) if len(set(map(self.outline, items))) == 1 else None
            if row is not None and height(whole([row]), column, before) < least:
                return [row]
            items = self._periods(self._rows(items, inner), inner)
        return [self._value(item, inner) for item in items]

    def _rows(self, items: list[ast.expr], column: int) -> list[ast.expr]:
        """Write items in a row that differ in a few numbers as one comprehension over these numbers."""
        shortened: list[ast.expr] = []
        for _, group in groupby(items, self.outline):
            alike = list(group)
            row = self._row(alike) if len(alike) >= MIN_ITEMS else None
            is_shorter = row is not None and height(row, column) < sum(height(item, column) for item in alike)
            shortened += [row] if row is not None and is_shorter else alike
        return shortened

    def _row(self, items: list[ast.expr]) -> ast.expr | None:
        """Return a comprehension for items of one outline; None if they differ in too much or in nothing."""
        if not isinstance(items[0], ast.Call):
            return None
        values = [[leaf for leaf, _ in self.leaves(item)] for item in items]
        if (indexed := self._indexed(items[0], values)) is not None:
            return indexed
        columns = [tuple(map(ast.unparse, column)) for column in zip(*values)]
        varying = list(dict.fromkeys(column for column in columns if len(set(column)) > 1))
        if not 0 < len(varying) <= MAX_COLUMNS:
            return None
        places = [columns.index(column) for column in varying]
        wanted = [name for _, name in self.leaves(items[0])]
        names = dict(zip(varying, self._names([wanted[place] for place in places])))
        at = iter(columns)

        def named(tree: ast.expr, _: str) -> ast.expr:
            column = next(at)
            return ast.Name(names[column], ast.Load()) if column in names else tree

        element = self.rebuilt(items[0], "", named)
        rows = [_tuple_of([own[place] for place in places]) for own in values]
        source = _progression(rows) or ast.Tuple(rows, ast.Load())
        return _starred(element, [ast.comprehension(target([*names.values()]), source, [], 0)])

    def _indexed(self, first: ast.expr, values: list[list[ast.expr]]) -> ast.expr | None:
        """Return `[layer(widths[i], widths[i + 1]) for i in range(3)]` for entries of a table that move on."""
        name = "i" if "i" not in self.taken else "index"
        varies = [len({*map(ast.dump, column)}) > 1 for column in zip(*values)]
        varying = [[leaf for leaf, other in zip(own, varies) if other] for own in values]
        begins = [_first_entry(own) for own in varying]
        steps = {b - a for a, b in pairwise(begins)}
        moved = {tuple(ast.dump(_moved(leaf, name, begin)) for leaf in own) for own, begin in zip(varying, begins)}
        if steps not in ({1}, {-1}) or len(moved) > 1:
            return None
        at = iter(varies)
        element = self.rebuilt(first, "", lambda leaf, _: _moved(leaf, name, begins[0]) if next(at) else leaf)
        turns = call("range", *([min(begins)] if min(begins) else []), max(begins) + 1)
        source = turns if steps == {1} else call("reversed", turns)
        return _starred(element, [ast.comprehension(ast.Name(name, ast.Store()), source, [], 0)])

    def _names(self, wanted: list[str]) -> list[str]:
        """Return names for variables: the argument's, if there is one variable or it is no size, or else a letter."""
        letters = (letter for letter in ascii_lowercase if letter not in self.taken)
        names: list[str] = []
        for name in wanted:
            is_plain = len(wanted) == 1 or not any(unit in name for unit in ("channels", "features", "embedding"))
            free = bool(name) and name not in self.taken and name not in names
            names.append(name if is_plain and free else next(letters))
        return names

    def outline(self, item: ast.expr) -> str:
        """Return a text that is equal for items that differ only in simple arguments of calls."""
        return ast.dump(self.rebuilt(item, "", lambda tree, name: ast.Constant(None)))

    def leaves(self, item: ast.expr) -> list[tuple[ast.expr, str]]:
        """Return the simple arguments of an item and of the calls in it, in order, each with its name."""
        arguments: list[tuple[ast.expr, str]] = []

        def see(tree: ast.expr, name: str) -> ast.expr:
            arguments.append((tree, name))
            return tree

        self.rebuilt(item, "", see)
        return arguments

    def rebuilt(self, tree: ast.expr, name: str, leaf: Leaf) -> ast.expr:
        """Copy an argument with what `leaf` returns for the simple arguments in it."""
        if _is_simple(tree):
            return leaf(tree, name)
        if isinstance(tree, ast.Starred):
            return ast.Starred(self.rebuilt(tree.value, name, leaf), ast.Load())
        if isinstance(tree, ast.List):
            return ast.List([self.rebuilt(item, "", leaf) for item in tree.elts], ast.Load())
        if isinstance(tree, ast.ListComp):
            loops = [
                ast.comprehension(loop.target, self.rebuilt(loop.iter, "", leaf), loop.ifs, loop.is_async)
                for loop in tree.generators
            ]
            return ast.ListComp(self.rebuilt(tree.elt, "", leaf), loops)
        if not isinstance(tree, ast.Call):
            return tree
        known = [*self.known.get(dotted(tree.func), ()), *[""] * len(tree.args)]
        args = [self.rebuilt(argument, name, leaf) for argument, name in zip(tree.args, known)]
        keywords = [ast.keyword(k.arg, self.rebuilt(k.value, k.arg or "", leaf)) for k in tree.keywords]
        return ast.Call(tree.func, args, keywords)

    def _periods(self, items: list[ast.expr], column: int) -> list[ast.expr]:
        """Write groups of items that follow each other again and again once, where that is much shorter."""
        texts = list(map(ast.unparse, items))
        shortened: list[ast.expr] = []
        i = 0
        while i < len(items):
            group, step, saved = items[i], 1, 0
            for period in range(2, MAX_PERIOD + 1):
                count = repeats(texts, i, period)
                after = i + period * count
                if count < 2 or (not has_arguments(items[i]) and texts[after : after + 1] == texts[i : i + 1]):
                    continue  # a group does not begin with the activation of the layer before it
                other = self._repeated(items[i : i + period], count)
                then = count * sum(height(item, column) for item in items[i : i + period])
                now = height(other, column)
                if now <= MUCH * then and then - now > saved:
                    group, step, saved = other, period * count, then - now
            shortened.append(group)
            i += step
        return shortened

    def _repeated(self, items: list[ast.expr], count: int) -> ast.expr:
        name = LAYER if LAYER not in self.taken else "item"
        again = ast.comprehension(ast.Name("_", ast.Store()), call("range", count), [], 0)
        each = ast.comprehension(ast.Name(name, ast.Store()), ast.Tuple(items, ast.Load()), [], 0)
        return _starred(ast.Name(name, ast.Load()), [again, each])


def items_of(tree: ast.expr) -> list[ast.expr] | None:
    """Return the items of a container that a call makes of them; None for other expressions."""
    name = dotted(tree.func) if isinstance(tree, ast.Call) else ""
    if not isinstance(tree, ast.Call) or name not in (SEQUENTIAL, "nn.ModuleList") or not tree.args:
        return None
    if name == SEQUENTIAL:
        return tree.args
    return tree.args[0].elts if isinstance(tree.args[0], ast.List) else None


def filled(container: ast.expr, items: list[ast.expr]) -> ast.expr:
    """Return the call of a container with other items."""
    assert isinstance(container, ast.Call)
    if dotted(container.func) == SEQUENTIAL:
        return ast.Call(container.func, items, [])
    only = items[0].value if len(items) == 1 and isinstance(items[0], ast.Starred) else None
    return ast.Call(container.func, [only if only is not None else ast.List(items, ast.Load())], [])


def _starred(element: ast.expr, loops: list[ast.comprehension]) -> ast.expr:
    return ast.Starred(ast.ListComp(element, loops), ast.Load())


def _tuple_of(items: list[ast.expr]) -> ast.expr:
    return items[0] if len(items) == 1 else ast.Tuple(items, ast.Load())


def _progression(values: list[ast.expr]) -> ast.expr | None:
    """Return `range(64, 257, 32)` for numbers that grow by the same step, if they are many."""
    numbers = [value.value for value in values if isinstance(value, ast.Constant) and type(value.value) is int]
    if len(numbers) < max(MANY, len(values)):
        return None
    first, second, *_, last = numbers
    step = second - first
    if step <= 0 or numbers != list(range(first, last + 1, step)):
        return None
    return call("range", first, last + 1, *[step] * (step > 1))


def repeats(texts: list[str], start: int, period: int) -> int:
    """Return how often a group of items that begins here follows itself, itself included."""
    end = start + period
    while end < len(texts) and texts[end] == texts[end - period]:
        end += 1
    return (end - start) // period


def has_arguments(item: ast.expr) -> bool:
    return not isinstance(item, ast.Call) or bool(item.args or item.keywords)


def entry(tree: ast.AST) -> int | None:
    """Return which entry of a table a tree is: 2 of `widths[2]`; None for other trees."""
    if not isinstance(tree, ast.Subscript) or not isinstance(tree.value, ast.Name):
        return None
    return tree.slice.value if isinstance(tree.slice, ast.Constant) and type(tree.slice.value) is int else None


def _first_entry(trees: list[ast.expr]) -> int:
    places = [entry(node) for tree in trees for node in ast.walk(tree)]
    return min((place for place in places if place is not None), default=0)


def _moved(tree: ast.expr, name: str, begin: int) -> ast.expr:
    """Return `widths[i + 1]` for `widths[3]`, if the turn begins at 2."""

    def change(node: ast.AST) -> ast.expr | None:
        if (place := entry(node)) is None or not isinstance(node, ast.Subscript):
            return None
        at: ast.expr = ast.Name(name, ast.Load())
        at = ast.BinOp(at, ast.Add(), ast.Constant(place - begin)) if place > begin else at
        return ast.Subscript(node.value, at, ast.Load())

    moved: ast.expr = change(tree) or rewrite(tree, change)
    return moved


def _is_simple(tree: ast.expr) -> bool:
    """True for numbers, names, entries of a table, and what is computed of them."""
    if isinstance(tree, ast.BinOp):
        return _is_simple(tree.left) and _is_simple(tree.right)
    if isinstance(tree, ast.UnaryOp):
        return _is_simple(tree.operand)
    if isinstance(tree, ast.Tuple):
        return all(map(_is_simple, tree.elts))
    return isinstance(tree, (ast.Constant, ast.Name)) or entry(tree) is not None


def height(tree: ast.expr, column: int, before: int = 0, room: int = GLANCE) -> int:
    """Return how many lines an item of a list takes, as black breaks it.

    Args:
        before: how many characters stand in front of it.
        room: how many a line has.
    """
    if column + before + len(ast.unparse(tree)) < room:
        return 1
    inner = column + len(INDENT)
    if isinstance(tree, ast.Starred):
        return height(tree.value, column, before + 1, room)
    if isinstance(tree, ast.ListComp):
        loops = [len(f"for {ast.unparse(loop.target)} in ") for loop in tree.generators]
        sources = sum(height(loop.iter, inner, length, room) for loop, length in zip(tree.generators, loops))
        return 2 + height(tree.elt, inner, room=room) + sources
    parts: list[ast.expr] = []
    if isinstance(tree, (ast.List, ast.Tuple)):
        parts = tree.elts
    elif isinstance(tree, ast.Call):
        parts = [*tree.args, *(k.value for k in tree.keywords)]
    if not parts:
        return 1
    line = sum(len(ast.unparse(part)) + 2 for part in parts)
    if inner + line <= room:
        return 3
    return 2 + sum(height(part, inner, room=room) for part in parts)
