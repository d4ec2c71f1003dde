"""Operators that the standard dropped: experimental ones, with opsets 7 to 10. They are computed as
onnxruntime computes them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.errors import CHECK
from onnxgen.graph.operators import COUNTED, op
from onnxgen.passes.contrib.writer import INT64, Maybe, Refused, Value, Writer
from onnxgen.shapes.infer_math import same
from onnxgen.shapes.info import info


@op("Affine", body=True, infer=same)
def affine(g: Writer, X: Value, *, alpha: float = 1.0, beta: float = 0.0) -> Value:
    return g("Add", g("Mul", X, g.number(alpha, X)), g.number(beta, X))


@op("Scale", body=True, infer=same)
def scale(g: Writer, input: Value, *, scale: float = 1.0) -> Value:
    return g("Mul", input, g.number(scale, input))


@op("ScaledTanh", body=True, infer=same)
def scaled_tanh(g: Writer, input: Value, *, alpha: float = 1.0, beta: float = 1.0) -> Value:
    """`alpha * tanh(beta * x)`"""
    return g("Mul", g("Tanh", g("Mul", input, g.number(beta, input))), g.number(alpha, input))


@op("ParametricSoftplus", body=True, infer=same)
def parametric_softplus(g: Writer, X: Value, *, alpha: float = 1.0, beta: float = 1.0) -> Value:
    """`alpha * log(exp(beta * x) + 1)`"""
    return g("Mul", g("Softplus", g("Mul", X, g.number(beta, X))), g.number(alpha, X))


@op("ImageScaler", body=True, infer=same)
def image_scaler(g: Writer, input: Value, *, bias: list[float] | None = None, scale: float = 1.0) -> Value:
    """`scale * x + bias`, one bias a channel of NCHW."""
    scaled = g("Mul", input, g.number(scale, input))
    if not bias:
        return scaled
    dtype = info(input).dtype or ir.DataType.FLOAT
    return g("Add", scaled, g.constant(np.asarray(bias, np.float32).astype(dtype.numpy()).reshape(1, -1, 1, 1)))


@op("Crop", body=True)
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


@op("DynamicSlice", body=True)
def dynamic_slice(g: Writer, data: Value, starts: Value, ends: Value, axes: Maybe = None) -> Value:
    return g("Slice", data, starts, ends, axes)


@op("GivenTensorFill", body=True, flat=COUNTED)
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
