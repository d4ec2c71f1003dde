"""A Mul and an Add with learned numbers are one layer, `onnxgen.Affine(x, scale, bias)`, if there are several.

PaddleOCR's networks have one behind each convolution and activation (LearnableAffineBlock of PP-HGNet and PP-LCNetV3).
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import VARIES, is_trained
from onnxgen.options import Options
from onnxgen.passes.match import other, standard_nodes
from onnxgen.passes.rewrite import only_user, own, replace
from onnxgen.passes.trainable import stored_values
from onnxgen.scopes.origin import param_path
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
        if add is None or scale is None or x is None or bias is None or scale is bias or not _is_learned(bias):
            continue
        rank = info(x).rank or 0
        # the layer's numbers have one axis, and a number of more axes than x gives its axes to the result
        if rank and all((info(number).rank or 0) <= rank for number in (scale, bias)):
            found.append((add, node, [x, scale, bias]))
    if found:
        paths = [path for value in stored_values(model.graph) if (path := param_path(value.name or "")) is not None]
        found = [one for one in found if not any(_is_of_block(number, paths) for number in one[2][1:])]
    for add, node, inputs in found if len(found) >= LEAST else ():
        replace(add, own("Affine", inputs), origin=node)


def _is_learned(value: ir.Value | None) -> bool:
    if value is None or value.is_graph_output() or len(value.uses()) != 1:
        return False
    return bool(VARIES.get(value)) and is_trained(value) and info(value).rank is not None


def _is_of_block(number: ir.Value, paths: list[ModulePath]) -> bool:
    """True for a number whose name places it beside other layers of a module: `blocks.0.scale`, `blocks.0.conv.weight`.

    It is a parameter of that module. A name that only counts (`constant.177`) places nothing.
    """
    path = param_path(number.name or "")
    if path is None or path[-1].isdigit():
        return False
    around = path[:-1]
    return any(other[: len(around)] == around and len(other) > len(path) for other in paths)
