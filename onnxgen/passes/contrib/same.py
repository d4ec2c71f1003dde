"""Operators that the standard has, too, by another name or in another form."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.passes.contrib.writer import Writer, body


@body("Trilu")
def trilu(g: Writer, X: ir.Value, k: ir.Value | None = None, *, upper: int = 1) -> ir.Value:
    return g("Trilu", X, k, upper=upper)


@body("SampleOp")
def sample_op(g: Writer, X: ir.Value) -> ir.Value:
    """An example of an operator: what goes in comes out."""
    return g("Identity", X)


@body("Pad")
def pad(
    g: Writer, data: ir.Value, pads: ir.Value, value: ir.Value | None = None, *, mode: str = "constant"
) -> ir.Value:
    """The pads may be [1, 2 * rank], the value [1]."""
    pads = g("Reshape", pads, g.ints(-1)) if g.rank(pads) != 1 else pads
    if value is not None and g.rank(value) != 0:
        value = g("Squeeze", value)
    return g("Pad", data, pads, value, mode=mode)


@body("Unique")
def unique(g: Writer, x: ir.Value) -> list[ir.Value | None]:
    """In the order in which elements come first; for each element its number among them; how often each is there."""
    y, _, inverse, counts = g.several(4, "Unique", x, sorted=0)
    return [y, inverse, counts]


@body("GridSample")
def grid_sample(
    g: Writer, X: ir.Value, Grid: ir.Value, *,
    align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros",
) -> ir.Value:  # fmt: skip
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return g("GridSample", X, Grid, align_corners=align_corners, mode=mode, padding_mode=padding_mode)


@body("ExpandDims")
def expand_dims(g: Writer, X: ir.Value, axis: ir.Value) -> ir.Value:
    return g("Unsqueeze", X, g("Cast", g("Reshape", axis, g.ints(1)), to=ir.DataType.INT64.value))


@body("GatherND")
def gather_nd(g: Writer, data: ir.Value, indices: ir.Value) -> ir.Value:
    return g("GatherND", data, g("Cast", indices, to=ir.DataType.INT64.value))


@body("Range")
def range_(g: Writer, start: ir.Value, limit: ir.Value, delta: ir.Value | None = None) -> ir.Value:
    ends = [g("Squeeze", v) if g.rank(v) else v for v in (start, limit)]
    step = g.number(1, start) if delta is None else g("Squeeze", delta) if g.rank(delta) else delta
    return g("Range", *ends, step)
