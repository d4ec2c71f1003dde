"""Sizes in the text of the classes: where they are written, and how arguments take their place.

Goes in: the classes. Comes out: for every place of a number in the calls that make members, the number of the text that
reaches it (a `Spot`), perhaps through the arguments of several classes. The checker's own reader instantiates the
classes (`validate/text.py`). Here it also carries along where each number was written.

`write`: goes in classes with spots, and the arguments of the network. Come out classes without spots. A class below the
root takes the arguments that it or a class that it makes needs, and its callers pass them on.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from onnxgen.arguments.names import DEPTHS, HEADS, WIDTHS, Argument, Sums, total
from onnxgen.arguments.sizes import Place, Size, is_integer
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.quote import quote, rewrite, walk
from onnxgen.common.names import Namer
from onnxgen.structure.order import grouped
from onnxgen.structure.parameters import Parameter
from onnxgen.validate.expressions import UNDEFINED
from onnxgen.validate.flat import Specification
from onnxgen.validate.text import Text
from onnxgen.validate.values import LocalVariables, Node, Value

OUTER = ("in_", "dim", "channels")  # how the width is called that a block takes


class Spot(ast.Constant):
    """A number at one place of the text; no other place shares it."""


def spotted(tree: Any, in_call: bool = False) -> Any:
    """Return a copy of a tree in which the integers that calls are given are spots."""

    def change(node: ast.AST) -> ast.expr | None:
        if isinstance(node, ast.Call):
            args = [spotted(argument, True) for argument in node.args]
            keywords = [ast.keyword(k.arg, spotted(k.value, True)) for k in node.keywords]
            return ast.Call(spotted(node.func), args, keywords)
        if in_call and isinstance(node, (ast.Tuple, ast.List)):
            return type(node)([spotted(item, True) for item in node.elts], ast.Load())
        return Spot(node.value) if in_call and is_integer(node) else None

    return change(tree) or rewrite(tree, lambda node: None if node is tree else spotted(node))


class Written(int):
    """A number, and the spot that it comes from."""

    spot: Spot

    @classmethod
    def at(cls, spot: Spot, value: int) -> Written:
        written = cls(value)
        written.spot = spot
        return written

    def __rmul__(self, other: Any) -> Any:
        return Written.at(self.spot, other * int(self)) if type(other) is int else NotImplemented

    def __floordiv__(self, other: Any) -> Any:
        return Written.at(self.spot, int(self) // other) if type(other) is int else NotImplemented


class Reader(Text):
    """Instantiates the classes.

    Attributes:
        spots: every spot that was read, by its id.
        spoilt: the ids of spots that have another use than to be a number in a call, or to be compared.
        equal: for each spot the ids of those that it was compared with and that are the same number.
        texts: the spots of each class.
        inner: for each spot that is the width within a block, that of the width which the block takes.
    """

    def __init__(self, classes: Sequence[ClassTree], specification: Specification) -> None:
        definitions = [ast.ClassDef(t.name, [quote(t.base)], [], list[ast.stmt](t.methods), []) for t in classes]
        super().__init__(ast.Module(list[ast.stmt](definitions), []), specification)
        self.spots: dict[int, Spot] = {}
        self.spoilt: set[int] = set()
        self.equal: dict[int, set[int]] = {}
        self.texts = [{id(node) for part in (*t.setup, *t.items) for node in walk(part)} for t in classes]
        self.inner = {inner: outer for tree in classes for inner, outer in _inner(tree, classes)}
        self.rules[Spot] = self._spot
        self.building = True
        self._place(self._construct(definitions[-1], [], {}), "")

    @staticmethod
    def names_of(tree: ast.Module) -> frozenset[str]:
        return frozenset(node.name for node in tree.body if isinstance(node, ast.ClassDef))

    def known(self, name: str) -> Value:
        return self.classes.get(name) or self.make("name", name)

    def _spot(self, tree: Spot, _: LocalVariables) -> Value:
        self.spots[id(tree)] = tree
        return Written.at(tree, tree.value)  # type: ignore[arg-type]

    def node(self, value: Value) -> Node:
        return self.make("written", id(value.spot), int(value)) if isinstance(value, Written) else super().node(value)

    def _binary(self, tree: ast.BinOp, scope: LocalVariables) -> Value:
        result = super()._binary(tree, scope)
        if not isinstance(result, Written):
            self._spoil(self.evaluate(tree.left, scope), self.evaluate(tree.right, scope))
        return result

    def _compare(self, tree: ast.Compare, scope: LocalVariables) -> Value:
        sides = [self.evaluate(value, scope) for value in (tree.left, *tree.comparators)]
        for a, b in pairwise(sides):
            if isinstance(a, Written) and isinstance(b, Written) and a == b:
                self.equal.setdefault(id(a.spot), set()).add(id(b.spot))
                self.equal.setdefault(id(b.spot), set()).add(id(a.spot))
        return super()._compare(tree, scope)

    def _builtin(self, name: str, args: list[Value]) -> Value:
        result = super()._builtin(name, [int(a) if isinstance(a, Written) else a for a in args])
        if result is not UNDEFINED:
            self._spoil(*args)
        return result

    def _spoil(self, *values: Value) -> None:
        self.spoilt |= {id(value.spot) for value in values if isinstance(value, Written)}

    def number_at(self, spot: int) -> int:
        """Return the number that is written at a spot."""
        return int(self.spots[spot].value)  # type: ignore[arg-type]

    def like(self, spots: set[int]) -> set[int]:
        """Return the spots that were compared with some of these alone."""
        return {spot for spot, others in self.equal.items() if others <= spots}

    def reached(self) -> Iterator[tuple[Size, int]]:
        """Yield the places that numbers of the text reach, each with the id of the number's spot."""
        for path, leaf in self.leaves.items():
            for place, spot in _places(leaf.build, ()):
                yield (path, "in", *place), spot


def _inner(tree: ClassTree, classes: Sequence[ClassTree]) -> Iterator[tuple[int, int]]:
    """Yield the spots of widths within a block, each with that of the width which the block takes, or 0."""
    parameters = {other.name: [parameter.name for parameter in other.parameters] for other in classes}
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in parameters:
            args = [*zip(parameters[node.func.id], node.args), *((k.arg or "", k.value) for k in node.keywords)]
            spots = [(name, id(one)) for name, one in args if isinstance(one, Spot)]
            outer = next((spot for name, spot in spots if name.startswith(OUTER)), 0)
            yield from ((spot, outer) for name, spot in spots if "hidden_" in name[:-1])


def nodes_of(tree: ClassTree) -> Iterator[ast.AST]:
    """Yield the nodes of `__init__`."""
    return (node for part in (*tree.setup, *tree.items) for node in walk(part))


def _places(node: Node, at: Place) -> Iterator[tuple[Place, int]]:
    """Yield the numbers in the node of a call, with their places as `sizes.places` has them."""
    kind, *rest = node.key
    if kind == "written":
        yield at, rest[0]
    elif kind == "call":
        for i, argument in enumerate(rest[1]):
            yield from _places(argument, (*at, i))
        for name, value in rest[2]:
            yield from _places(value, (*at, name))
    elif kind in ("tuple", "list"):
        for i, item in enumerate(rest[0]):
            yield from _places(item, (*at, i))


def spots_of(classes: Sequence[ClassTree]) -> list[ClassTree]:
    """Return classes in which the numbers that `__init__` gives are spots."""
    return [replace(t, setup=[spotted(s) for s in t.setup], items=[spotted(i) for i in t.items]) for t in classes]


def write(
    classes: Sequence[ClassTree], arguments: list[Argument], sums: Sums, reserved: frozenset[str]
) -> list[ClassTree]:
    """Write the arguments and sums of them into the classes, of which each stands after those that it uses."""
    writer = _Writer(arguments, sums, reserved)
    return [writer.write(tree, tree is classes[-1]) for tree in classes]


class _Writer:
    def __init__(self, arguments: list[Argument], sums: Sums, reserved: frozenset[str]) -> None:
        of = {spot: argument for argument in arguments for spot in argument.spots}
        self.of: dict[int, list[tuple[Argument | None, int]]]
        self.of = {spot: [(argument, argument.spots[spot])] for spot, argument in of.items()}
        for spot, parts in sums.items():
            if any(part in of for part, _ in parts):
                self.of[spot] = [(of.get(part), number) for part, number in parts]
        self.reserved = reserved
        self.needs: dict[str, list[Argument]] = {}  # by the name of the class
        self.first: dict[str, dict[str, int]] = {}  # of each class, the first entry of each table that it is given

    def write(self, tree: ClassTree, is_root: bool) -> ClassTree:
        needed = self.needs[tree.name] = self._needed(tree, is_root)
        names, defaults = self._names(tree, is_root)
        parameters = [Parameter(name, "int", default if is_root else None) for name, default in defaults.items()]
        own = sum(parameter.default is None for parameter in tree.parameters)
        counts = {names[id(argument)] for argument in needed if _is_count(argument)}
        sizes = len(parameters) if is_root else sum(parameter.name not in counts for parameter in parameters)
        return replace(
            tree,
            setup=[self._final(part, names, tree.name) for part in tree.setup],
            items=[self._final(part, names, tree.name) for part in tree.items],
            parameters=[*parameters[:sizes], *tree.parameters[:own], *parameters[sizes:], *tree.parameters[own:]],
        )

    def _names(self, tree: ClassTree, is_root: bool) -> tuple[dict[int, str], dict[str, str]]:
        """Return what is written in a class for each argument, by its id, and the parameters with their defaults."""
        needed = self.needs[tree.name]
        entries = grouped((argument.table, argument) for argument in needed if argument.table)
        tables = {name: sorted(table, key=_entry) for name, table in entries.items()}
        first = self.first[tree.name] = {name: 0 if is_root else _entry(table[0]) for name, table in tables.items()}
        namer = Namer(self.reserved | {parameter.name for parameter in tree.parameters} | _locals(tree))
        wholes = {name: namer.take(name) for name, table in tables.items() if is_root or len(table) > 1}
        names: dict[int, str] = {}
        defaults: dict[str, str] = {}
        for a in needed:
            if whole := wholes.get(a.table, ""):
                names[id(a)] = f"{whole}[{_entry(a) - first[a.table]}]"
                defaults[whole] = str(tuple(other.number for other in tables[a.table]))
            else:
                names[id(a)] = namer.take("width" if a.name in namer and a.name in WIDTHS else a.name)
                defaults[names[id(a)]] = str(a.number)
        return names, defaults

    def _needed(self, tree: ClassTree, is_root: bool) -> list[Argument]:
        """Return the arguments that a class or a class that it makes needs; below the root, numbers of blocks last."""
        needed: dict[int, Argument] = {}
        parts = sorted((*tree.setup, *tree.items), key=_is_store)  # what a class only stores comes last
        for node in (node for part in parts for node in walk(part)):
            arguments = [argument for argument, _ in self.of.get(id(node), ()) if argument is not None]
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                arguments = self.needs.get(node.func.id, [])
            needed.update((id(argument), argument) for argument in arguments)
        return sorted(needed.values(), key=lambda argument: not is_root and _is_count(argument))

    def _final(self, tree: Any, names: dict[int, str], maker: str) -> Any:
        def change(node: ast.AST) -> ast.expr | None:
            if isinstance(node, Spot):
                return total(self.of.get(id(node), [(None, node.value)]), names)  # type: ignore[list-item]
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and self.needs.get(node.func.id):
                sizes = [a for a in self.needs[node.func.id] if not _is_count(a)]
                counts = [a for a in self.needs[node.func.id] if _is_count(a)]
                starts = {t: first - self.first[maker][t] for t, first in self.first[node.func.id].items()}
                before, behind = (_passed(part, names, starts) for part in (sizes, counts))
                keywords = [ast.keyword(k.arg, self._final(k.value, names, maker)) for k in node.keywords]
                args = [*before, *(self._final(a, names, maker) for a in node.args), *behind]
                return ast.Call(node.func, args, keywords)
            return None

        return rewrite(tree, change)


def _passed(needed: list[Argument], names: dict[int, str], starts: Mapping[str, int]) -> list[ast.expr]:
    """Return what a class is given for the arguments that it needs.

    Several widths of a table are all of it, from the first that the class needs on (`starts`): `widths[2:]`.
    """
    tables = Counter(argument.table for argument in needed if argument.table)
    rest = {table: f"[{start}:]" if start else "" for table, start in starts.items()}
    texts = [names[id(a)].partition("[")[0] + rest[a.table] if tables[a.table] > 1 else names[id(a)] for a in needed]
    return [quote(text) for text in dict.fromkeys(texts)]


def _entry(argument: Argument) -> int:
    assert argument.entry is not None
    return argument.entry


def _is_count(argument: Argument) -> bool:
    """True for numbers of heads and of blocks, which stand behind all sizes."""
    return argument.table == DEPTHS or argument.name in (HEADS, "num_layers", "num_blocks")


def _is_store(part: ast.AST) -> bool:
    """True for `self.num_heads = 4` and `self.split_sizes = [64, 18]`."""
    return isinstance(part, ast.Assign) and isinstance(part.value, (Spot, ast.List))


def _locals(tree: ClassTree) -> set[str]:
    return {node.id for node in nodes_of(tree) if isinstance(node, ast.Name)}
