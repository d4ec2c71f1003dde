"""Operators that the standard has under another name or in another form."""

from __future__ import annotations

from onnxgen.graph.operators import SETS_SIZE
from onnxgen.microsoft import drawn, infer
from onnxgen.microsoft.domain import body
from onnxgen.passes.contrib.writer import INT64, Maybe, Value, Writer
from onnxgen.shapes import infer_math, ranges
from onnxgen.shapes.infer_math import same


@body("Trilu", infer=same, ranges=ranges.trilu, drawn={1: drawn.below(-3, 4)})
def trilu(g: Writer, X: Value, k: Maybe = None, *, upper: int = 1) -> Value:
    return g("Trilu", X, k, upper=upper)


@body("SampleOp", infer=same)
def sample_op(g: Writer, X: Value) -> Value:
    """An example operator that returns its input."""
    return g("Identity", X)


@body("Pad", ranges=ranges.pad, drawn={1: drawn.below(0, 4)})
def pad(g: Writer, data: Value, pads: Value, value: Maybe = None, *, mode: str = "constant") -> Value:
    """Pad. The pads may have shape [1, 2 * rank], and the value shape [1]."""
    pads = g("Reshape", pads, g.ints(-1)) if g.rank(pads) != 1 else pads
    if value is not None and g.rank(value) != 0:
        value = g("Squeeze", value)
    return g("Pad", data, pads, value, mode=mode)


@body("Unique", infer=infer.unique)
def unique(g: Writer, x: Value) -> list[Maybe]:
    """Unique elements in order of appearance; the index of each element among them; their counts."""
    y, _, inverse, counts = g.several(4, "Unique", x, sorted=0)
    return [y, inverse, counts]


@body("GridSample", infer=infer_math.grid_sample)
def grid_sample(
    g: Writer, X: Value, Grid: Value, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Value:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return g("GridSample", X, Grid, align_corners=align_corners, mode=mode, padding_mode=padding_mode)


@body("ExpandDims")
def expand_dims(g: Writer, X: Value, axis: Value) -> Value:
    return g("Unsqueeze", X, g("Cast", g("Reshape", axis, g.ints(1)), to=INT64))


@body("GatherND")
def gather_nd(g: Writer, data: Value, indices: Value) -> Value:
    return g("GatherND", data, g("Cast", indices, to=INT64))


@body("Range", flat={"limit": SETS_SIZE}, ranges=ranges.ranged)
def range_(g: Writer, start: Value, limit: Value, delta: Maybe = None) -> Value:
    ends = [g("Squeeze", v) if g.rank(v) else v for v in (start, limit)]
    step = g.number(1, start) if delta is None else g("Squeeze", delta) if g.rank(delta) else delta
    return g("Range", *ends, step)
