"""Dropout spelled out: `x` times random zeros and ones, divided by the share of ones.

PyTorch's dynamo exporter writes an in-place Dropout like this in training mode (torch 2.13), and one of whole channels;
it writes others as the operator. Noise with one number for each sample, or one for all, is stochastic depth:
torchvision and timm write it with a comparison, older timm with `floor`, others with `torch.bernoulli` or
`torch.where`. Noise of any other shape drops something else and is left alone. So is noise that no scale makes up for:
its author may scale in evaluation. The layers drop in training mode only, as in the network that was exported.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import RANDOM
from onnxgen.options import Options
from onnxgen.passes.match import uniform
from onnxgen.passes.pattern import Idiom, Match, Pattern, Table, same_as
from onnxgen.passes.rewrite import own
from onnxgen.shapes.info import Info, info, set_info


def dropout(model: ir.Model, options: Options) -> None:
    """Rewrite every such product to the standard's Dropout, or to `onnxgen.StochasticDepth`."""
    if any(is_a(node, RANDOM) for node in all_nodes(model.graph)):
        IDIOMS.rewrite(model)


def _dropout(match: Match) -> ir.Node | None:
    keep = _kept(match)
    x, noise = info(match.tensor("x")), info(match.tensor("e"))
    if keep is None or x.shape is None or x.shape != noise.shape:
        return None
    ratio = ir.Value(name="ratio", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]))
    set_info(ratio, Info(ir.DataType.FLOAT, (), np.asarray(_complement(keep), np.float32)))
    return ir.node("Dropout", [match.tensor("x"), ratio], version=13)


def _stochastic_depth(match: Match) -> ir.Node | None:
    keep = _kept(match)
    x, noise = info(match.tensor("x")).shape, info(match.tensor("e")).shape
    if keep is None or not x or noise is None or not same_as(match):
        return None
    ones = (1,) * (len(x) - 1)
    modes = {(x[0], *ones): "row", (1, *ones): "batch"}
    if len(x) in FEATURES:
        modes.setdefault((*x[:2], *ones[1:]), "feature")
    mode = modes.get(noise)
    return None if mode is None else own("StochasticDepth", [match.tensor("x")], p=_complement(keep), mode=mode)


def _alpha_dropout(match: Match) -> ir.Node | None:
    """Build `nn.AlphaDropout`: what it drops becomes a number, and mean and variance are kept (arXiv 1706.02515)."""
    keep, x, noise = match.number("keep"), info(match.tensor("x")).shape, info(match.tensor("e")).shape
    if not 0 < keep < 1 or not x or not same_as(match) or noise not in (x, (*x[:2], *[1] * (len(x) - 2))):
        return None
    scale = ((SELU**2 * (1 - keep) + 1) * keep) ** -0.5
    wanted = {"scale": scale, "factor": SELU * scale, "shift": SELU * scale * (1 - keep)}
    if not _draws_anew(match) or any(abs(match.number(k) / v - 1) > 1e-5 for k, v in wanted.items()):
        return None
    mode = "alpha" if noise == x else "feature alpha"
    return own("StochasticDepth", [match.tensor("x")], p=_complement(keep), mode=mode)


def _draws_anew(match: Match) -> bool:
    """True if each call draws other numbers (no seed), from 0 to 1."""
    (drawn,) = (node.attributes for node in match.inside if is_a(node, RANDOM))
    return "seed" not in drawn and (drawn.get_float("low", 0.0), drawn.get_float("high", 1.0)) == (0.0, 1.0)


def _kept(match: Match) -> float | None:
    """Return the share that is kept if the scale makes up for the rest and each call draws anew (no seed)."""
    if not _draws_anew(match):
        return None
    if "z" in match.bound and uniform(match.tensor("z")) != 0:
        return None
    keep = 1 - match.number("lost") if "lost" in match.bound else match.number("keep")
    if any(node.op_type == "Bernoulli" for node in match.inside):  # a share for each element
        keep *= uniform(match.tensor("e")) or 0.0
    return keep if 0 < keep <= 1 and abs(keep * match.number("scale") - 1) <= 1e-6 else None


def _complement(keep: float) -> float:
    """Return 1 - keep, rounded to 6 digits if the exporter may have subtracted the rounded number."""
    short = round(1 - keep, 6)
    return short if np.float32(1 - short) == np.float32(keep) else 1 - keep


FEATURES = (3, 4, 5)  # ranks of the inputs of nn.Dropout1d, nn.Dropout2d, nn.Dropout3d
KEPT = "Less(RandomUniformLike(e), keep) | LessOrEqual(RandomUniformLike(e), keep)"
# Not of Less: what an exporter writes for >= in old opsets
LOST = "Less(RandomUniformLike(e), lost) | LessOrEqual(RandomUniformLike(e), lost)"
ABOVE = f"Greater(RandomUniformLike(e), lost) | GreaterOrEqual(RandomUniformLike(e), lost) | Not({LOST})"
SPELLED = (Pattern(f"scale * x * Cast({KEPT} | {ABOVE})"), Pattern("scale * x * Bernoulli(keep * e)"))
CHOSEN = (Pattern(f"Where({KEPT} | {ABOVE}, scale * x, z)"), Pattern(f"Where({LOST}, z, scale * x)"))
FLOORED = Pattern("scale * x * Floor(RandomUniformLike(e) + keep)")
SELU = 1.7580993408473766  # the number that AlphaDropout puts in the place of what it drops is -SELU
ALPHA = Pattern("scale * x * m + factor * (m - 1) + shift", where={"m": f"Cast({KEPT})"})
IDIOMS = Table(
    [
        Idiom((ALPHA,), _alpha_dropout),
        Idiom((*SPELLED, *CHOSEN), _dropout),
        Idiom((*SPELLED, *CHOSEN, FLOORED), _stochastic_depth),
    ]
)
