"""Which numbers in the text of the classes become which sizes of the members.

Goes in: the classes. Comes out: for every place of a number in the calls that make members, the number of the text
that reaches it, perhaps through the arguments of several classes. The checker's own reader instantiates the classes
(`validate/text.py`). Here it also carries along where each number was written.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from onnxgen.arguments.sizes import Place, Size, is_integer
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.quote import quote, rewrite, walk
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
        made = cls(value)
        made.spot = spot
        return made

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
        made = super()._binary(tree, scope)
        if not isinstance(made, Written):
            self._spoil(self.evaluate(tree.left, scope), self.evaluate(tree.right, scope))
        return made

    def _compare(self, tree: ast.Compare, scope: LocalVariables) -> Value:
        sides = [self.evaluate(value, scope) for value in (tree.left, *tree.comparators)]
        for a, b in pairwise(sides):
            if isinstance(a, Written) and isinstance(b, Written) and a == b:
                self.equal.setdefault(id(a.spot), set()).add(id(b.spot))
                self.equal.setdefault(id(b.spot), set()).add(id(a.spot))
        return super()._compare(tree, scope)

    def _builtin(self, name: str, args: list[Value]) -> Value:
        made = super()._builtin(name, [int(a) if isinstance(a, Written) else a for a in args])
        if made is not UNDEFINED:
            self._spoil(*args)
        return made

    def _spoil(self, *values: Value) -> None:
        self.spoilt |= {id(value.spot) for value in values if isinstance(value, Written)}

    def reached(self) -> Iterator[tuple[Size, int]]:
        """Yield the places that numbers of the text reach, each with the id of the number's spot."""
        for path, leaf in self.leaves.items():
            for place, spot in _places(leaf.build, ()):
                yield (path, "in", *place), spot


def _inner(tree: ClassTree, classes: Sequence[ClassTree]) -> Iterator[tuple[int, int]]:
    """Yield the spots of widths within a block, each with that of the width which the block takes, or 0."""
    parameters = {other.name: [parameter.name for parameter in other.parameters] for other in classes}
    for node in (node for part in (*tree.setup, *tree.items) for node in walk(part)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in parameters:
            args = [*zip(parameters[node.func.id], node.args), *((k.arg or "", k.value) for k in node.keywords)]
            given = [(name, one) for name, one in args if isinstance(one, Spot)]
            taken = [id(one) for name, one in given if name.startswith(OUTER)]
            yield from ((id(one), next(iter(taken), 0)) for name, one in given if "hidden_" in name[:-1])


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
