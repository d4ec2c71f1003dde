"""Patterns of spelled-out mathematics, written as the formula, and matched however a file orders and groups it.

    Pattern("0.5 * x * (1 + Erf(x / sqrt2))", numbers={"sqrt2": math.sqrt(2)})

- A single letter is a tensor, the same wherever it stands. A longer name is a number, bound to what the graph has there
  (unless it is given, as `sqrt2`); an axis, or several, where it is the second argument of a reduction.
- `+ - * / **` are sums and products in any order, grouping and spelling (see `algebra`).
- `Clip(x, low, high)` and `Relu(x)` are clamps in any spelling, infinite bounds being none.
- `ReduceMean(x, axes)` and its siblings keep the axes that they reduce. A third argument is `keepdims`, bound or given.
- Any other call is that operator with those inputs, `name=...` its attributes; Max and Min take theirs in any order.
  `onnxgen_Name(x)` is one of our own.
- `p | q` is either. `where` says what a tensor of the pattern is itself made of.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.passes.algebra import as_clamp, as_product, as_sum
from onnxgen.passes.match import is_close, reduction, scalar

Bound = dict[str, "ir.Value | float | tuple[int, ...]"]
OWN = f"{DOMAIN}_"
COMMUTATIVE = ("Max", "Min")
ROOTS = {
    "product": ("Mul", "Div", "Neg", "Reciprocal", "Sqrt", "Pow"),
    "sum": ("Add", "Sub", "Neg"),
    "clamp": ("Relu", "Clip", "Max", "Min"),
}


@dataclass(frozen=True)
class Term:
    """One piece of a pattern.

    Attributes:
        kind: "tensor", "number", "product", "sum", "clamp", "reduction", "operator" or "either".
        name: a tensor's, a number's to be bound, or an operator's.
        value: a number that is given; a product's coefficient, a sum's constant (or the name of one to be bound).
        parts: operands; with their powers in a product, their signs in a sum.
        attributes: (name, number or name to be bound) of an operator.
    """

    kind: str
    name: str = ""
    value: float | str = 0.0
    parts: tuple[tuple[Term, float], ...] = ()
    attributes: tuple[tuple[str, float | str], ...] = ()

    @property
    def roots(self) -> tuple[str, ...]:
        """The operators that may make such a value."""
        if self.kind == "either":
            return tuple(root for part, _ in self.parts for root in part.roots)
        return ROOTS.get(self.kind, (self.name,))

    @property
    def operators(self) -> set[str]:
        """Operators that the graph must have: those that have no other spelling."""
        if self.kind == "either":
            return set()
        own = {self.name} if self.kind in ("operator", "reduction") else set()
        return own.union(*(part.operators for part, _ in self.parts))


@dataclass
class Match:
    """What a pattern found: its tensors and numbers by name, and the nodes between them and the root."""

    root: ir.Node
    bound: Bound
    inside: set[ir.Node]

    def tensor(self, name: str) -> ir.Value:
        found = self.bound[name]
        assert isinstance(found, ir.Value)
        return found

    def number(self, name: str) -> float:
        found = self.bound[name]
        assert isinstance(found, float)
        return found

    def axes(self, name: str = "axes") -> tuple[int, ...]:
        found = self.bound[name]
        assert isinstance(found, tuple)
        return found


class Pattern:
    """One formula. `where`: the formulas of tensors in it; `numbers`: constants by name.

    Attributes:
        operators: what the graph must have for it, see `Term.operators`.
    """

    def __init__(self, text: str, where: dict[str, str] | None = None, numbers: dict[str, float] | None = None) -> None:
        self.text = text
        numbers = {"inf": math.inf, **(numbers or {})}
        self.root = _parse(ast.parse(text, mode="eval").body, numbers)
        self.where = {name: _parse(ast.parse(t, mode="eval").body, numbers) for name, t in (where or {}).items()}

        self.operators = self.root.operators.union(*(term.operators for term in self.where.values()))

    def match(self, node: ir.Node) -> Match | None:
        """The first way in which a node's output is the pattern, nothing between being used elsewhere; None if none."""
        for bound in self._ways(node.outputs[0]):
            inside = self._inside(node, bound)
            if inside is not None:
                return Match(node, bound, inside)
        return None

    def _ways(self, value: ir.Value) -> Iterator[Bound]:
        ways = _match(value, self.root, {})
        for name, term in self.where.items():
            ways = _also(ways, name, term)
        return ways

    def _inside(self, root: ir.Node, bound: Bound) -> set[ir.Node] | None:
        """The nodes between the root and the bound tensors, or None if something else uses what they make."""
        ends = {value for name, value in bound.items() if isinstance(value, ir.Value) and name not in self.where}
        found: set[ir.Node] = {root}
        stack = [root]
        while stack:
            for value in stack.pop().inputs:
                producer = None if value is None or value in ends or scalar(value) is not None else value.producer()
                if producer is not None and producer not in found:
                    found.add(producer)
                    stack.append(producer)
        for node in found - {root}:
            for output in node.outputs:
                if output not in ends and (
                    output.is_graph_output() or any(use.node not in found for use in output.uses())
                ):
                    return None
        return found


def _also(ways: Iterator[Bound], name: str, term: Term) -> Iterator[Bound]:
    for bound in ways:
        value = bound[name]
        if isinstance(value, ir.Value):
            yield from _match(value, term, bound)


# ------------------------------------------------------------------------------------------------------- the text

POWER = {ast.Mult: 1.0, ast.Div: -1.0}


def _parse(tree: ast.expr, numbers: dict[str, float]) -> Term:
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        return Term("either", parts=tuple((_parse(t, numbers), 1.0) for t in (tree.left, tree.right)))
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, (ast.Add, ast.Sub)):
        return _parse_sum(tree, numbers)
    if isinstance(tree, (ast.BinOp, ast.UnaryOp)):
        return _parse_product(tree, numbers)
    if isinstance(tree, ast.Call):
        return _parse_call(tree, numbers)
    if isinstance(tree, ast.Name) and len(tree.id) == 1:
        return Term("tensor", tree.id)
    return Term("number", value=_number(tree, numbers))


def _number(tree: ast.expr, numbers: dict[str, float]) -> float | str:
    """A number, or the name of one to be bound."""
    if isinstance(tree, ast.Name):
        return numbers.get(tree.id, tree.id)
    if isinstance(tree, ast.UnaryOp):
        return -float(ast.literal_eval(tree.operand)) if isinstance(tree.operand, ast.Constant) else -math.inf
    return float(ast.literal_eval(tree))


def _parse_sum(tree: ast.expr, numbers: dict[str, float]) -> Term:
    constant: float | str = 0.0
    parts: list[tuple[Term, float]] = []
    stack = [(tree, 1.0)]
    while stack:
        top, sign = stack.pop()
        if isinstance(top, ast.BinOp) and isinstance(top.op, (ast.Add, ast.Sub)):
            stack += [(top.right, sign if isinstance(top.op, ast.Add) else -sign), (top.left, sign)]
            continue
        term = _parse(top, numbers)
        if term.kind != "number":
            parts.append((term, sign))
        else:
            constant = term.value if isinstance(term.value, str) else sign * term.value
    return Term("sum", value=constant, parts=tuple(parts))


def _parse_product(tree: ast.expr, numbers: dict[str, float]) -> Term:
    coefficient: float | str = 1.0
    parts: list[tuple[Term, float]] = []
    stack = [(tree, 1.0)]
    while stack:
        top, power = stack.pop()
        if isinstance(top, ast.BinOp) and type(top.op) in POWER and abs(power) == 1:
            stack += [(top.right, power * POWER[type(top.op)]), (top.left, power)]
        elif isinstance(top, ast.BinOp) and isinstance(top.op, ast.Pow):
            stack.append((top.left, power * float(_number(top.right, numbers))))
        elif isinstance(top, ast.UnaryOp) and not isinstance(top.operand, ast.Constant):
            coefficient = -coefficient if isinstance(coefficient, float) else coefficient
            stack.append((top.operand, power))
        else:
            term = _parse(top, numbers)
            if term.kind != "number":
                parts.append((term, power))
            elif isinstance(term.value, str):
                coefficient = term.value
            elif isinstance(coefficient, float):
                coefficient *= term.value**power
    return Term("product", value=coefficient, parts=tuple(parts))


def _parse_call(tree: ast.Call, numbers: dict[str, float]) -> Term:
    assert isinstance(tree.func, ast.Name)
    name, args = tree.func.id, tree.args
    if name == "Relu":
        return Term(
            "clamp", name, parts=((_parse(args[0], numbers), 1.0),), attributes=(("low", 0.0), ("high", math.inf))
        )
    if name == "Clip":
        bounds = ("low", _number(args[1], numbers)), ("high", _number(args[2], numbers))
        return Term("clamp", name, parts=((_parse(args[0], numbers), 1.0),), attributes=bounds)
    if name.startswith("Reduce"):
        axes = _number(args[1], numbers)
        keep = _number(args[2], numbers) if len(args) > 2 else 1.0
        return Term(
            "reduction", name, parts=((_parse(args[0], numbers), 1.0),), attributes=(("axes", axes), ("keepdims", keep))
        )
    attributes = tuple((k.arg or "", _number(k.value, numbers)) for k in tree.keywords)
    return Term("operator", name, parts=tuple((_parse(a, numbers), 1.0) for a in args), attributes=attributes)


# ------------------------------------------------------------------------------------------------------- matching


def _match(value: ir.Value | None, term: Term, bound: Bound) -> Iterator[Bound]:
    """Every way in which a value is a term, as what is bound then."""
    if value is None:
        return
    if term.kind == "tensor":
        if bound.get(term.name, value) is value:
            yield {**bound, term.name: value}
    elif term.kind == "number":
        number = scalar(value)
        if number is not None:
            yield from _bind(term.value, number, bound, value)
    elif term.kind == "either":
        for part, _ in term.parts:
            yield from _match(value, part, bound)
    elif term.kind == "product":
        yield from _match_product(value, 1.0, term, bound)
    elif term.kind == "sum":
        yield from _match_sum(value, term, bound)
    else:
        yield from _match_call(value, term, bound)


def _bind(wanted: float | str, number: float, bound: Bound, near: ir.Value) -> Iterator[Bound]:
    """A number that is given must be the one that is there; one with a name is bound to it."""
    known = bound.get(wanted) if isinstance(wanted, str) else wanted
    if isinstance(known, float):
        if number == known or is_close(number, known, near):
            yield bound
    elif known is None and isinstance(wanted, str):
        yield {**bound, wanted: number}


def _match_product(value: ir.Value, sign: float, term: Term, bound: Bound) -> Iterator[Bound]:
    product = as_product(value)
    if len(product.factors) != len(term.parts):
        return
    for order in permutations(product.factors):
        if all(power == part[1] for (_, power), part in zip(order, term.parts)):
            ways = _bind(term.value, sign * product.coefficient, bound, value)
            for (factor, _), (part, _) in zip(order, term.parts):
                ways = _each(ways, factor, part)
            yield from ways


def _match_sum(value: ir.Value, term: Term, bound: Bound) -> Iterator[Bound]:
    found = as_sum(value)
    if len(found.terms) != len(term.parts):
        return
    for order in permutations(found.terms):
        ways = _bind(term.value, found.constant, bound, value)
        for (addend, sign), (part, wanted) in zip(order, term.parts):
            ways = _each(ways, addend, part, sign * wanted)
        yield from ways


def _each(ways: Iterator[Bound], value: ir.Value, term: Term, sign: float = 1.0) -> Iterator[Bound]:
    """The ways in which a value times a sign is the term, for each of the ways so far."""
    for bound in ways:
        if term.kind == "product":
            yield from _match_product(value, sign, term, bound)
        elif sign == 1.0:
            yield from _match(value, term, bound)


def _each_bind(ways: Iterator[Bound], wanted: float | str, number: float, near: ir.Value) -> Iterator[Bound]:
    for bound in ways:
        yield from _bind(wanted, number, bound, near)


def _match_call(value: ir.Value, term: Term, bound: Bound) -> Iterator[Bound]:
    if term.kind == "clamp":
        x, *bounds = as_clamp(value)
        if bounds != [-math.inf, math.inf]:
            ways: Iterator[Bound] = iter([bound])
            for (_, wanted), number in zip(term.attributes, bounds):
                ways = _each_bind(ways, wanted, number, value)
            yield from _each(ways, x, term.parts[0][0])
        return
    if term.kind == "reduction":
        yield from _match_reduction(value, term, bound)
        return
    node = value.producer()
    if node is None or (node.domain, node.op_type) != _qualified(term.name) or len(node.inputs) != len(term.parts):
        return
    inputs = [i for i in node.inputs if i is not None]
    for order in permutations(inputs) if term.name in COMMUTATIVE else [tuple(inputs)]:
        ways = iter([bound])
        for name, wanted in term.attributes:
            given = node.attributes.get(name)
            ways = _each_bind(ways, wanted, float(given.value), value) if given is not None else iter(())
        for argument, (part, _) in zip(order, term.parts):
            ways = _each(ways, argument, part)
        yield from ways


def present(node: ir.Node) -> set[str]:
    """The names by which patterns know a node's operator."""
    name = f"{OWN}{node.op_type}" if node.domain == DOMAIN else node.op_type
    return {name, "ReduceMean"} if name == "GlobalAveragePool" else {name}


def _qualified(name: str) -> tuple[str, str]:
    """(domain, operator)"""
    return (DOMAIN, name.removeprefix(OWN)) if name.startswith(OWN) else ("", name)


def _match_reduction(value: ir.Value, term: Term, bound: Bound) -> Iterator[Bound]:
    found = reduction(value, term.name)
    (_, axes), (_, keepdims) = term.attributes
    if found is None or not isinstance(axes, str) or bound.get(axes, found.axes) != found.axes:
        return
    ways = _bind(keepdims, found.keepdims, {**bound, axes: found.axes}, value)
    yield from _each(ways, found.x, term.parts[0][0])
