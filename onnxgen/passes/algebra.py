"""Values as sums and products: the forms in which the order, grouping and spelling of arithmetic no longer matter.

    (x + 3) / 6,  (3 + x) * (1 / 6)                   one product: 1/6, [sum: 3, [x]]
    d / sqrt(v),  d * reciprocal(sqrt(v)),  d * v ** -0.5     one product: 1, [d, v ** -0.5]
    relu(max(x, c)),  min(max(x, 0), 6)               one clamp of x

A value that something else uses too is not looked into: it is a factor, or a term, of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.passes.match import scalar
from onnxgen.passes.rewrite import only_user

DEEPEST = 8  # longer sums and products are no idiom's
POWERS = (-1.0, -0.5, 0.5, 2.0, 3.0)


@dataclass
class Product:
    """`coefficient * factor ** power * ...`; equal factors with whole positive powers are one."""

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
    """A value as a product; one that is none is the product of itself alone."""
    made = Product()
    stack = [(value, 1.0)]
    steps = 0
    while stack:
        top, power = stack.pop()
        number = scalar(top) if top is not value else None
        if number is not None and number != 0 and power in (1.0, -1.0):
            made.coefficient *= number**power
            continue
        inside = _factors(top, power) if steps < DEEPEST and (top is value or only_user(top) is not None) else None
        if inside is None:
            made.times(top, power)
            continue
        steps += 1
        coefficient, parts = inside
        made.coefficient *= coefficient
        stack.extend(reversed(parts))
    return made


def _factors(value: ir.Value, power: float) -> tuple[float, list[tuple[ir.Value, float]]] | None:
    """(coefficient, factors) that the node that made a value multiplies, to a power of 1 or -1; None if it does not.

    No power is taken of a power: `(x ** 2) ** 0.5` is no x.
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
    """A value as a sum; one that is none is the sum of itself alone."""
    made = Sum()
    stack = [(value, 1)]
    steps = 0
    while stack:
        top, sign = stack.pop()
        number = scalar(top) if top is not value else None
        if number is not None:
            made.constant += sign * number
            continue
        node = made_by(top, "Add", "Sub", "Neg") if top is value or only_user(top) is not None else None
        if node is None or steps >= DEEPEST or None in node.inputs:
            made.terms.append((top, sign))
            continue
        steps += 1
        signs = {"Add": (sign, sign), "Sub": (sign, -sign), "Neg": (-sign,)}[node.op_type]
        stack.extend(reversed([(v, s) for v, s in zip(node.inputs, signs) if v is not None]))
    return made


def as_clamp(value: ir.Value) -> tuple[ir.Value, float, float]:
    """(x, low, high), if a value is `min(max(x, low), high)` in any spelling; itself between infinities if not."""
    steps: list[tuple[float, float]] = []
    x = value
    while len(steps) < DEEPEST and (x is value or only_user(x) is not None):
        found = _bounds(x)
        if found is None:
            break
        x, low, high = found
        steps.append((low, high))
    low, high = -math.inf, math.inf
    for least, most in reversed(steps):
        if least > high or most < low or least > most:
            return value, -math.inf, math.inf
        low, high = max(low, least), min(high, most)
    return x, low, high


def _bounds(value: ir.Value) -> tuple[ir.Value, float, float] | None:
    node = made_by(value, "Relu", "Clip", "Max", "Min")
    x = node.inputs[0] if node is not None else None
    if node is None or x is None:
        return None
    if node.op_type == "Relu":
        return x, 0.0, math.inf
    if node.op_type == "Clip":
        low, high = (_bound(node, index, name) for index, name in ((1, "min"), (2, "max")))
        if low is None or high is None:
            return None
        return x, max(low, -math.inf), high
    if len(node.inputs) != 2:
        return None
    for tensor, bound in (node.inputs, tuple(reversed(node.inputs))):
        number = scalar(bound)
        if number is not None and tensor is not None:
            return (tensor, number, math.inf) if node.op_type == "Max" else (tensor, -math.inf, number)
    return None


def _bound(node: ir.Node, index: int, name: str) -> float | None:
    """A bound of Clip, infinite where there is none; None if it is computed."""
    if name in node.attributes:  # up to opset 10, where float32's range is the default
        number = float(node.attributes[name].value)
        return number if abs(number) < 3.4e38 else math.copysign(math.inf, number)
    given = node.inputs[index] if index < len(node.inputs) else None
    return scalar(given) if given is not None else math.copysign(math.inf, index - 1.5)
