"""Operators that the standard dropped, and those that it has under another name or in another form.

The experimental operators were dropped with opsets 7 to 10. They are computed as onnxruntime
computes them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.errors import CHECK
from onnxgen.graph.operators import COUNTED, SETS_SIZE
from onnxgen.passes.contrib.writer import INT64, Maybe, Refused, Value, Writer, body
from onnxgen.shapes import infer_math, infer_microsoft, ranges
from onnxgen.shapes.infer_math import same
from onnxgen.shapes.info import info


@body("Affine", domain="", infer=same)
def affine(g: Writer, X: Value, *, alpha: float = 1.0, beta: float = 0.0) -> Value:
    return g("Add", g("Mul", X, g.number(alpha, X)), g.number(beta, X))


@body("Scale", domain="", infer=same)
def scale(g: Writer, input: Value, *, scale: float = 1.0) -> Value:
    return g("Mul", input, g.number(scale, input))


@body("ScaledTanh", domain="", infer=same)
def scaled_tanh(g: Writer, input: Value, *, alpha: float = 1.0, beta: float = 1.0) -> Value:
    """`alpha * tanh(beta * x)`"""
    return g("Mul", g("Tanh", g("Mul", input, g.number(beta, input))), g.number(alpha, input))


@body("ParametricSoftplus", domain="", infer=same)
def parametric_softplus(g: Writer, X: Value, *, alpha: float = 1.0, beta: float = 1.0) -> Value:
    """`alpha * log(exp(beta * x) + 1)`"""
    return g("Mul", g("Softplus", g("Mul", X, g.number(beta, X))), g.number(alpha, X))


@body("ImageScaler", domain="", infer=same)
def image_scaler(g: Writer, input: Value, *, bias: list[float] | None = None, scale: float = 1.0) -> Value:
    """`scale * x + bias`, one bias a channel of NCHW."""
    made = g("Mul", input, g.number(scale, input))
    if not bias:
        return made
    dtype = info(input).dtype or ir.DataType.FLOAT
    return g("Add", made, g.constant(np.asarray(bias, np.float32).astype(dtype.numpy()).reshape(1, -1, 1, 1)))


@body("Crop", domain="")
def crop(g: Writer, input: Value, *, border: list[int] | None = None, scale: list[int] | None = None) -> Value:
    """Remove `border` = (left, top, right, bottom). With `scale`, take (height, width) from (left, top) on."""
    if border is None or len(border) != 4 or scale is not None and len(scale) != 2:
        raise Refused("attribute 'border' must have 4 numbers, and 'scale' 2", CHECK)
    left, top, right, bottom = border
    if scale is not None:
        ends = g.ints(top + scale[0], left + scale[1])
    else:
        ends = g("Sub", g("Shape", input, start=2, end=4), g.ints(bottom, right))
    return g("Slice", input, g.ints(top, left), ends, g.ints(2, 3))


@body("DynamicSlice", domain="")
def dynamic_slice(g: Writer, data: Value, starts: Value, ends: Value, axes: Maybe = None) -> Value:
    return g("Slice", data, starts, ends, axes)


@body("GivenTensorFill", domain="", flat=COUNTED)
def given_tensor_fill(
    g: Writer, shape_input: Maybe = None, *, values: list[float] | None = None, shape: list[int] | None = None,
    extra_shape: list[int] | None = None, input_as_shape: int = 0,
) -> Value:  # fmt: skip
    """The values as a tensor of the shape in an attribute, in the input (`input_as_shape`), or of the input."""
    numbers = g.constant(np.asarray(values or [], np.float32))
    if shape is not None and shape_input is None and not extra_shape:
        return g("Reshape", numbers, g.ints(*shape))
    if shape_input is None or shape is not None or extra_shape and input_as_shape:
        raise Refused("the shape is given in no way, or in several ways", "give only the attribute 'shape'")
    dims = g("Cast", shape_input, to=INT64) if input_as_shape else g("Shape", shape_input)
    return g("Reshape", numbers, dims if not extra_shape else g("Concat", dims, g.ints(*extra_shape), axis=0))


@body("Trilu", infer=same, ranges=ranges.trilu, drawn={1: ranges.below(-3, 4)})
def trilu(g: Writer, X: Value, k: Maybe = None, *, upper: int = 1) -> Value:
    return g("Trilu", X, k, upper=upper)


@body("SampleOp", infer=same)
def sample_op(g: Writer, X: Value) -> Value:
    """An example operator that returns its input."""
    return g("Identity", X)


@body("Pad", ranges=ranges.pad, drawn={1: ranges.below(0, 4)})
def pad(g: Writer, data: Value, pads: Value, value: Maybe = None, *, mode: str = "constant") -> Value:
    """Pad. The pads may have shape [1, 2 * rank], and the value shape [1]."""
    pads = g("Reshape", pads, g.ints(-1)) if g.rank(pads) != 1 else pads
    if value is not None and g.rank(value) != 0:
        value = g("Squeeze", value)
    return g("Pad", data, pads, value, mode=mode)


@body("Unique", infer=infer_microsoft.unique)
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
