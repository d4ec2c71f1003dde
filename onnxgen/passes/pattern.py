"""Patterns of spelled-out mathematics: formulas that match in any order and grouping.

    Pattern("0.5 * x * (1 + Erf(x / sqrt2))", numbers={"sqrt2": math.sqrt(2)})

- A single letter is a tensor, the same one everywhere. A longer name is a number: given, like `sqrt2`, or bound to the
  graph's number. As the second argument of a reduction it is bound to the axes.
- `+ - * / **` are sums and products in any order, grouping and spelling (see `algebra`).
- `Clip(x, low, high)` and `Relu(x)` are clamps in any spelling. A missing bound is infinite.
- `ReduceMean(x, axes)` and its siblings keep the axes that they reduce. A third argument is `keepdims`, bound or given.
- Any other call is that operator with those inputs; keywords are its attributes. Max and Min take inputs in any order.
  `onnxgen_Name(x)` is one of onnxgen's own operators.
- `p | q` matches p or q. `where` has the formulas of tensors in the pattern.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import permutations

import onnx_ir as ir

from onnxgen.graph.catalogue import card
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.traits import COMMUTES
from onnxgen.passes.algebra import as_clamp, as_product, as_sum
from onnxgen.passes.match import is_close, reduction, scalar
from onnxgen.weights.stored import stored

Bound = dict[str, "ir.Value | float | tuple[int, ...]"]
OWN = f"{DOMAIN}_"
ROOTS = {
    "product": ("Mul", "Div", "Neg", "Reciprocal", "Sqrt", "Pow"),
    "sum": ("Add", "Sub", "Neg"),
    "clamp": ("Relu", "Clip", "Max", "Min"),
}


@dataclass(frozen=True)
class Term:
    """One piece of a pattern. A number is a float if it is given, else the name to bind it to.

    Attributes:
        kind: "tensor", "number", "product", "sum", "clamp", "reduction", "operator" or "either".
        name: of a tensor or an operator.
        value: the number, the coefficient of a product, or the constant of a sum.
        parts: operands, with their powers in a product and their signs in a sum.
        attributes: of an operator, as (name, number).
    """

    kind: str
    name: str = ""
    value: float | str = 0.0
    parts: tuple[tuple[Term, float], ...] = ()
    attributes: tuple[tuple[str, float | str], ...] = ()

    @property
    def roots(self) -> tuple[str, ...]:
        """Return the operators that may make such a value."""
        if self.kind == "either":
            return tuple(root for part, _ in self.parts for root in part.roots)
        return ROOTS.get(self.kind, (self.name,))

    @property
    def operators(self) -> set[str]:
        """Return the operators that the graph must have, since they have no other spelling."""
        if self.kind == "either":
            return set()
        own = {self.name} if self.kind in ("operator", "reduction") else set()
        return own.union(*(part.operators for part, _ in self.parts))


@dataclass
class Match:
    """The tensors and numbers of a pattern by name, and the nodes between them and the root."""

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
    """One formula. `where` has the formulas of tensors in it, `numbers` the given numbers by name.

    Attributes:
        operators: see `Term.operators`.
    """

    def __init__(self, text: str, where: dict[str, str] | None = None, numbers: dict[str, float] | None = None) -> None:
        numbers = {"inf": math.inf, **(numbers or {})}
        self.root = _parse(ast.parse(text, mode="eval").body, numbers)
        self.where = {name: _parse(ast.parse(t, mode="eval").body, numbers) for name, t in (where or {}).items()}
        self.operators = self.root.operators.union(*(term.operators for term in self.where.values()))

    def match(self, node: ir.Node) -> Match | None:
        """Return the first match whose root is a node and whose inner values are used nowhere else, else None."""
        ways = _match(node.outputs[0], self.root, {})
        for name, term in self.where.items():
            ways = _match_bound(ways, name, term)
        for bound in ways:
            inside = self._inside(node, bound)
            if inside is not None:
                return Match(node, bound, inside)
        return None

    def _inside(self, root: ir.Node, bound: Bound) -> set[ir.Node] | None:
        """Return the nodes between the root and the bound tensors; None if something else uses their results."""
        ends = {value for name, value in bound.items() if isinstance(value, ir.Value) and name not in self.where}
        found: set[ir.Node] = {root}
        stack = [root]
        while stack:
            for value in stack.pop().inputs:
                producer = None if value is None or value in ends or scalar(value) is not None else value.producer()
                if producer is not None and producer not in found and stored(value) is None:  # axes may be shared
                    found.add(producer)
                    stack.append(producer)
        for node in found - {root}:
            for output in node.outputs:
                if output not in ends and (
                    output.is_graph_output() or any(use.node not in found for use in output.uses())
                ):
                    return None
        return found


# ---- from text to terms ----

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
    """Return a number, or the name to bind it to."""
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
    name, parts = tree.func.id, tuple((_parse(a, numbers), 1.0) for a in tree.args)
    options = [_number(a, numbers) for a in tree.args[1:] if name == "Clip" or name.startswith("Reduce")]
    if name in ("Relu", "Clip"):
        low, high = options or (0.0, math.inf)
        return Term("clamp", name, parts=parts[:1], attributes=(("low", low), ("high", high)))
    if name.startswith("Reduce"):
        axes, keepdims = [*options, 1.0][:2]
        return Term("reduction", name, parts=parts[:1], attributes=(("axes", axes), ("keepdims", keepdims)))
    attributes = tuple((k.arg or "", _number(k.value, numbers)) for k in tree.keywords)
    return Term("operator", name, parts=parts, attributes=attributes)


# ---- matching: every function yields the bindings of each way to match a value with a term ----


def _match(value: ir.Value | None, term: Term, bound: Bound, sign: float = 1.0) -> Iterator[Bound]:
    """Match a value, times `sign` (1 or -1), with a term."""
    if value is None or (sign != 1.0 and term.kind != "product"):
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
        yield from _match_product(value, sign, term, bound)
    elif term.kind == "sum":
        yield from _match_sum(value, term, bound)
    elif term.kind == "clamp":
        yield from _match_clamp(value, term, bound)
    elif term.kind == "reduction":
        yield from _match_reduction(value, term, bound)
    else:
        yield from _match_call(value, term, bound)


def _match_bound(ways: Iterator[Bound], name: str, term: Term) -> Iterator[Bound]:
    """Match the tensor that a name is bound to."""
    for bound in ways:
        value = bound[name]
        if isinstance(value, ir.Value):
            yield from _match(value, term, bound)


def _match_all(ways: Iterable[Bound], value: ir.Value | None, term: Term, sign: float = 1.0) -> Iterator[Bound]:
    for bound in ways:
        yield from _match(value, term, bound, sign)


def _bind(wanted: float | str, number: float, bound: Bound, near: ir.Value) -> Iterator[Bound]:
    """Compare a number with the given or bound one. A name that is not bound yet is bound to it."""
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
                ways = _match_all(ways, factor, part)
            yield from ways


def _match_sum(value: ir.Value, term: Term, bound: Bound) -> Iterator[Bound]:
    found = as_sum(value)
    if len(found.terms) != len(term.parts):
        return
    for order in permutations(found.terms):
        ways = _bind(term.value, found.constant, bound, value)
        for (addend, sign), (part, wanted) in zip(order, term.parts):
            ways = _match_all(ways, addend, part, sign * wanted)
        yield from ways


def _match_clamp(value: ir.Value, term: Term, bound: Bound) -> Iterator[Bound]:
    x, low, high = as_clamp(value)
    if (low, high) != (-math.inf, math.inf):
        (_, least), (_, most) = term.attributes
        for lower in _bind(least, low, bound, value):
            yield from _match_all(_bind(most, high, lower, value), x, term.parts[0][0])


def _match_reduction(value: ir.Value, term: Term, bound: Bound) -> Iterator[Bound]:
    found = reduction(value, term.name)
    (_, axes), (_, keepdims) = term.attributes
    if found is None or not isinstance(axes, str) or bound.get(axes, found.axes) != found.axes:
        return
    ways = _bind(keepdims, found.keepdims, {**bound, axes: found.axes}, value)
    yield from _match_all(ways, found.x, term.parts[0][0])


def _match_call(value: ir.Value, term: Term, bound: Bound) -> Iterator[Bound]:
    node = value.producer()
    is_own = term.name.startswith(OWN)
    wanted = (DOMAIN if is_own else "", term.name.removeprefix(OWN))
    if node is None or (node.domain, node.op_type) != wanted or len(node.inputs) != len(term.parts):
        return
    bounds = [bound]
    for name, number in term.attributes:
        given = node.attributes.get(name)
        bounds = [b for old in bounds if given is not None for b in _bind(number, float(given.value), old, value)]
    inputs = [i for i in node.inputs if i is not None]
    for order in permutations(inputs) if COMMUTES in card("", term.name).traits else [tuple(inputs)]:
        ways = iter(bounds)
        for argument, (part, _) in zip(order, term.parts):
            ways = _match_all(ways, argument, part)
        yield from ways


def present(node: ir.Node) -> set[str]:
    """Return the names by which patterns know a node's operator."""
    name = f"{OWN}{node.op_type}" if node.domain == DOMAIN else node.op_type
    return {name, "ReduceMean"} if name == "GlobalAveragePool" else {name}
