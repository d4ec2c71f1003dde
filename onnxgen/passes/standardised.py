"""BatchNormalization by the statistics of its own input, which nobody keeps.

    F.batch_norm(x, None, None, weight, bias, training=True)

It is a BatchNorm without running statistics, or it standardises a weight (Qiao et al. 2019, arXiv 1903.10520), as in
NFNet and ResNetV2: the weight as one sample, [1, out, -1]. Torch's exporters compute the statistics beside the norm.
The legacy exporter may do so from a folded copy of the weight, and stores the weight as the norm takes it. Its own
shape is the convolution's.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from onnxgen.graph.annotations import is_trained
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.traits import RESHAPE
from onnxgen.options import Options
from onnxgen.passes.match import standard_nodes, uniform
from onnxgen.passes.pattern import Pattern
from onnxgen.passes.rewrite import only_user, own, replace
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored

MEAN = Pattern("ReduceMean(x, axes, 0)")
VARIANCE = Pattern("ReduceMean((x - ReduceMean(x, axes)) ** 2, axes, 0)")


def standardised(model: ir.Model, options: Options) -> None:
    """Rewrite every such norm to `onnxgen.Standardize`."""
    for node in standard_nodes(model, "BatchNormalization"):
        x, scale, bias, mean, variance = node.inputs[:5]
        is_training = node.attributes.get_int("training_mode", 0) == 1
        computed = stored(mean) is None and stored(variance) is None
        if not computed or not (is_training or _is_of(mean, MEAN, x) and _is_of(variance, VARIANCE, x)):
            continue
        if any(o.uses() or o.is_graph_output() for o in node.outputs[1:]):
            continue
        last, weight, shape = _reshaped(node, x)
        attributes: dict[str, Any] = {"epsilon": node.attributes.get_float("epsilon", 1e-5)}
        attributes |= {"shape": shape} if shape else {}
        inputs = [weight, None if uniform(scale) == 1 else scale, None if uniform(bias) == 0 else bias]
        replace(last, own("Standardize", inputs, **attributes), node)


def _is_of(statistic: ir.Value | None, formula: Pattern, x: ir.Value | None) -> bool:
    """Return True if a value is this statistic of each channel of `x`. Half precision would round at each step."""
    maker, facts = None if statistic is None else statistic.producer(), info(x)
    is_exact = facts.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    match = None if maker is None or not is_exact else formula.match(maker)
    return match is not None and match.tensor("x") is x and match.axes() == (0, *range(2, facts.rank or 0))


def _reshaped(node: ir.Node, x: ir.Value | None) -> tuple[ir.Node, ir.Value | None, list[int]]:
    """Return the Reshape after the norm of a stored weight, the weight, and its own shape; else the norm and no shape.

    The weight is stored in its own shape or as the norm takes it.
    """
    reshape = only_user(node.outputs[0])
    weight = _unshaped(x)
    before, after = info(x).shape or (), () if reshape is None else info(reshape.outputs[0]).shape or ()
    shape = [d for d in after if isinstance(d, int)]
    if reshape is None or not is_a(reshape, RESHAPE) or weight is None or len(before) != 3 or len(shape) < 2:
        return node, x, []
    fits = len(shape) == len(after) and before == (1, shape[0], math.prod(shape[1:]))
    return (reshape, weight, shape) if fits and info(weight).shape in (before, after) else (node, x, [])


def _unshaped(x: ir.Value | None) -> ir.Value | None:
    """Return the trained tensor that a value is, perhaps in another shape; else None.

    If it is stored in the other shape, nothing else may use it.
    """
    node = None if x is None else x.producer()
    if node is not None and stored(x) is None and is_a(node, RESHAPE):
        weight = node.inputs[0]
    else:
        weight = x if x is not None and only_user(x) is not None else None
    return weight if weight is not None and stored(weight) is not None and is_trained(weight) else None
