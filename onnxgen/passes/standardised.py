"""BatchNormalization by the statistics of its own input, which nobody keeps.

    F.batch_norm(x, None, None, weight, bias, training=True)

It is a BatchNorm without running statistics, or it standardises a weight (Qiao et al. 2019, arXiv 1903.10520), as in
NFNet and ResNetV2: the weight as one sample, [1, out, -1]. The legacy exporter computes the statistics beside the norm,
from a folded copy of the weight, and stores the weight as the norm takes it. Its own shape is the convolution's.
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
from onnxgen.passes.rewrite import only_user, own, replace
from onnxgen.passes.steps import input_at
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored


def standardised(model: ir.Model, options: Options) -> None:
    """Rewrite every such norm to `onnxgen.Standardize`."""
    for node in standard_nodes(model, "BatchNormalization"):
        statistics = [input_at(node, 3), input_at(node, 4)]
        if node.attributes.get_int("training_mode", 0) != 1 or any(stored(v) is not None for v in statistics):
            continue
        if any(o.uses() or o.is_graph_output() for o in node.outputs[1:]):
            continue
        x, scale, bias = node.inputs[:3]
        last, shape = _reshaped(node, x)
        attributes: dict[str, Any] = {"epsilon": node.attributes.get_float("epsilon", 1e-5)}
        attributes |= {"shape": shape} if shape else {}
        inputs = [x, None if uniform(scale) == 1 else scale, None if uniform(bias) == 0 else bias]
        replace(last, own("Standardize", inputs, **attributes), node)


def _reshaped(node: ir.Node, x: ir.Value | None) -> tuple[ir.Node, list[int]]:
    """Return the Reshape after the norm of a stored weight, and the weight's own shape; else the norm and no shape."""
    reshape = only_user(node.outputs[0])
    before, after = info(x).shape or (), () if reshape is None else info(reshape.outputs[0]).shape or ()
    shape = [d for d in after if isinstance(d, int)]
    alone = x is not None and stored(x) is not None and is_trained(x) and only_user(x) is node
    if (
        reshape is None
        or not is_a(reshape, RESHAPE)
        or not alone
        or len(before) != 3
        or len(shape) != len(after)
        or len(shape) < 2
    ):
        return node, []
    fits = before == (1, shape[0], math.prod(shape[1:]))
    return (reshape, shape) if fits else (node, [])
