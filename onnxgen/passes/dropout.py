"""Dropout spelled out: `x` times random zeros and ones, divided by how many ones there are.

PyTorch's dynamo exporter writes an in-place Dropout so, while training (torch 2.13); any other it writes as the
operator. Noise of another shape than that of `x`, as for stochastic depth, drops something else and stays as it is.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.options import Options
from onnxgen.passes.idioms import Idiom, Table
from onnxgen.passes.pattern import Match, Pattern
from onnxgen.propagate.info import Info, info, set_info


def dropout(model: ir.Model, options: Options) -> None:
    """Rewrite every such product to the standard's Dropout."""
    IDIOMS.rewrite(model)


def _dropout(match: Match) -> ir.Node | None:
    x, like = info(match.tensor("x")), info(match.tensor("e"))
    keep, scale = match.number("keep"), match.number("scale")
    if x.shape is None or x.shape != like.shape or not 0 < keep <= 1 or abs(keep * scale - 1) > 1e-6:
        return None
    if any("seed" in node.attributes for node in match.inside):
        return None
    ratio = ir.Value(name="ratio", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]))
    set_info(ratio, Info(ir.DataType.FLOAT, (), np.asarray(_complement(keep), np.float32)))
    return ir.Node("", "Dropout", [match.tensor("x"), ratio], version=13)


def _complement(keep: float) -> float:
    """1 - keep as a person writes it, where that is the number that the exporter subtracted from 1."""
    short = round(1 - keep, 6)
    return short if np.float32(1 - short) == np.float32(keep) else 1 - keep


SPELLED = Pattern("scale * x * Cast(Less(RandomUniformLike(e, low=0, high=1), keep))")
IDIOMS = Table([Idiom((SPELLED,), _dropout)])
