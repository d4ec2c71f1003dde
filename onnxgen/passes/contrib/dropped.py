"""Experimental operators that the standard dropped with opset 7 to 10, as onnxruntime runs them still."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.errors import CHECK
from onnxgen.passes.contrib.writer import Refused, Writer, body
from onnxgen.shapes.info import info


@body("Affine", domain="")
def affine(g: Writer, X: ir.Value, *, alpha: float = 1.0, beta: float = 0.0) -> ir.Value:
    return g("Add", g("Mul", X, g.number(alpha, X)), g.number(beta, X))


@body("Scale", domain="")
def scale(g: Writer, input: ir.Value, *, scale: float = 1.0) -> ir.Value:
    return g("Mul", input, g.number(scale, input))


@body("ScaledTanh", domain="")
def scaled_tanh(g: Writer, input: ir.Value, *, alpha: float = 1.0, beta: float = 1.0) -> ir.Value:
    """`alpha * tanh(beta * x)`"""
    return g("Mul", g("Tanh", g("Mul", input, g.number(beta, input))), g.number(alpha, input))


@body("ParametricSoftplus", domain="")
def parametric_softplus(g: Writer, X: ir.Value, *, alpha: float = 1.0, beta: float = 1.0) -> ir.Value:
    """`alpha * log(exp(beta * x) + 1)`"""
    return g("Mul", g("Softplus", g("Mul", X, g.number(beta, X))), g.number(alpha, X))


@body("ImageScaler", domain="")
def image_scaler(g: Writer, input: ir.Value, *, bias: list[float] | None = None, scale: float = 1.0) -> ir.Value:
    """`scale * x + bias`, one bias a channel of NCHW."""
    made = g("Mul", input, g.number(scale, input))
    if not bias:
        return made
    dtype = info(input).dtype or ir.DataType.FLOAT
    return g("Add", made, g.constant(np.asarray(bias, np.float32).astype(dtype.numpy()).reshape(1, -1, 1, 1)))


@body("Crop", domain="")
def crop(g: Writer, input: ir.Value, *, border: list[int] | None = None, scale: list[int] | None = None) -> ir.Value:
    """Without `border` = (left, top, right, bottom), or `scale` = (height, width) of what begins at left, top."""
    if border is None or len(border) != 4 or scale is not None and len(scale) != 2:
        raise Refused("attribute 'border' must have 4 numbers, and 'scale' 2", CHECK)
    left, top, right, bottom = border
    if scale is not None:
        ends = g.ints(top + scale[0], left + scale[1])
    else:
        ends = g("Sub", g("Shape", input, start=2, end=4), g.ints(bottom, right))
    return g("Slice", input, g.ints(top, left), ends, g.ints(2, 3))


@body("DynamicSlice", domain="")
def dynamic_slice(
    g: Writer, data: ir.Value, starts: ir.Value, ends: ir.Value, axes: ir.Value | None = None
) -> ir.Value:
    return g("Slice", data, starts, ends, axes)


@body("GivenTensorFill", domain="")
def given_tensor_fill(
    g: Writer, shape_input: ir.Value | None = None, *, values: list[float] | None = None,
    shape: list[int] | None = None, extra_shape: list[int] | None = None, input_as_shape: int = 0,
) -> ir.Value:  # fmt: skip
    """The values as a tensor of a shape: an attribute, or the input's shape (its elements if `input_as_shape`)."""
    numbers = g.constant(np.asarray(values or [], np.float32))
    if shape is not None and shape_input is None and not extra_shape:
        return g("Reshape", numbers, g.ints(*shape))
    if shape_input is None or shape is not None or extra_shape and input_as_shape:
        raise Refused("the shape is given in no way, or in several ways", "give only the attribute 'shape'")
    dims = g("Cast", shape_input, to=ir.DataType.INT64.value) if input_as_shape else g("Shape", shape_input)
    return g("Reshape", numbers, dims if not extra_shape else g("Concat", dims, g.ints(*extra_shape), axis=0))
