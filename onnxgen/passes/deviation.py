"""The unbiased variance and standard deviation, spelled out, become torch's `var` and `std`.

    mean((x - mean(x)) ** 2) * n / (n - 1)            n: the number of elements that are averaged

The variance divided by n is left alone: it is more often a step of a norm that was written out.
"""

from __future__ import annotations

from functools import partial

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.options import Options
from onnxgen.passes.idioms import Idiom, Table
from onnxgen.passes.match import is_close
from onnxgen.passes.pattern import Match, Pattern
from onnxgen.passes.rewrite import own
from onnxgen.shapes.dims import product
from onnxgen.shapes.info import info

MEAN = "ReduceMean((x - ReduceMean(x, axes)) ** 2, axes, keep)"
STATIC, DYNAMIC = f"ratio * {MEAN}", f"n * {MEAN} / (n - 1)"


def _build(op_type: str, match: Match) -> ir.Node | None:
    x, axes, keepdims = match.tensor("x"), match.axes(), int(match.number("keep"))
    count = product((info(x).shape or ())[axis] for axis in axes)
    if "n" in match.bound:
        cast = made_by(match.tensor("n"), "Cast")
        data = info(cast.inputs[0]).data if cast is not None else None
        if data is None or data.size != 1 or data.flat[0] != count:
            return None
    elif not isinstance(count, int) or count < 2 or not is_close(match.number("ratio"), count / (count - 1), x):
        return None
    if info(match.root.outputs[0]).rank != (info(x).rank or 0) - (0 if keepdims else len(axes)):
        return None  # a factor of one element has a higher rank and adds axes
    return own(op_type, [x], axes=axes, keepdims=keepdims)


TABLE = Table(
    [
        Idiom(tuple(Pattern(f"({v}) ** 0.5") for v in (STATIC, DYNAMIC)), partial(_build, "Deviation")),
        Idiom((Pattern(STATIC), Pattern(DYNAMIC)), partial(_build, "Variance")),
    ]
)


def deviation(model: ir.Model, options: Options) -> None:
    """Rewrite every unbiased variance and deviation."""
    TABLE.rewrite(model, users_first=True)
