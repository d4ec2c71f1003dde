"""Sums, products and drops in one: what training and its exporters fuse, and integers' sums and products."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.passes.contrib.activations import fast_gelu
from onnxgen.passes.contrib.quantized import quantized_to
from onnxgen.passes.contrib.writer import Writer, body

Results = list[ir.Value | None]
INT32 = ir.DataType.INT32.value


@body("GemmFastGelu")
def gemm_fast_gelu(g: Writer, X: ir.Value, W: ir.Value, bias: ir.Value | None = None) -> ir.Value:
    return fast_gelu(g, g("MatMul", X, W), bias)


@body("BiasAdd")
def bias_add(g: Writer, X: ir.Value, bias: ir.Value, skip: ir.Value) -> ir.Value:
    return g("Add", g("Add", X, bias), skip)


@body("BitmaskDropout")
def bitmask_dropout(
    g: Writer, data: ir.Value, ratio: ir.Value | None = None, training_mode: ir.Value | None = None, *,
    seed: int | None = None,
) -> ir.Value:  # fmt: skip
    return g("Dropout", data, ratio, training_mode, seed=seed)


@body("BiasDropout")
def bias_dropout(
    g: Writer, data: ir.Value, bias: ir.Value, residual: ir.Value | None = None, ratio: ir.Value | None = None,
    training_mode: ir.Value | None = None, *, seed: int | None = None,
) -> Results:  # fmt: skip
    count = 2 if g.wants(1) else 1
    made, *mask = g.several(count, "Dropout", g("Add", data, bias), ratio, training_mode, seed=seed)
    return [made if residual is None else g("Add", made, residual), *mask]


@body("BitmaskBiasDropout")
def bitmask_bias_dropout(
    g: Writer, data: ir.Value, bias: ir.Value, residual: ir.Value | None = None, ratio: ir.Value | None = None,
    training_mode: ir.Value | None = None, *, seed: int | None = None,
) -> ir.Value:  # fmt: skip
    made = g("Dropout", g("Add", data, bias), ratio, training_mode, seed=seed)
    return made if residual is None else g("Add", made, residual)


@body("TorchEmbedding")
def torch_embedding(
    g: Writer, weight: ir.Value, indices: ir.Value, padding_idx: ir.Value | None = None,
    scale_grad_by_freq: ir.Value | None = None,
) -> ir.Value:  # fmt: skip
    """What is looked up does not depend on how gradients are scaled, or which row has none."""
    return g("Gather", weight, indices)


@body("ComplexMul")
def complex_mul(g: Writer, A: ir.Value, B: ir.Value) -> ir.Value:
    """Of pairs of real and imaginary parts."""
    return _product(g, A, B, "Sub", "Add")


@body("ComplexMulConj")
def complex_mul_conj(g: Writer, A: ir.Value, B: ir.Value) -> ir.Value:
    """A times what B is conjugate to."""
    return _product(g, A, B, "Add", "Sub")


def _product(g: Writer, x: ir.Value, y: ir.Value, real: str, imaginary: str) -> ir.Value:
    (a, b), (c, d) = (g.several(2, "Split", v, axis=-1, num_outputs=2) for v in (x, y))
    parts = g(real, g("Mul", a, c), g("Mul", b, d)), g(imaginary, g("Mul", b, c), g("Mul", a, d))
    return g("Concat", *parts, axis=-1)


@body("GemmaRotaryEmbedding")
def gemma_rotary_embedding(
    g: Writer, emb: ir.Value, q: ir.Value, q_rot: ir.Value, k: ir.Value, k_rot: ir.Value
) -> Results:
    """Angles as they are in; sines and cosines are rounded to q's type before they are used."""
    sin, cos = (g("Unsqueeze", g("CastLike", g(op, emb), q), g.ints(1)) for op in ("Sin", "Cos"))
    return [g("Add", g("Mul", x, cos), g("Mul", turned, sin)) for x, turned in ((q, q_rot), (k, k_rot))]


# ---- integers --------------------------------------------------------------------------------------------------------


@body("MatMulInteger16")
def matmul_integer16(g: Writer, A: ir.Value, B: ir.Value) -> ir.Value:
    return g("MatMul", g("Cast", A, to=INT32), g("Cast", B, to=INT32))


@body("MulInteger")
def mul_integer(
    g: Writer, A: ir.Value, A_zero_point: ir.Value | None, B: ir.Value, B_zero_point: ir.Value | None = None
) -> ir.Value:
    return g("Mul", _centred(g, A, A_zero_point), _centred(g, B, B_zero_point))


def _centred(g: Writer, x: ir.Value, zero: ir.Value | None) -> ir.Value:
    wide = g("Cast", x, to=INT32)
    return wide if zero is None else g("Sub", wide, g("Cast", zero, to=INT32))


@body("ReduceSumInteger")
def reduce_sum_integer(g: Writer, data: ir.Value, *, axes: list[int], keepdims: int) -> ir.Value:
    return g("ReduceSum", g("Cast", data, to=INT32), g.ints(*axes), keepdims=keepdims)


@body("QLinearReduceMean")
def qlinear_reduce_mean(
    g: Writer, data: ir.Value, data_scale: ir.Value, data_zero_point: ir.Value | None, reduced_scale: ir.Value,
    reduced_zero_point: ir.Value | None = None, *, axes: list[int], keepdims: int,
) -> ir.Value:  # fmt: skip
    made = g("ReduceMean", g("DequantizeLinear", data, data_scale, data_zero_point), g.ints(*axes), keepdims=keepdims)
    return quantized_to(g, made, reduced_scale, reduced_zero_point, data)


@body("NhwcMaxPool")
def nhwc_max_pool(
    g: Writer, x: ir.Value, *, kernel_shape: list[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    dilations: list[int] | None = None, pads: list[int] | None = None, strides: list[int] | None = None,
) -> ir.Value:  # fmt: skip
    n = g.rank(x)
    made = g(
        "MaxPool", g("Transpose", x, perm=[0, n - 1, *range(1, n - 1)]), auto_pad=auto_pad, ceil_mode=ceil_mode,
        dilations=dilations, kernel_shape=kernel_shape, pads=None if auto_pad != "NOTSET" else pads, strides=strides,
    )  # fmt: skip
    return g("Transpose", made, perm=[0, *range(2, n), 1])
