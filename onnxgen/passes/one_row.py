"""A convolution of images with one row is one of sequences.

    Squeeze(Conv(Unsqueeze(x, 2), w), 2)    is    Conv(x, Squeeze(w, 2)), which is an nn.Conv1d

TensorFlow computes Conv1D so, and its converters write it so.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.options import Options
from onnxgen.passes.match import ints, standard_nodes
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.passes.steps import insert, known_ints
from onnxgen.shapes.info import Info, info
from onnxgen.weights.stored import stored

ROW = 2  # the axis of the one row


def one_row(model: ir.Model, options: Options) -> None:
    """Take the row out before every such convolution."""
    for node in standard_nodes(model, "Conv"):
        squeeze = only_user(node.outputs[0], "Squeeze")
        x, weight = node.inputs[:2]
        if squeeze is None or x is None or weight is None or stored(weight) is None or not _has_one_row(node):
            continue
        turned = made_by(x, "Transpose")
        is_new = made_by(x if turned is None else turned.inputs[0], "Unsqueeze") is not None
        if is_new and ints(squeeze, "axes", 1) in ([ROW], [ROW - 4]):
            name = squeeze.outputs[0].name
            inputs = [_without_row(node, x, f"{name}.x"), _without_row(node, weight, f"{name}.w"), *node.inputs[2:]]
            attributes = [_of_columns(attribute) for attribute in node.attributes.values()]
            replace(squeeze, ir.Node("", "Conv", inputs, attributes, version=node.version), origin=node)


def _has_one_row(node: ir.Node) -> bool:
    """True if an image has one row, and the kernel, which neither pads rows nor steps over them."""
    shape, kernel = info(node.inputs[0]).shape, info(node.inputs[1]).shape
    if shape is None or kernel is None or len(shape) != 4 or len(kernel) != 4 or (shape[ROW], kernel[ROW]) != (1, 1):
        return False
    pads = node.attributes.get_ints("pads", [0] * 4)
    return pads[0] == pads[2] == 0


def _of_columns(attribute: ir.Attr) -> ir.Attr:
    if attribute.name not in ("kernel_shape", "strides", "dilations", "pads"):
        return attribute
    return ir.AttrInt64s(attribute.name, attribute.as_ints()[1::2])


def _without_row(node: ir.Node, value: ir.Value, name: str) -> ir.Value:
    made, shape = info(value), info(value).shape or ()
    squeeze = ir.node("Squeeze", [value, known_ints([ROW])], version=13)
    return insert(node, squeeze, name, Info(made.dtype, (*shape[:ROW], *shape[ROW + 1 :])), node)
