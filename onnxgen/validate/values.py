"""The values of expressions and statements that are executed on symbols instead of tensors.

A `Node` is the result of an operation on other nodes. Equal nodes are one object: two programs that compute the same
from the same inputs make the same nodes, whatever the names of their variables and the order of their operations. Other
values are plain Python (numbers, text, None, tuples, lists), dims (`int | Sym`), and the objects below, which stand for
modules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from onnxgen.shapes.dims import Sym
from onnxgen.shapes.info import Shape

Value = Any
PARTS = ("unbind", "chunk", "split")
CONCRETE = (bool, int, float, str, bytes, type(None), type(Ellipsis))


class Unreadable(Exception):
    """The checker does not understand the program. Such a program never counts as equal."""


class Node:
    """One operation and its operands. `home`: the module whose `forward` first executed it."""

    __slots__ = ("home", "key")

    def __init__(self, key: tuple[Any, ...], home: str) -> None:
        self.key, self.home = key, home

    def __repr__(self) -> str:
        return describe(self)


class Graph:
    """Makes nodes. Equal nodes are made once.

    Attributes:
        home: the module path that new nodes belong to.
        shapes: the known dims of nodes; so `x.shape[1]` is a dim.
    """

    def __init__(self) -> None:
        self.home = ""
        self.shapes: dict[Node, Shape] = {}
        self._nodes: dict[tuple[Any, ...], Node] = {}

    def make(self, *key: Any) -> Node:
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = Node(key, self.home)
        return found

    def copy(self) -> Graph:
        """Return a copy with the same nodes, for another program. That program does not change this graph."""
        made = Graph()
        made.shapes, made._nodes = self.shapes, dict(self._nodes)
        return made

    def share(self, other: Graph) -> None:
        """Take the nodes of a graph that never changes, before any node of its own is made."""
        self._nodes = other._nodes | self._nodes

    def dotted(self, name: str) -> Node:
        """Return the node of a dotted name such as `torch.nn.functional`."""
        first, *rest = name.split(".")
        node = self.make("name", first)
        for part in rest:
            node = self.make("attribute", node, part)
        return node

    def __len__(self) -> int:
        return len(self._nodes)

    def since(self, count: int) -> Iterator[Node]:
        """Yield the nodes after the first `count`."""
        for i, node in enumerate(self._nodes.values()):
            if i >= count:
                yield node


@dataclass(eq=False)
class Leaf:
    """A registered member that no class of the file makes: a torch layer, parameter, buffer or plain value.

    `build`: the node that makes it. `kind`: "persistent" or "transient" for a buffer, "" for an assigned member.
    """

    build: Node
    kind: str = ""
    path: str | None = None
    frozen: set[str] = field(default_factory=set)
    children: dict[str, Value] = field(default_factory=dict)


@dataclass(eq=False)
class Holder:
    """An `nn.Module` with children: an instance of a class of the file, or a torch container.

    `kind`: "Module", "Sequential", "ModuleList" or "ModuleDict"; `definition`: the class of the file.
    """

    kind: str
    definition: ast.ClassDef | None = None
    children: dict[str, Value] = field(default_factory=dict)
    path: str | None = None

    @property
    def items(self) -> list[Value]:
        return list(self.children.values())


@dataclass(eq=False)
class FileClass:
    """A class that the file defines, not yet instantiated."""

    definition: ast.ClassDef


@dataclass(eq=False)
class Once:
    """An iterator that can be consumed once: a generator, a `zip`."""

    items: list[Value] | None

    def take(self) -> list[Value]:
        items, self.items = self.items, None
        if items is None:
            raise Unreadable("a generator that is used up")
        return items


class LocalVariables:
    """Local variables. A branch or loop body has a scope on top of the outer one."""

    __slots__ = ("outer", "values")

    def __init__(self, values: dict[str, Value] | None = None, outer: LocalVariables | None = None) -> None:
        self.values, self.outer = values if values is not None else {}, outer

    def find(self, name: str, default: Value) -> Value:
        scope: LocalVariables | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return default


def variable(value: str) -> str:
    """Return the variable name of a flat module's value, which cannot clash with names such as `torch`."""
    return f"%{value}"


def is_size(value: Value) -> bool:
    """Return True for a dim: an integer, known or symbolic."""
    return isinstance(value, (int, Sym)) and not isinstance(value, bool)


def divides(node: Node) -> bool:
    """Return True for a call of a method whose result is a tuple of the parts of a tensor."""
    return node.key[0] == "call" and node.key[1].key[0] == "attribute" and node.key[1].key[2] in PARTS


def describe(node: Node, depth: int = 3) -> str:
    """Describe a node in a few words, for an error message."""
    op, *rest = node.key
    if op in ("constant", "name", "member", "input"):
        return str(rest[-1])
    if depth == 0:
        return "..."
    parts = [
        (
            describe(part, depth - 1)
            if isinstance(part, Node)
            else _several(part, depth)
            if isinstance(part, tuple)
            else part
        )
        for part in rest
    ]
    return f"{op}({', '.join(map(str, parts))})"


def _several(parts: tuple[Any, ...], depth: int) -> str:
    return ", ".join(
        describe(p, depth - 1) if isinstance(p, Node) else _several(p, depth) if isinstance(p, tuple) else str(p)
        for p in parts
    )
