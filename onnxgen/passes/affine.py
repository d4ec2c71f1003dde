"""A Mul and an Add with learned numbers are one layer, `onnxgen.Affine(x, scale, bias)`, if there are several.

PaddleOCR's networks have one behind each convolution and activation (LearnableAffineBlock of PP-HGNet and PP-LCNetV3).
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.annotations import VARIES, is_trained
from onnxgen.options import Options
from onnxgen.passes.match import other, standard_nodes
from onnxgen.passes.rewrite import only_user, own, replace
from onnxgen.shapes.info import info

LEAST = 2  # layers


def affine(model: ir.Model, options: Options) -> None:
    """Rewrite the products and sums of single numbers that `passes/varying.py` takes for parameters."""
    found = []
    for node in standard_nodes(model, "Mul"):
        scale = next(filter(_is_learned, node.inputs), None)
        add = only_user(node.outputs[0], "Add")
        bias = None if add is None else other(add, node.outputs[0])
        x = None if scale is None else other(node, scale)
        if add is not None and scale is not None and x is not None and bias is not None and _is_learned(bias):
            if info(x).rank and scale is not bias:
                found.append((add, node, [x, scale, bias]))
    for add, node, inputs in found if len(found) >= LEAST else ():
        replace(add, own("Affine", inputs), origin=node)


def _is_learned(value: ir.Value | None) -> bool:
    return value is not None and bool(VARIES.get(value)) and is_trained(value) and len(value.uses()) == 1
