"""Dropout spelled out: `x` times random zeros and ones, divided by the share of ones.

PyTorch's dynamo exporter writes an in-place Dropout like this in training mode (torch 2.13); it writes others as the
operator. Noise with one number for each sample, or one for all, is stochastic depth: torchvision and timm write it with
a comparison, older timm with `floor` (both exporters). Noise of any other shape drops something else and is left alone.
The layers drop in training mode only, as in the network that was exported.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.options import Options
from onnxgen.passes.idioms import Idiom, Table, same_as
from onnxgen.passes.pattern import Match, Pattern
from onnxgen.passes.rewrite import own
from onnxgen.shapes.info import Info, info, set_info


def dropout(model: ir.Model, options: Options) -> None:
    """Rewrite every such product to the standard's Dropout, or to `onnxgen.StochasticDepth`."""
    IDIOMS.rewrite(model)


def _dropout(match: Match) -> ir.Node | None:
    x, noise = info(match.tensor("x")), info(match.tensor("e"))
    if x.shape is None or x.shape != noise.shape or not _is_noise(match):
        return None
    ratio = ir.Value(name="ratio", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]))
    set_info(ratio, Info(ir.DataType.FLOAT, (), np.asarray(_complement(match.number("keep")), np.float32)))
    return ir.node("Dropout", [match.tensor("x"), ratio], version=13)


def _stochastic_depth(match: Match) -> ir.Node | None:
    x, noise = info(match.tensor("x")).shape, info(match.tensor("e")).shape
    if not x or noise is None or not _is_noise(match):
        return None
    ones = (1,) * (len(x) - 1)
    mode = {(x[0], *ones): "row", (1, *ones): "batch"}.get(noise)
    if mode is None or not same_as(match):
        return None
    return own("StochasticDepth", [match.tensor("x")], p=_complement(match.number("keep")), mode=mode)


def _is_noise(match: Match) -> bool:
    """True if the scale keeps the mean despite the dropped elements, and the noise differs at each call (no seed)."""
    keep, scale = match.number("keep"), match.number("scale")
    if any("seed" in node.attributes for node in match.inside) or not 0 < keep <= 1:
        return False
    (drawn,) = (node.attributes for node in match.inside if node.op_type == "RandomUniformLike")
    bounds = drawn.get_float("low", 0.0), drawn.get_float("high", 1.0)
    return bounds == (0.0, 1.0) and abs(keep * scale - 1) <= 1e-6


def _complement(keep: float) -> float:
    """Return 1 - keep, rounded to 6 digits if the exporter may have subtracted the rounded number."""
    short = round(1 - keep, 6)
    return short if np.float32(1 - short) == np.float32(keep) else 1 - keep


SPELLED = Pattern("scale * x * Cast(Less(RandomUniformLike(e), keep))")
FLOORED = Pattern("scale * x * Floor(RandomUniformLike(e) + keep)")
IDIOMS = Table([Idiom((SPELLED,), _dropout), Idiom((SPELLED, FLOORED), _stochastic_depth)])
