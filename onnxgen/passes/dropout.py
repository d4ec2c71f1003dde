"""Dropout spelled out: `x` times random zeros and ones, divided by how many ones there are.

PyTorch's dynamo exporter writes an in-place Dropout so, while training (torch 2.13); any other it writes as the
operator. Noise with one number a sample, or one in all, is stochastic depth, which torchvision and timm write with a
comparison, and older timm with `floor` (both exporters). Noise of any other shape drops something else, and stays. All
of it is at work while training, as it was in the network that was exported.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.options import Options
from onnxgen.passes.idioms import Idiom, Table, same_as
from onnxgen.passes.pattern import Match, Pattern
from onnxgen.shapes.info import Info, info, set_info


def dropout(model: ir.Model, options: Options) -> None:
    """Rewrite every such product to the standard's Dropout, or to `onnxgen.StochasticDepth`."""
    IDIOMS.rewrite(model)


def _dropout(match: Match) -> ir.Node | None:
    x, like = info(match.tensor("x")), info(match.tensor("e"))
    keep = match.number("keep")
    if x.shape is None or x.shape != like.shape or not _is_noise(match):
        return None
    ratio = ir.Value(name="ratio", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]))
    set_info(ratio, Info(ir.DataType.FLOAT, (), np.asarray(_complement(keep), np.float32)))
    return ir.Node("", "Dropout", [match.tensor("x"), ratio], version=13)


def _stochastic_depth(match: Match) -> ir.Node | None:
    x, noise = info(match.tensor("x")).shape, info(match.tensor("e")).shape
    if not x or noise is None or len(x) != len(noise) or not _is_noise(match):
        return None
    ones = (1,) * (len(x) - 1)
    mode = {(x[0], *ones): "row", (1, *ones): "batch"}.get(noise)
    if mode is None or not same_as(match):
        return None
    attributes = [ir.AttrFloat32("p", _complement(match.number("keep"))), ir.AttrString("mode", mode)]
    return ir.Node(DOMAIN, "StochasticDepth", [match.tensor("x")], attributes, version=1)


def _is_noise(match: Match) -> bool:
    """Whether what is kept is scaled up by as much as is dropped on average; seeded noise is the same at each call."""
    keep, scale = match.number("keep"), match.number("scale")
    if any("seed" in node.attributes for node in match.inside) or not 0 < keep <= 1:
        return False
    (drawn,) = (node for node in match.inside if node.op_type == "RandomUniformLike")
    bounds = [drawn.attributes[n].value if n in drawn.attributes else d for n, d in (("low", 0.0), ("high", 1.0))]
    return bounds == [0.0, 1.0] and abs(keep * scale - 1) <= 1e-6


def _complement(keep: float) -> float:
    """1 - keep as a person writes it, where that is the number that the exporter subtracted from 1."""
    short = round(1 - keep, 6)
    return short if np.float32(1 - short) == np.float32(keep) else 1 - keep


SPELLED = Pattern("scale * x * Cast(Less(RandomUniformLike(e), keep))")
FLOORED = Pattern("scale * x * Floor(RandomUniformLike(e) + keep)")
IDIOMS = Table([Idiom((SPELLED,), _dropout), Idiom((SPELLED, FLOORED), _stochastic_depth)])
