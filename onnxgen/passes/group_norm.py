"""GroupNorm as exporters spell it becomes GroupNormalization-21 (Wu & He 2018, arXiv 1803.08494).

    Reshape to [N, groups, -1]; InstanceNormalization with scale 1 and bias 0; Reshape back; Mul by a scale; Add a bias

with scale and bias of shape [C, 1, 1], or without both.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.annotations import is_trained
from onnxgen.graph.nodes import all_nodes, made_by
from onnxgen.options import Options
from onnxgen.passes.match import other
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.passes.steps import filled, flattened
from onnxgen.shapes.info import Shape, info
from onnxgen.weights.stored import stored


def group_norm(model: ir.Model, options: Options) -> None:
    """Rewrite every spelled-out GroupNorm."""
    for node in all_nodes(model.graph):
        if node.op_type == "InstanceNormalization" and node.domain == "" and node.graph is not None:
            _rewrite(node)


def _rewrite(node: ir.Node) -> None:
    before, groups = made_by(node.inputs[0], "Reshape"), _groups(node)
    after = only_user(node.outputs[0])
    if before is None or groups is None or after is None or after.op_type != "Reshape":
        return
    x, shape, grouped = before.inputs[0], info(after.outputs[0]).shape, info(before.outputs[0]).shape
    if x is None or shape is None or info(x).shape != shape or len(shape) < 3 or not isinstance(shape[1], int):
        return
    if grouped is None or grouped[:2] != (shape[0], groups) or shape[1] % groups:
        return
    last, inputs = _affine(after, shape, info(x).dtype or ir.DataType.FLOAT)
    epsilon = node.attributes["epsilon"].value if "epsilon" in node.attributes else 1e-5
    attributes = [ir.AttrInt64("num_groups", groups), ir.AttrFloat32("epsilon", epsilon)]
    replace(last, ir.Node("", "GroupNormalization", [x, *inputs], attributes, version=21), origin=node)


def _affine(after: ir.Node, shape: Shape, dtype: ir.DataType) -> tuple[ir.Node, list[ir.Value]]:
    """(the last node of the norm, its scale and bias): ones and zeros where it has none, or only such."""
    channels = [d for d in shape[1:2] if isinstance(d, int)]
    scale_node = only_user(after.outputs[0])
    bias_node = only_user(scale_node.outputs[0]) if scale_node is not None else None
    if scale_node is not None and bias_node is not None and (scale_node.op_type, bias_node.op_type) == ("Mul", "Add"):
        scale, bias = other(scale_node, after.outputs[0]), other(bias_node, scale_node.outputs[0])
        affine = (*shape[1:2], *[1] * (len(shape) - 2))
        if _is_all(scale, 1) and _is_all(bias, 0) and info(bias_node.outputs[0]).shape == shape:
            return bias_node, [filled(bias_node, channels, n, dtype) for n in (1, 0)]
        if scale is not None and bias is not None and _trimmed(scale) == affine == _trimmed(bias):
            return bias_node, [flattened(scale, bias_node), flattened(bias, bias_node)]
    return after, [filled(after, channels, n, dtype) for n in (1, 0)]


def _is_all(value: ir.Value | None, number: float) -> bool:
    constant = info(value).constant
    if constant is None and value is not None and not is_trained(value):
        tensor = stored(value)
        constant = tensor.numpy() if tensor is not None else None
    return constant is not None and bool((constant == number).all())


def _trimmed(value: ir.Value) -> tuple[object, ...] | None:
    """The shape without a leading batch axis of 1."""
    shape = info(value).shape
    return shape[1:] if shape is not None and len(shape) > 3 and shape[0] == 1 else shape


def _groups(node: ir.Node) -> int | None:
    """How many groups, if scale and bias are constant ones and zeros."""
    scale, bias = (info(i).constant for i in node.inputs[1:3])
    if scale is None or bias is None or not bool((scale == 1).all()) or bool(bias.any()):
        return None
    return int(scale.size)
