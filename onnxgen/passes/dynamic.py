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
from onnxgen.passes.match import other, source_of, standard_nodes
from onnxgen.passes.rewrite import input_at, only_user, own, replace, without_last
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
        inputs = without_last([layer.x, node.inputs[1], layer.scale, _zero(node), layer.bias])
        is_matrix, sizes = node.op_type == "MatMulInteger", {_size(value) for value in inputs[2:4]}
        if is_matrix and len(weight.shape) == 2 and sizes <= {None, 1, weight.shape[1]}:
            replace(layer.last, own("DynamicLinear", inputs), origin=node)
        elif not is_matrix and len(weight.shape) > 2 and sizes <= {None, 1} and _is_plain(node):
            attributes = {key: a.value for key, a in node.attributes.items() if key not in ("auto_pad", "kernel_shape")}
            replace(layer.last, own("DynamicConv", inputs, rounded=int(layer.rounded), **attributes), origin=node)


def _quantised_input(product: ir.Node) -> ir.Node | None:
    node = made_by(product.inputs[0], "DynamicQuantizeLinear")
    is_whole = node is not None and [product.inputs[0], input_at(product, 2)] == [node.outputs[0], node.outputs[2]]
    return node if is_whole else None


def _zero(product: ir.Node) -> ir.Value | None:
    """Return the zero point of a product's weight, unless it is 0."""
    zero = input_at(product, 3)
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
    quantised = _quantised_input(product)
    if quantised is None:
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
    if rounded is not None:
        return _Layer(product, scaled, quantised.inputs[0], scale, rounded[0], rounded=True)
    last = only_user(scaled.outputs[0], "Add")
    bias = None if last is None else _channels(other(last, scaled.outputs[0]), product)
    return _Layer(product, scaled if bias is None or last is None else last, quantised.inputs[0], scale, bias)


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
    quotient = None if cast is None else made_by(source_of(cast.inputs[0], "Floor"), "Div")
    if cast is None or quotient is None or cast.attributes.get_int("to", 0) != ir.DataType.INT32:
        return None
    bias, scale = quotient.inputs[0], _weight_scale(quotient.inputs[1], step)
    tensor = stored(bias)
    return (bias, scale) if bias and scale and tensor is not None and len(tensor.shape) == 1 else None


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
