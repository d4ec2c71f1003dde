"""Layers whose input is quantised at run time: the product in integers, its scales and its bias are one node.

    DynamicQuantizeLinear, MatMulInteger, Cast, Mul by both scales, Add   is   onnxgen.DynamicLinear
    DynamicQuantizeLinear, ConvInteger, Add, Cast, Mul by both scales     is   onnxgen.DynamicConv

onnxruntime's `quantize_dynamic` writes these. Several layers may share a quantised input: then each quantises it.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.options import Options
from onnxgen.passes.match import other, standard_nodes
from onnxgen.passes.rewrite import only_user, own, replace
from onnxgen.weights.stored import stored

BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


@dataclass
class _Layer:
    """A product of integers, the nodes behind it that belong to the layer, and its tensors."""

    product: ir.Node
    last: ir.Node
    x: ir.Value | None
    scale: ir.Value
    bias: ir.Value | None = None
    rounded: bool = False


def dynamic(model: ir.Model, options: Options) -> None:
    """Make one node of every layer whose weights are stored and whose scales are numbers."""
    for node in standard_nodes(model, "MatMulInteger", "ConvInteger"):
        weight, layer = stored(node.inputs[1]), _layer(node)
        if weight is None or weight.dtype not in BYTES or layer is None:
            continue
        inputs = [layer.x, node.inputs[1], layer.scale, _zero(node), layer.bias]
        while inputs[-1] is None:
            inputs.pop()
        is_matrix, sizes = node.op_type == "MatMulInteger", [_size(value) for value in inputs[2:4]]
        if is_matrix and len(weight.shape) == 2 and all(n in (None, 1, weight.shape[1]) for n in sizes):
            replace(layer.last, own("DynamicLinear", inputs), origin=node)
        elif not is_matrix and len(weight.shape) > 2 and all(n in (None, 1) for n in sizes) and _is_plain(node):
            attributes = {
                name: a.value for name, a in node.attributes.items() if name not in ("auto_pad", "kernel_shape")
            }
            replace(layer.last, own("DynamicConv", inputs, rounded=int(layer.rounded), **attributes), origin=node)


def _zero(product: ir.Node) -> ir.Value | None:
    """Return the zero point of a product's weight, unless it is 0."""
    zero = product.inputs[3] if len(product.inputs) > 3 else None
    tensor = stored(zero)
    return None if tensor is not None and not tensor.numpy().any() else zero


def _size(value: ir.Value | None) -> int | None:
    tensor = stored(value)
    return None if value is None else -1 if tensor is None or len(tensor.shape) > 1 else int(tensor.size)


def _is_plain(node: ir.Node) -> bool:
    """Return True if one number for each axis says how a convolution pads."""
    pads = node.attributes.get_ints("pads", [])
    half = len(pads) // 2
    return node.attributes.get_string("auto_pad", "NOTSET") == "NOTSET" and list(pads[:half]) == list(pads[half:])


def _layer(product: ir.Node) -> _Layer | None:
    """Return the layer that a product of a quantised input belongs to."""
    quantised = made_by(product.inputs[0], "DynamicQuantizeLinear")
    zero = product.inputs[2] if len(product.inputs) > 2 else None
    if quantised is None or product.inputs[0] is not quantised.outputs[0] or zero is not quantised.outputs[2]:
        return None
    step, total, rounded = quantised.outputs[1], product.outputs[0], None
    if (added := only_user(total, "Add")) is not None:
        rounded, total = _rounded_bias(other(added, total), step), added.outputs[0]
        if rounded is None:
            return None
    cast = only_user(total, "Cast")
    scaled = None if cast is None else only_user(cast.outputs[0], "Mul")
    if cast is None or scaled is None or cast.attributes.get_int("to", 0) != ir.DataType.FLOAT:
        return None
    scale = _weight_scale(other(scaled, cast.outputs[0]), step)
    if scale is None or rounded is not None and scale is not rounded[1]:
        return None
    layer = _Layer(product, scaled, quantised.inputs[0], scale)
    if rounded is not None:
        layer.bias, layer.rounded = rounded[0], True
    elif (last := only_user(scaled.outputs[0], "Add")) is not None:
        bias = _channels(other(last, scaled.outputs[0]), product)
        layer.bias, layer.last = bias, last if bias is not None else scaled
    return layer


def _weight_scale(value: ir.Value | None, step: ir.Value) -> ir.Value | None:
    """Return the stored scale of a weight, if a value is its product with the scale of the input."""
    node = made_by(value, "Mul")
    scale = other(node, step) if node is not None and step in node.inputs else None
    tensor = stored(scale)
    return scale if tensor is not None and tensor.dtype == ir.DataType.FLOAT else None


def _rounded_bias(value: ir.Value | None, step: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Return a stored bias that is divided by both scales and rounded down, and the scale of the weight."""
    reshaped = made_by(value, "Reshape")
    cast = made_by(value if reshaped is None else reshaped.inputs[0], "Cast")
    floor = None if cast is None else made_by(cast.inputs[0], "Floor")
    quotient = None if floor is None else made_by(floor.inputs[0], "Div")
    if cast is None or quotient is None or cast.attributes.get_int("to", 0) != ir.DataType.INT32:
        return None
    bias, scale = quotient.inputs[0], _weight_scale(quotient.inputs[1], step)
    tensor = stored(bias)
    if bias is None or scale is None or tensor is None or len(tensor.shape) != 1:
        return None
    return bias, scale


def _channels(value: ir.Value | None, product: ir.Node) -> ir.Value | None:
    """Return the stored vector that a value is, if it has one number for each channel of a product's result."""
    weight, is_matrix = stored(product.inputs[1]), product.op_type == "MatMulInteger"
    if weight is None:
        return None
    count = weight.shape[1 if is_matrix else 0]
    if not is_matrix:
        reshaped = made_by(value, "Reshape")
        target = None if reshaped is None else stored(reshaped.inputs[1])
        axes = [1] * (len(weight.shape) - 2)
        if reshaped is None or target is None or target.numpy().tolist() not in ([1, -1, *axes], [1, count, *axes]):
            return None
        value = reshaped.inputs[0]
    vector = stored(value)
    is_float = vector is not None and vector.dtype == ir.DataType.FLOAT
    return value if vector is not None and is_float and list(vector.shape) == [count] else None
