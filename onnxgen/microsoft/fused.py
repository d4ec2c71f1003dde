"""Operators of training: fused sums, products, dropouts and embeddings; sums of integers.

`word_conv_embedding` embeds words by their letters. `is_all_finite` checks that the gradients of a
training step can be used.
"""

from __future__ import annotations

import functools
import math

from onnxgen.errors import WRITER, counted
from onnxgen.graph.annotations import PADDING
from onnxgen.graph.operators import INTEGERS, PIECEWISE_CONSTANT
from onnxgen.microsoft import drawn, infer
from onnxgen.microsoft.domain import body
from onnxgen.microsoft.layers import fast_gelu
from onnxgen.passes.contrib.writer import (
    INT32,
    INT64,
    Maybe,
    Refused,
    Results,
    Value,
    Writer,
    nchw,
    nhwc,
    quantized_to,
    size_of,
)
from onnxgen.shapes.infer_math import same
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored


@body("GemmFastGelu")
def gemm_fast_gelu(g: Writer, X: Value, W: Value, bias: Maybe = None) -> Value:
    return fast_gelu(g, g("MatMul", X, W), bias)


@body("BiasAdd", infer=same)
def bias_add(g: Writer, X: Value, bias: Value, skip: Value) -> Value:
    return g("Add", g("Add", X, bias), skip)


@body("BitmaskDropout", infer=same)
def bitmask_dropout(
    g: Writer, data: Value, ratio: Maybe = None, training_mode: Maybe = None, *, seed: int | None = None
) -> Value:
    return g("Dropout", data, ratio, training_mode, seed=seed)


@body("BiasDropout", "BitmaskBiasDropout", infer=same)
def bias_dropout(
    g: Writer, data: Value, bias: Value, residual: Maybe = None, ratio: Maybe = None, training_mode: Maybe = None, *,
    seed: int | None = None,
) -> Results:  # fmt: skip
    has_mask = g.wants(1) and g.node.op_type == "BiasDropout"  # the other packs the bits of its mask
    dropped, *mask = g.several(1 + has_mask, "Dropout", g("Add", data, bias), ratio, training_mode, seed=seed)
    return [dropped if residual is None else g("Add", dropped, residual), *mask]


@body("TorchEmbedding", drawn={1: drawn.rows(0)})
def torch_embedding(
    g: Writer, weight: Value, indices: Value, padding_idx: Maybe = None, scale_grad_by_freq: Maybe = None
) -> Value:
    """A Gather. The further inputs only concern gradients."""
    rows = g("Gather", weight, indices)
    row = stored(padding_idx)
    lookup = rows.producer()
    if lookup is not None and row is not None and row.size == 1 and row.numpy().item() >= 0:
        PADDING.set(lookup, int(row.numpy().item()))
    return rows


@body("ComplexMul")
def complex_mul(g: Writer, A: Value, B: Value) -> Value:
    """The product of complex numbers, stored as pairs of real and imaginary parts."""
    return _product(g, A, B, "Sub", "Add")


@body("ComplexMulConj")
def complex_mul_conj(g: Writer, A: Value, B: Value) -> Value:
    """The product of A and the complex conjugate of B."""
    return _product(g, A, B, "Add", "Sub")


def _product(g: Writer, x: Value, y: Value, real: str, imaginary: str) -> Value:
    (a, b), (c, d) = (g.several(2, "Split", v, axis=-1, num_outputs=2) for v in (x, y))
    parts = g(real, g("Mul", a, c), g("Mul", b, d)), g(imaginary, g("Mul", b, c), g("Mul", a, d))
    return g("Concat", *parts, axis=-1)


@body("GemmaRotaryEmbedding")
def gemma_rotary_embedding(g: Writer, emb: Value, q: Value, q_rot: Value, k: Value, k_rot: Value) -> Results:
    """Rotary embedding by given angles. Sines and cosines are rounded to q's type first."""
    sin, cos = (g("Unsqueeze", g("CastLike", g(op, emb), q), g.ints(1)) for op in ("Sin", "Cos"))
    return [g("Add", g("Mul", x, cos), g("Mul", turned, sin)) for x, turned in ((q, q_rot), (k, k_rot))]


# ---- integers --------------------------------------------------------------------------------------------------------


@body("MatMulInteger16", flat=INTEGERS)
def matmul_integer16(g: Writer, A: Value, B: Value) -> Value:
    return g("MatMul", g("Cast", A, to=INT32), g("Cast", B, to=INT32))


@body("MulInteger", flat=INTEGERS)
def mul_integer(g: Writer, A: Value, A_zero_point: Maybe, B: Value, B_zero_point: Maybe = None) -> Value:
    return g("Mul", _centred(g, A, A_zero_point), _centred(g, B, B_zero_point))


def _centred(g: Writer, x: Value, zero: Maybe) -> Value:
    wide = g("Cast", x, to=INT32)
    return wide if zero is None else g("Sub", wide, g("Cast", zero, to=INT32))


@body("ReduceSumInteger", flat=INTEGERS)
def reduce_sum_integer(g: Writer, data: Value, *, axes: list[int], keepdims: int) -> Value:
    return g("ReduceSum", g("Cast", data, to=INT32), g.ints(*axes), keepdims=keepdims)


@body("QLinearReduceMean", flat=PIECEWISE_CONSTANT)
def qlinear_reduce_mean(
    g: Writer, data: Value, data_scale: Value, data_zero_point: Maybe, reduced_scale: Value,
    reduced_zero_point: Maybe = None, *, axes: list[int], keepdims: int,
) -> Value:  # fmt: skip
    mean = g("ReduceMean", g("DequantizeLinear", data, data_scale, data_zero_point), g.ints(*axes), keepdims=keepdims)
    return quantized_to(g, mean, reduced_scale, reduced_zero_point, data)


@body("NhwcMaxPool")
def nhwc_max_pool(
    g: Writer, x: Value, *, kernel_shape: list[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    dilations: list[int] | None = None, pads: list[int] | None = None, strides: list[int] | None = None,
) -> Value:  # fmt: skip
    n = g.rank(x)
    pooled = g(
        "MaxPool", nchw(g, x, n), auto_pad=auto_pad, ceil_mode=ceil_mode, dilations=dilations,
        kernel_shape=kernel_shape, pads=pads, strides=strides,
    )  # fmt: skip
    return nhwc(g, pooled, n)


@body("WordConvEmbedding", infer=infer.word_conv, axes="n l; f i k e; f; r e", drawn={0: drawn.words(3)})
def word_conv_embedding(
    g: Writer, Sequence: Value, W: Value, B: Value, C: Value, *, char_embedding_size: int | None = None,
    conv_window_size: int | None = None, embedding_size: int | None = None,
) -> Value:  # fmt: skip
    """The maximum of a convolution over the letters of each word. Letters are numbers above 0.

    A window that passes the word's end counts only at the first letter, where there may be no other window. onnxruntime
    leaves the result of a word that begins with 0 uninitialised; here it is zeros.
    """
    _check_sizes(g, Sequence, W, (embedding_size, None, conv_window_size, char_embedding_size))
    window = size_of(W, 2)
    letters = g("Unsqueeze", g("Gather", C, Sequence, axis=0), g.ints(1))
    convolved = g("Squeeze", g("Conv", letters, W, B), g.ints(3))  # [words, filters, places]
    above = g("Greater", Sequence, g.number(0, Sequence))
    count = g("ReduceSum", g("Cast", above, to=INT64), g.ints(1), keepdims=1)
    places = g.range(None, g("Sub", g("Shape", Sequence, start=1), g.ints(window - 1)))
    last = g("Max", g("Sub", count, g.ints(window)), g.ints(0))
    inside = g("Unsqueeze", g("LessOrEqual", places, last), g.ints(1))
    best = g("Tanh", g("ReduceMax", g("Where", inside, convolved, g.float32(-math.inf)), g.ints(2), keepdims=0))
    begun = g("Slice", above, g.ints(0), g.ints(1), g.ints(1))
    return g("Where", begun, best, g.float32(0))


def _check_sizes(g: Writer, words: Value, weight: Value, stated: tuple[int | None, ...]) -> None:
    """Raise `Refused` unless words are the rows of a matrix and the weight has the sizes that the attributes state."""
    if g.rank(words) != 2 or g.rank(weight) != 4:
        raise Refused("the words must be rows of a matrix, and the weight have 4 axes", WRITER)
    shape = info(weight).shape or ()
    if size_of(weight, 1) != 1:
        raise Refused(f"the weight has {counted(size_of(weight, 1), 'channel')}, not 1", WRITER)
    for size, wanted in zip(shape, stated):
        if wanted is not None and isinstance(size, int) and size != wanted:
            raise Refused(f"the weight has a size of {size} where an attribute says {wanted}", WRITER)


@body("IsAllFinite", infer=infer.is_all_finite, flat=INTEGERS)
def is_all_finite(g: Writer, *input: Value, isinf_only: int = 0, isnan_only: int = 0) -> Value:
    """True if no input has an infinity or a NaN. onnxruntime has GPU kernels only."""
    if isinf_only and isnan_only:
        raise Refused("isinf_only and isnan_only must not both be 1", WRITER)
    kinds = [name for name, skipped in (("IsInf", isnan_only), ("IsNaN", isinf_only)) if not skipped]
    counts = [g("ReduceSum", g("Cast", g(kind, x), to=INT64), keepdims=0) for x in input for kind in kinds]
    return g("Equal", functools.reduce(lambda a, b: g("Add", a, b), counts), g.int64(0))
