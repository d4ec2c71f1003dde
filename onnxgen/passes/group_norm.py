"""GroupNorm as exporters spell it becomes GroupNormalization-21 (Wu & He 2018, arXiv 1803.08494).

    Reshape to [N, groups, -1]; InstanceNormalization with scale 1 and bias 0; Reshape back; Mul by a scale; Add a bias

Scale and bias have the shape [C, 1, 1], or both are missing.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.options import Options
from onnxgen.passes.match import other, standard_nodes, trimmed, uniform
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.passes.steps import filled, flattened
from onnxgen.shapes.info import Shape, info


def group_norm(model: ir.Model, options: Options) -> None:
    """Rewrite every spelled-out GroupNorm."""
    for node in standard_nodes(model, "InstanceNormalization"):
        if uniform(node.inputs[1]) == 1 and uniform(node.inputs[2]) == 0:
            _rewrite(node)


def _rewrite(node: ir.Node) -> None:
    before, after = made_by(node.inputs[0], "Reshape"), only_user(node.outputs[0], "Reshape")
    groups = (info(node.inputs[1]).shape or (None,))[0]
    if before is None or after is None or not isinstance(groups, int):
        return
    x, shape, grouped = before.inputs[0], info(after.outputs[0]).shape, info(before.outputs[0]).shape
    if x is None or shape is None or info(x).shape != shape or len(shape) < 3 or not isinstance(shape[1], int):
        return
    if grouped is None or grouped[:2] != (shape[0], groups) or shape[1] % groups:
        return
    last, inputs = _affine(after, shape, shape[1], info(x).dtype or ir.DataType.FLOAT)
    attributes = {"num_groups": groups, "epsilon": node.attributes.get_float("epsilon", 1e-5)}
    replace(last, ir.node("GroupNormalization", [x, *inputs], attributes, version=21), origin=node)


def _affine(after: ir.Node, shape: Shape, channels: int, dtype: ir.DataType) -> tuple[ir.Node, list[ir.Value]]:
    """Return the last node of the norm, its scale and its bias. Missing ones are filled in as ones and zeros."""
    last = after
    product = only_user(after.outputs[0], "Mul")
    total = None if product is None else only_user(product.outputs[0], "Add")
    if product is not None and total is not None:
        scale, bias = other(product, after.outputs[0]), other(total, product.outputs[0])
        wanted = (channels, *[1] * (len(shape) - 2))
        if uniform(scale) == 1 and uniform(bias) == 0 and info(total.outputs[0]).shape == shape:
            last = total
        elif scale is not None and bias is not None:
            if trimmed(scale, len(wanted)) == wanted == trimmed(bias, len(wanted)):
                return total, [flattened(scale, total), flattened(bias, total)]
    return last, [filled(last, [channels], number, dtype) for number in (1, 0)]
