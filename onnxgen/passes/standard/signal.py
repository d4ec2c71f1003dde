"""Windows, shrinking, gates and convolutions of the standard."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxgen.errors import WRITER
from onnxgen.graph.operators import COUNTED
from onnxgen.passes.contrib.parts import causal_conv
from onnxgen.passes.contrib.writer import INT64, Maybe, Refused, Results, Value, Writer, dtype_of, standard
from onnxgen.shapes.infer_math import same
from onnxgen.shapes.info import info

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@standard("BlackmanWindow", flat=COUNTED)
def blackman_window(g: Writer, size: Value, *, output_datatype: int = 1, periodic: int = 1) -> Value:
    return _window(g, size, output_datatype, periodic, (0.42, -0.5, 0.08))


@standard("HammingWindow", flat=COUNTED)
def hamming_window(g: Writer, size: Value, *, output_datatype: int = 1, periodic: int = 1) -> Value:
    return _window(g, size, output_datatype, periodic, (25 / 46, -21 / 46))


@standard("HannWindow", flat=COUNTED)
def hann_window(g: Writer, size: Value, *, output_datatype: int = 1, periodic: int = 1) -> Value:
    return _window(g, size, output_datatype, periodic, (0.5, -0.5))


def _window(g: Writer, size: Value, to: int, periodic: int, weights: tuple[float, ...]) -> Value:
    """Sum cosines: `weights[k] * cos(k * turn)`. A symmetric window ends one step before its period does."""
    if dtype_of(size) not in (ir.DataType.INT32, ir.DataType.INT64):
        raise Refused(f"the size of a window is an integer, not {dtype_of(size).name.lower()}", WRITER)
    wide = ir.DataType.DOUBLE if to == ir.DataType.DOUBLE else ir.DataType.FLOAT
    count = g("Cast", size if info(size).rank == 0 else g("Squeeze", size), to=INT64)
    period = count if periodic else g("Sub", count, g.int64(1))

    def number(value: float) -> Value:
        return g.constant(np.asarray(value, wide.numpy()))

    step = g("Div", number(2 * math.pi), g("Cast", period, to=wide))
    turn = g("Mul", g("Cast", g("Range", g.int64(0), count, g.int64(1)), to=wide), step)
    window = number(weights[0])
    for k, weight in enumerate(weights[1:], 1):
        angle = turn if k == 1 else g("Mul", turn, number(k))
        window = g("Add", g("Mul", g("Cos", angle), number(weight)), window)
    return window if to == wide else g("Cast", window, to=ir.DataType(to))


@standard("Shrink", infer=same)
def shrink(g: Writer, input: Value, *, bias: float = 0.0, lambd: float = 0.5) -> Value:
    """Integers become floats for the arithmetic, as in onnxruntime."""
    dtype = dtype_of(input)
    kind = dtype if dtype in FLOATS else ir.DataType.FLOAT
    x = input if kind == dtype else g("Cast", input, to=kind)

    def number(value: float) -> Value:
        return g.constant(np.asarray(value, kind.numpy()))

    above = g("Where", g("Greater", x, number(lambd)), g("Sub", x, number(bias)), number(0))
    y = g("Where", g("Less", x, number(-lambd)), g("Add", x, number(bias)), above)
    return y if kind == dtype else g("Cast", y, to=dtype)


@standard("SwiGLU")
def swiglu(g: Writer, A: Value, B: Value, *, alpha: float = 1.0) -> Value:
    gate = A if alpha == 1 else g("Mul", A, g.number(alpha, A))
    return g("Mul", g("Mul", A, g("Sigmoid", gate)), B)


@standard("CausalConvWithState")
def causal_conv_with_state(
    g: Writer, input: Value, weight: Value, bias: Maybe = None, past_state: Maybe = None, *, activation: str = "none"
) -> Results:
    return causal_conv(g, input, weight, bias, past_state, activation=activation)
