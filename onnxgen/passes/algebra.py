"""Express values as sums, products and clamps: forms that do not depend on order, grouping and spelling.

    (x + 3) / 6,  (3 + x) * (1 / 6)                   one product: 1/6, [sum: 3, [x]]
    d / sqrt(v),  d * reciprocal(sqrt(v)),  d * v ** -0.5     one product: 1, [d, v ** -0.5]
    relu(max(x, c)),  min(max(x, 0), 6)               one clamp of x

A value that is also used elsewhere is not taken apart: it is one factor or one term.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.passes.match import scalar
from onnxgen.passes.rewrite import only_user
from onnxgen.passes.steps import input_at

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
    made = Product()
    stack = [(value, 1.0)]
    nodes = 0
    while stack:
        top, power = stack.pop()
        number = scalar(top) if top is not value else None
        if number is not None and number != 0 and power in (1.0, -1.0):
            made.coefficient *= number**power
            continue
        inside = _factors(top, power) if nodes < MAX_NODES and (top is value or only_user(top) is not None) else None
        if inside is None:
            made.times(top, power)
            continue
        nodes += 1
        coefficient, parts = inside
        made.coefficient *= coefficient
        stack.extend(reversed(parts))
    return made


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
    made = Sum()
    stack = [(value, 1)]
    nodes = 0
    while stack:
        top, sign = stack.pop()
        number = scalar(top) if top is not value else None
        if number is not None:
            made.constant += sign * number
            continue
        node = made_by(top, "Add", "Sub", "Neg") if top is value or only_user(top) is not None else None
        if node is None or nodes >= MAX_NODES or None in node.inputs:
            made.terms.append((top, sign))
            continue
        nodes += 1
        first = -sign if node.op_type == "Neg" else sign
        signs = (first, -sign if node.op_type == "Sub" else sign)
        stack.extend(reversed([(v, s) for v, s in zip(node.inputs, signs) if v is not None]))
    return made


def as_clamp(value: ir.Value) -> tuple[ir.Value, float, float]:
    """Return (x, low, high) of a value that is `min(max(x, low), high)`; else the value, with infinite bounds."""
    steps: list[tuple[float, float]] = []
    x = value
    while len(steps) < MAX_NODES and (x is value or only_user(x) is not None):
        found = _bounds(x)
        if found is None:
            break
        x, *bounds = found
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
    given = input_at(node, index)
    return scalar(given) if given is not None else default
