"""The values of expressions and statements that are executed on symbols instead of tensors.

A `Node` is the result of an operation on other nodes. Equal nodes are one object: two programs that compute the same
from the same inputs make the same nodes, whatever the names of their variables and the order of their operations. Other
values are plain Python (numbers, text, None, tuples, lists), dims (`int | Sym`), and the objects below, which stand for
modules. Python expressions on numbers, text and lists are computed, if the results are small (`PYTHON`).
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
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
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = Node(key, self.home)
        return node

    def copy(self) -> Graph:
        """Return a copy with the same nodes, for another program. That program does not change this graph."""
        copied = Graph()
        copied.shapes, copied._nodes = self.shapes, dict(self._nodes)
        return copied

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
        return islice(self._nodes.values(), count, None)


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
    return f"{op}({_several(rest, depth)})" if depth else "..."


def _several(parts: Sequence[Any], depth: int) -> str:
    return ", ".join(
        describe(p, depth - 1) if isinstance(p, Node) else _several(p, depth) if isinstance(p, tuple) else str(p)
        for p in parts
    )


MAX_ITEMS = 100_000  # items of a `range` or a repeated list that are evaluated one by one
MAX_INTEGER_BITS = 4096  # bits of a computed integer
PYTHON: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}


def is_fixed(tree: ast.expr) -> bool:
    """Return True for an expression whose value no call can change: names, numbers, and what `math` makes of them."""
    if isinstance(tree, ast.Call):
        module = tree.func.value if isinstance(tree.func, ast.Attribute) else None
        is_math = isinstance(module, ast.Name) and module.id == "math"
        return is_math and not tree.keywords and all(map(is_fixed, tree.args))
    if isinstance(tree, ast.BinOp):
        return is_fixed(tree.left) and is_fixed(tree.right)
    if isinstance(tree, ast.UnaryOp):
        return is_fixed(tree.operand)
    if isinstance(tree, ast.Tuple):
        return all(map(is_fixed, tree.elts))
    return isinstance(tree, (ast.Constant, ast.Name, ast.Attribute))


def of_math(module: Node, name: str, *args: Value) -> float | None:
    """Return `math.pi`, or a root or logarithm of a number; None for all else."""
    try:
        if module.key != ("name", "math"):
            return None
        if not args:
            return math.pi if name == "pi" else None
        function = {"sqrt": math.sqrt, "log": math.log}.get(name)
        is_number = len(args) == 1 and type(args[0]) in (int, float)
        return function(args[0]) if function is not None and is_number else None
    except (ArithmeticError, ValueError):
        return None


def is_plain(value: Value) -> bool:
    """Return True if a value is an ordinary Python value without symbolic parts."""
    return all(map(is_plain, value)) if isinstance(value, (tuple, list)) else isinstance(value, CONCRETE)


def is_small(kind: type[ast.operator], a: Any, b: Any) -> bool:
    """Return True if the result is no larger than what a person would write."""
    if kind is ast.Mult and not (isinstance(a, (int, float)) and isinstance(b, (int, float))):
        times = a if isinstance(a, int) else b
        return isinstance(times, int) and times <= MAX_ITEMS
    if kind in (ast.Mult, ast.Pow) and isinstance(a, int) and isinstance(b, int):
        return a.bit_length() * (b if kind is ast.Pow else 1) + b.bit_length() <= MAX_INTEGER_BITS
    return True


def bounds(source: range) -> tuple[int, ...]:
    if source.step != 1:
        return source.start, source.stop, source.step
    return (source.start, source.stop) if source.start else (source.stop,)


def power(base: Any, exponent: int) -> Any:
    return math.prod([base] * exponent)
