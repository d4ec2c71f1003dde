"""The unbiased variance and standard deviation, spelled out, become torch's `var` and `std`.

    mean((x - mean(x)) ** 2) * n / (n - 1)            n: how many elements make one

Divided by n, it is more often a step of a norm that was written out, and stays one.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import made_by
from onnxgen.options import Options
from onnxgen.passes.idioms import Idiom, Table
from onnxgen.passes.match import is_close
from onnxgen.passes.pattern import Match, Pattern
from onnxgen.shapes.dims import Dim, product
from onnxgen.shapes.info import info

MEAN = "ReduceMean((x - ReduceMean(x, axes)) ** 2, axes, keep)"
STATIC, DYNAMIC = f"ratio * {MEAN}", f"n * {MEAN} / (n - 1)"


def _build(op_type: str, match: Match) -> ir.Node | None:
    x = match.tensor("x")
    count = product((info(x).shape or ())[axis] for axis in match.axes())
    if "n" in match.bound:
        if not _is_size(match.tensor("n"), count):
            return None
    elif not isinstance(count, int) or count < 2 or not is_close(match.number("ratio"), count / (count - 1), x):
        return None
    kept = (info(x).rank or 0) - (0 if match.number("keep") else len(match.axes()))
    if info(match.root.outputs[0]).rank != kept:  # one element of a higher rank
        return None
    attributes = [ir.AttrInt64s("axes", match.axes()), ir.AttrInt64("keepdims", int(match.number("keep")))]
    return ir.Node(DOMAIN, op_type, [x], attributes, version=1)


def _is_size(value: ir.Value, count: Dim) -> bool:
    """Whether a value is that many, as a number of floating point."""
    cast = made_by(value, "Cast")
    data = info(cast.inputs[0]).data if cast is not None else None
    return data is not None and data.size == 1 and data.flat[0] == count


TABLE = Table(
    [
        Idiom(tuple(Pattern(f"({v}) ** 0.5") for v in (STATIC, DYNAMIC)), lambda match: _build("Deviation", match)),
        Idiom((Pattern(STATIC), Pattern(DYNAMIC)), lambda match: _build("Variance", match)),
    ]
)


def deviation(model: ir.Model, options: Options) -> None:
    """Rewrite every variance and deviation of a sample."""
    TABLE.rewrite(model, users_first=True)
