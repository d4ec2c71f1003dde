"""GELU spelled out becomes Gelu-20 (Hendrycks & Gimpel 2016, arXiv 1606.08415).

    0.5 * x * (1 + erf(x / sqrt(2)))
    0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))

The factors come in any order and association.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxgen.options import Options
from onnxgen.passes.match import factors, is_number, made_by, other
from onnxgen.passes.rewrite import replace


def gelu(model: ir.Model, options: Options) -> None:
    """Rewrite every product that is a GELU."""
    for node in list(model.graph.all_nodes()):
        if node.op_type == "Mul" and node.domain == "" and node.graph is not None:
            found = _gelu(node)
            if found is not None:
                x, approximate = found
                attributes = [ir.AttrString("approximate", approximate)]
                replace(node, ir.Node("", "Gelu", [x], attributes, version=20))


def _gelu(node: ir.Node) -> tuple[ir.Value, str] | None:
    leaves = factors(node.outputs[0])
    if len(leaves) != 3:
        return None
    for x in leaves:
        rest = [leaf for leaf in leaves if leaf is not x]
        if len(rest) != 2:
            continue
        for half, sum_ in (rest, reversed(rest)):
            inner = _one_plus(sum_)
            if inner is None or not is_number(half, 0.5):
                continue
            if _is_erf(inner, x):
                return x, "none"
            if _is_tanh(inner, x):
                return x, "tanh"
    return None


def _one_plus(value: ir.Value) -> ir.Value | None:
    """y, if a value is 1 + y."""
    node = made_by(value, "Add")
    if node is None:
        return None
    for one, y in (node.inputs, reversed(node.inputs)):
        if is_number(one, 1.0):
            return y
    return None


def _is_erf(value: ir.Value, x: ir.Value) -> bool:
    erf = made_by(value, "Erf")
    scaled = made_by(erf.inputs[0], "Div", "Mul") if erf is not None else None
    if scaled is None:
        return False
    if scaled.op_type == "Div":
        return scaled.inputs[0] is x and is_number(scaled.inputs[1], math.sqrt(2))
    return x in scaled.inputs and is_number(other(scaled, x), math.sqrt(0.5))


def _is_tanh(value: ir.Value, x: ir.Value) -> bool:
    tanh = made_by(value, "Tanh")
    if tanh is None or tanh.inputs[0] is None:
        return False
    leaves = factors(tanh.inputs[0])
    for scale in leaves:
        rest = [leaf for leaf in leaves if leaf is not scale]
        if is_number(scale, math.sqrt(2 / math.pi)) and len(rest) == 1:
            return _is_cubic(rest[0], x)
        # x * sqrt(2/pi) * (1 + 0.044715 * x * x)
        if is_number(scale, math.sqrt(2 / math.pi)) and len(rest) == 2 and x in rest:
            inner = _one_plus(rest[0] if rest[1] is x else rest[1])
            return inner is not None and _is_power(inner, x, 2)
    return False


def _is_cubic(value: ir.Value, x: ir.Value) -> bool:
    """x + 0.044715 * x**3"""
    add = made_by(value, "Add")
    if add is None or x not in add.inputs:
        return False
    cube = other(add, x)
    return cube is not None and _is_power(cube, x, 3)


def _is_power(value: ir.Value, x: ir.Value, exponent: int) -> bool:
    """0.044715 * x**exponent"""
    leaves = factors(value)
    numbers = [leaf for leaf in leaves if is_number(leaf, 0.044715)]
    count = 0
    for leaf in leaves:
        power = made_by(leaf, "Pow")
        if leaf is x:
            count += 1
        elif power is not None and power.inputs[0] is x and is_number(power.inputs[1], exponent):
            count += exponent
        elif leaf not in numbers:
            return False
    return len(numbers) == 1 and count == exponent
