"""LayerNorm and RMSNorm spelled out in elementary operators become LayerNormalization-17 and RMSNormalization-23.

    d = x - mean(x);  d / sqrt(mean(d * d) + eps) * scale + bias          (Ba et al. 2016, arXiv 1607.06450)
    x / sqrt(mean(x * x) + eps) * scale                                   (Zhang & Sennrich 2019, arXiv 1910.07467)

over the last axes. Exporters write the square as Pow or Mul, the division as Div or as Mul by a reciprocal.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.options import Options
from onnxgen.passes.match import made_by, other, reduced_last, scalar, square_of
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.propagate.info import info


def norms(model: ir.Model, options: Options) -> None:
    """Rewrite every spelled-out normalisation that has a scale."""
    for node in list(model.graph.all_nodes()):
        if node.domain == "" and node.op_type in ("Div", "Mul") and node.graph is not None:
            _rewrite(node)


def _rewrite(node: ir.Node) -> None:
    found = _normalised(node)
    if found is None:
        return
    x, axes, epsilon, centred = found
    shape = info(x).shape
    scale_node = only_user(node.outputs[0])
    if shape is None or scale_node is None or scale_node.op_type != "Mul" or scale_node.domain != "":
        return
    scale = other(scale_node, node.outputs[0])
    if scale is None or info(scale).shape != shape[-axes:] or not _is_float32(x):
        return
    last, inputs = scale_node, [x, scale]
    if centred:
        bias_node = only_user(scale_node.outputs[0])
        if bias_node is not None and bias_node.op_type == "Add" and bias_node.domain == "":
            bias = other(bias_node, scale_node.outputs[0])
            if bias is not None and info(bias).shape == shape[-axes:]:
                last, inputs = bias_node, [x, scale, bias]
    name, version = ("LayerNormalization", 17) if centred else ("RMSNormalization", 23)
    attributes = [ir.AttrInt64("axis", -axes), ir.AttrFloat32("epsilon", epsilon)]
    replace(last, ir.Node("", name, inputs, attributes, version=version), origin=node)


def _is_float32(value: ir.Value) -> bool:
    # in half precision the spelled-out form rounds at each step and the fused one does not: left as written
    return info(value).dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _normalised(node: ir.Node) -> tuple[ir.Value, int, float, bool] | None:
    """(x, number of axes, epsilon, is centred) if `node` divides by a root mean square."""
    pairs = [(node.inputs[0], node.inputs[1])]
    if node.op_type == "Mul":
        pairs.append((node.inputs[1], node.inputs[0]))
    for numerator, by in pairs:
        root = by if node.op_type == "Div" else _reciprocal(by)
        sqrt = made_by(root, "Sqrt")
        add = made_by(sqrt.inputs[0], "Add") if sqrt is not None else None
        if add is None or numerator is None:
            continue
        for mean, eps in (add.inputs, reversed(add.inputs)):
            epsilon = scalar(eps)
            reduce = made_by(mean, "ReduceMean")
            if epsilon is None or reduce is None:
                continue
            axes = reduced_last(reduce, info(reduce.inputs[0]).rank)
            squared = square_of(reduce.inputs[0])
            if axes is None or squared is None:
                continue
            x = _centred(numerator, squared, axes)
            if x is not None:
                return x, axes, epsilon, True
            if squared is numerator:
                return numerator, axes, epsilon, False
    return None


def _reciprocal(value: ir.Value | None) -> ir.Value | None:
    """y, if a value is 1 / y."""
    node = made_by(value, "Reciprocal", "Div")
    if node is None:
        return None
    if node.op_type == "Reciprocal":
        return node.inputs[0]
    return node.inputs[1] if scalar(node.inputs[0]) == 1.0 else None


def _centred(numerator: ir.Value, squared: ir.Value, axes: int) -> ir.Value | None:
    """x, if both values are x minus its mean over the last axes (exporters may write the difference twice)."""
    found = []
    for value in (numerator, squared):
        sub = made_by(value, "Sub")
        mean = made_by(sub.inputs[1], "ReduceMean") if sub is not None else None
        if sub is None or mean is None or mean.inputs[0] is not sub.inputs[0]:
            return None
        if reduced_last(mean, info(mean.inputs[0]).rank) != axes:
            return None
        found.append(sub.inputs[0])
    return found[0] if found[0] is found[1] else None
