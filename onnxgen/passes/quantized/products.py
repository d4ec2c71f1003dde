"""Rewrite integer products that are cast and scaled afterwards as products of floats.

    Mul(Cast(MatMulInteger(a, b, a_zero, b_zero)), Mul(a_scale, b_scale))
        = MatMul(DequantizeLinear(a, a_scale, a_zero), DequantizeLinear(b, b_scale, b_zero))

onnxruntime's dynamic quantisation writes the former. There `a` comes from a DynamicQuantizeLinear.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.element_types import FLOATS
from onnxgen.graph.nodes import all_nodes
from onnxgen.passes.quantized.scales import elements, same
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.passes.steps import input_at, insert
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored

FLOAT_PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}


def products(model: ir.Model) -> None:
    """Rewrite every integer product whose scales are found."""
    for node in all_nodes(model.graph):
        if node.op_type in FLOAT_PRODUCTS and node.domain == "" and len(node.outputs[0].uses()) == 1:
            _rewrite(node)


def _rewrite(node: ir.Node) -> None:
    cast = only_user(node.outputs[0])
    scaled = only_user(cast.outputs[0]) if cast is not None and cast.op_type == "Cast" else None
    if cast is None or scaled is None or scaled.op_type != "Mul" or cast.attributes["to"].as_int() not in FLOATS:
        return
    factor = scaled.inputs[1] if scaled.inputs[0] is cast.outputs[0] else scaled.inputs[0]
    a, b = node.inputs[:2]
    if a is None or b is None or factor is None:
        return
    scales = _factors(factor)
    a_scale = next((s for s in scales if _is_scale_of(s, a)), None)
    others = [s for s in scales if s is not a_scale]
    if a_scale is None or len(others) != 1 or elements(a_scale) != 1 or stored(others[0]) is None:
        return
    axis = (info(b).rank or 1) - 1 if node.op_type == "MatMulInteger" else 0
    left = _dequantised(scaled, a, a_scale, input_at(node, 2), 0)
    right = _dequantised(scaled, b, others[0], input_at(node, 3), axis)
    made = ir.Node("", FLOAT_PRODUCTS[node.op_type], [left, right], node.attributes.values(), version=22)
    replace(scaled, made, origin=node)


def _factors(value: ir.Value) -> list[ir.Value]:
    node = value.producer()
    if node is None or node.op_type != "Mul" or node.domain != "":
        return [value]
    return [f for v in node.inputs if v is not None for f in _factors(v)]


def _is_scale_of(scale: ir.Value, x: ir.Value) -> bool:
    """Return True if `x` was quantised with this scale."""
    node = x.producer()
    if node is None:
        return False
    if node.op_type == "DynamicQuantizeLinear":
        return scale is node.outputs[1]
    return node.op_type == "QuantizeLinear" and same(scale, node.inputs[1])


def _dequantised(before: ir.Node, x: ir.Value, scale: ir.Value, zero: ir.Value | None, axis: int) -> ir.Value:
    node = ir.Node("", "DequantizeLinear", [x, scale, zero], [ir.AttrInt64("axis", axis)], version=21)
    node.outputs[0].name = f"{before.outputs[0].name}:{axis}:{x.name}"
    insert(before, node)
    return node.outputs[0]
