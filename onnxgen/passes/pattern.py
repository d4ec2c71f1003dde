"""Patterns of spelled-out mathematics: formulas that match in any order, grouping and spelling.

`as_sum`, `as_product` and `as_clamp` express values in forms that do not depend on the spelling:

    (x + 3) / 6,  (3 + x) * (1 / 6)                   one product: 1/6, [sum: 3, [x]]
    d / sqrt(v),  d * reciprocal(sqrt(v)),  d * v ** -0.5     one product: 1, [d, v ** -0.5]
    relu(max(x, c)),  min(max(x, 0), 6)               one clamp of x

A value that is also used elsewhere is not taken apart: it is one factor or one term. A `Pattern` compares a formula
with these forms:

    Pattern("0.5 * x * (1 + Erf(x / sqrt2))", numbers={"sqrt2": math.sqrt(2)})

- A single letter is a tensor, the same one everywhere. A longer name is a number: given, like `sqrt2`, or bound to the
  graph's number. As the second argument of a reduction it is bound to the axes.
- `+ - * / **` are sums and products in any order, grouping and spelling.
- `Clip(x, low, high)` and `Relu(x)` are clamps in any spelling. A missing bound is infinite.
- `ReduceMean(x, axes)` and its siblings keep the axes that they reduce. A third argument is `keepdims`, bound or given.
- Any other call is that operator with those inputs; keywords are its attributes. Max and Min take inputs in any order.
  `onnxgen_Name(x)` is one of onnxgen's own operators.
- `p | q` matches p or q. `where` has the formulas of tensors in the pattern.

A `Table` holds idioms: an `Idiom` has several patterns, and a function that builds the node they become.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import FLOATS, all_nodes, made_by
from onnxgen.graph.operators import card
from onnxgen.graph.traits import COMMUTES
from onnxgen.passes.match import is_close, maker, reduction, scalar
from onnxgen.passes.rewrite import input_at, is_used_outside, only_user, replace
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored

MAX_NODES = 8  # of one sum, product or clamp; no idiom has more
POWERS = (-1.0, -0.5, 0.5, 2.0, 3.0)


@dataclass
class Product:
    """`coefficient * factor ** power * ...`; equal factors with positive integer powers are merged."""

    coefficient: float = 1.0
    factors: list[tuple[ir.Value, float]] = field(default_factory=list)

    def times(self, value: ir.Value, power: float) -> None:
        for i, (factor, p) in enumerate(self.factors):
            if factor is value and p > 0 and power > 0 and p == int(p) and power == int(power):
                self.factors[i] = (factor, p + power)
                return
        self.factors.append((value, power))


@dataclass
class Sum:
    """`constant + sign * term + ...`"""

    constant: float = 0.0
    terms: list[tuple[ir.Value, int]] = field(default_factory=list)


def as_product(value: ir.Value) -> Product:
    """Return a value as a product; if nothing is multiplied, its only factor is the value."""
    product, nodes = Product(), 0
    stack = [(value, 1.0)]
    while stack:
        top, power = stack.pop()
        number = scalar(top) if top is not value else None
        if number is not None and number != 0 and power in (1.0, -1.0):
            product.coefficient *= number**power
            continue
        inside = _factors(top, power) if nodes < MAX_NODES and (top is value or only_user(top) is not None) else None
        if inside is None:
            product.times(top, power)
            continue
        nodes += 1
        coefficient, parts = inside
        product.coefficient *= coefficient
        stack.extend(reversed(parts))
    return product


def _factors(value: ir.Value, power: float) -> tuple[float, list[tuple[ir.Value, float]]] | None:
    """Return (coefficient, factors) of the node that makes a value, raised to a power of 1 or -1, else None.

    A power of a power is not merged: `(x ** 2) ** 0.5` is not x.
    """
    node = made_by(value, "Mul", "Div", "Neg", "Reciprocal", "Sqrt", "Pow")
    if node is None or node.inputs[0] is None or power not in (1.0, -1.0):
        return None
    x = node.inputs[0]
    if node.op_type in ("Neg", "Reciprocal"):
        return (-1.0, [(x, power)]) if node.op_type == "Neg" else (1.0, [(x, -power)])
    if node.op_type in ("Sqrt", "Pow"):
        exponent = 0.5 if node.op_type == "Sqrt" else scalar(node.inputs[1])
        return (1.0, [(x, power * exponent)]) if exponent is not None and power * exponent in POWERS else None
    y = node.inputs[1]
    return None if y is None else (1.0, [(x, power), (y, power if node.op_type == "Mul" else -power)])


def as_sum(value: ir.Value) -> Sum:
    """Return a value as a sum; if nothing is added, its only term is the value."""
    total = Sum()
    stack = [(value, 1)]
    nodes = 0
    while stack:
        top, sign = stack.pop()
        number = scalar(top) if top is not value else None
        if number is not None:
            total.constant += sign * number
            continue
        node = made_by(top, "Add", "Sub", "Neg") if top is value or only_user(top) is not None else None
        if node is None or nodes >= MAX_NODES or None in node.inputs:
            total.terms.append((top, sign))
            continue
        nodes += 1
        first = -sign if node.op_type == "Neg" else sign
        signs = (first, -sign if node.op_type == "Sub" else sign)
        stack.extend(reversed([(v, s) for v, s in zip(node.inputs, signs) if v is not None]))
    return total


def as_clamp(value: ir.Value) -> tuple[ir.Value, float, float]:
    """Return (x, low, high) of a value that is `min(max(x, low), high)`; else the value, with infinite bounds."""
    steps: list[tuple[float, float]] = []
    x = value
    while len(steps) < MAX_NODES and (x is value or only_user(x) is not None):
        clamp = _bounds(x)
        if clamp is None:
            break
        x, *bounds = clamp
        steps.append((bounds[0], bounds[1]))
    low, high = -math.inf, math.inf
    for least, most in reversed(steps):
        if least > high or most < low or least > most:
            return value, -math.inf, math.inf
        low, high = max(low, least), min(high, most)
    return x, low, high


def _bounds(value: ir.Value) -> tuple[ir.Value, float, float] | None:
    """Return (x, low, high) of the one node that clamps x to a value, else None."""
    node = made_by(value, "Relu", "Clip", "Max", "Min")
    x = node.inputs[0] if node is not None else None
    if node is None or x is None:
        return None
    if node.op_type == "Relu":
        return x, 0.0, math.inf
    if node.op_type == "Clip":
        low, high = _bound(node, 1, "min", -math.inf), _bound(node, 2, "max", math.inf)
        return None if low is None or high is None else (x, low, high)
    if len(node.inputs) != 2:
        return None
    for tensor, bound in (node.inputs, node.inputs[::-1]):
        number = scalar(bound)
        if number is not None and tensor is not None:
            return (tensor, number, math.inf) if node.op_type == "Max" else (tensor, -math.inf, number)
    return None


def _bound(node: ir.Node, index: int, name: str, default: float) -> float | None:
    """Return a bound of Clip; None if it is computed."""
    number = node.attributes.get_float(name, None)
    if number is not None:  # up to opset 10, where the limits of float32 are the defaults
        return number if abs(number) < 3.4e38 else math.copysign(math.inf, number)
    bound = input_at(node, index)
    return scalar(bound) if bound is not None else default


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
        tensor = self.bound[name]
        assert isinstance(tensor, ir.Value)
        return tensor

    def number(self, name: str) -> float:
        number = self.bound[name]
        assert isinstance(number, float)
        return number

    def axes(self, name: str = "axes") -> tuple[int, ...]:
        axes = self.bound[name]
        assert isinstance(axes, tuple)
        return axes


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
        inside: set[ir.Node] = {root}
        stack = [root]
        while stack:
            for value in stack.pop().inputs:
                producer = None if value in ends or scalar(value) is not None else maker(value)
                if producer is not None and producer not in inside and stored(value) is None:  # axes may be shared
                    inside.add(producer)
                    stack.append(producer)
        outputs = {output for node in inside - {root} for output in node.outputs} - ends
        return None if any(is_used_outside(output, inside) for output in outputs) else inside


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
    total = as_sum(value)
    if len(total.terms) != len(term.parts):
        return
    for order in permutations(total.terms):
        ways = _bind(term.value, total.constant, bound, value)
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
    reduced = reduction(value, term.name)
    (_, axes), (_, keepdims) = term.attributes
    if reduced is None or not isinstance(axes, str) or bound.get(axes, reduced.axes) != reduced.axes:
        return
    ways = _bind(keepdims, reduced.keepdims, {**bound, axes: reduced.axes}, value)
    yield from _match_all(ways, reduced.x, term.parts[0][0])


def _match_call(value: ir.Value, term: Term, bound: Bound) -> Iterator[Bound]:
    node = value.producer()
    is_own = term.name.startswith(OWN)
    wanted = (DOMAIN if is_own else "", term.name.removeprefix(OWN))
    if node is None or (node.domain, node.op_type) != wanted or len(node.inputs) != len(term.parts):
        return
    bounds = [bound]
    for name, number in term.attributes:
        attribute = node.attributes.get(name)
        bounds = [
            b for old in bounds if attribute is not None for b in _bind(number, float(attribute.value), old, value)
        ]
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


@dataclass(frozen=True)
class Idiom:
    """Spellings of one function. `build` returns the node for a match, or None if the match is not the function."""

    patterns: tuple[Pattern, ...]
    build: Callable[[Match], ir.Node | None]


class Table:
    """Idioms, indexed by the operators that a spelling may end with, so that every node is looked at once."""

    def __init__(self, idioms: Sequence[Idiom]) -> None:
        self.by_root: dict[str, list[tuple[Pattern, Idiom]]] = {}
        for idiom in idioms:
            for pattern in idiom.patterns:
                for root in dict.fromkeys(pattern.root.roots):
                    self.by_root.setdefault(root, []).append((pattern, idiom))

    def rewrite(self, model: ir.Model, users_first: bool = False) -> None:
        """Replace each spelling by the node of the first idiom that matches.

        Producers come before their users, so that a spelling may contain operators that other idioms made. With
        `users_first` it is the other way round, so that a shorter idiom does not take the start of a longer one.
        """
        nodes = all_nodes(model.graph)
        operators: set[str] = set().union(*map(present, nodes))  # few graphs have all operators of a formula
        for node in reversed(nodes) if users_first else nodes:
            if node.graph is None or node.domain != "" or info(node.outputs[0]).dtype not in FLOATS:
                continue
            for pattern, idiom in self.by_root.get(node.op_type, ()):
                match = pattern.match(node) if pattern.operators <= operators else None
                new = idiom.build(match) if match is not None else None
                if new is not None:
                    replace(node, new)
                    operators |= present(new)
                    break


def same_as(match: Match, name: str = "x") -> bool:
    """True if the result has the type and shape of a matched tensor, that is, no constant has broadcast it."""
    x, y = info(match.tensor(name)), info(match.root.outputs[0])
    return x.shape is not None and x.shape == y.shape and x.dtype == y.dtype
