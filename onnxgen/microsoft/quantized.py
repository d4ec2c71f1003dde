"""Quantised operators: an operator between dequantising and quantising, or a product of integers.

The second half has matrix products with weights of a few bits, in blocks with scales of their own,
fused with a norm before them and a gate after them. For these onnxruntime has GPU kernels only. The
bodies follow its documentation.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxgen.errors import FOR_CPU, INFER, WRITER
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import PIECEWISE_CONSTANT, SETS_GRID, UNREAD
from onnxgen.graph.traits import PRODUCT, QUANTISES, SAME
from onnxgen.microsoft import drawn, infer
from onnxgen.microsoft.attention import attended, projected
from onnxgen.microsoft.domain import MICROSOFT, body
from onnxgen.microsoft.layers import silu
from onnxgen.microsoft.norms import embed_layer_normalization
from onnxgen.passes.contrib.writer import (
    FLOAT,
    FLOAT_BODIES,
    INT32,
    INT64,
    Maybe,
    Refused,
    Results,
    Value,
    Writer,
    Written,
    nchw,
    nhwc,
    quantized_to,
    rounded,
    size_of,
    widened,
)
from onnxgen.passes.contrib.writer import body as table_body
from onnxgen.shapes import infer_math
from onnxgen.shapes.infer_math import same
from onnxgen.shapes.info import info


def in_floats(*names: str) -> Callable[[Written], Written]:
    """Register a function as the body with `--quantized float`, too: it approximates its operator by floats."""
    return table_body(*names, table=FLOAT_BODIES)


@in_floats("QuantizeLinear")
@body("QuantizeLinear", traits=[QUANTISES, SAME], infer=infer_math.quantize, flat=PIECEWISE_CONSTANT)
def quantize_linear(g: Writer, x: Value, y_scale: Value, y_zero_point: Maybe = None, *, axis: int = 1) -> Value:
    return g("QuantizeLinear", x, y_scale, y_zero_point, axis=axis)


@in_floats("DequantizeLinear")
@body("DequantizeLinear", traits=[QUANTISES, SAME], infer=infer_math.dequantize)
def dequantize_linear(g: Writer, x: Value, x_scale: Value, x_zero_point: Maybe = None, *, axis: int = 1) -> Value:
    return g("DequantizeLinear", x, x_scale, x_zero_point, axis=axis)


@in_floats("QLinearSigmoid")
@body("QLinearSigmoid", infer=same, flat=PIECEWISE_CONSTANT)
def qlinear_sigmoid(
    g: Writer, X: Value, X_scale: Value, X_zero_point: Maybe, Y_scale: Value, Y_zero_point: Maybe = None
) -> Value:
    activated = g("Sigmoid", g("DequantizeLinear", X, X_scale, X_zero_point))
    return quantized_to(g, activated, Y_scale, Y_zero_point, X)


@in_floats("QLinearLeakyRelu")
@body("QLinearLeakyRelu", infer=same, flat=PIECEWISE_CONSTANT)
def qlinear_leaky_relu(
    g: Writer, X: Value, X_scale: Value, X_zero_point: Maybe, Y_scale: Value, Y_zero_point: Maybe = None, *,
    alpha: float = 0.01,
) -> Value:  # fmt: skip
    activated = g("LeakyRelu", g("DequantizeLinear", X, X_scale, X_zero_point), alpha=alpha)
    return quantized_to(g, activated, Y_scale, Y_zero_point, X)


@in_floats("QLinearWhere")
@body("QLinearWhere", infer=infer.qlinear_where, flat=PIECEWISE_CONSTANT)
def qlinear_where(
    g: Writer, condition: Value, X: Value, x_scale: Value, x_zero_point: Value, Y: Value, y_scale: Value,
    y_zero_point: Value, z_scale: Value, z_zero_point: Value,
) -> Value:  # fmt: skip
    x, y = g("DequantizeLinear", X, x_scale, x_zero_point), g("DequantizeLinear", Y, y_scale, y_zero_point)
    return g("QuantizeLinear", g("Where", condition, x, y), z_scale, z_zero_point)


@in_floats("QLinearConcat")
@body("QLinearConcat", infer=infer.qlinear_concat, flat=PIECEWISE_CONSTANT)
def qlinear_concat(g: Writer, Y_scale: Value, Y_zero_point: Value, *inputs: Maybe, axis: int) -> Value:
    """Inputs are triples of tensor, scale and zero point. In the triple of a float tensor the others are unused."""
    parts = []
    for x, scale, zero in zip(inputs[::3], inputs[1::3], inputs[2::3]):
        assert x is not None
        is_float = info(x).dtype == FLOAT
        parts.append(x if is_float else g("DequantizeLinear", x, scale, zero))
    return g("QuantizeLinear", g("Concat", *parts, axis=axis), Y_scale, Y_zero_point)


@body("QLinearAveragePool", infer=infer.nhwc(infer_math.pool), flat=PIECEWISE_CONSTANT)
def qlinear_average_pool(
    g: Writer, X: Value, x_scale: Value, x_zero_point: Maybe, y_scale: Value, y_zero_point: Maybe = None, *,
    auto_pad: str = "NOTSET", ceil_mode: int = 0, channels_last: int = 0, count_include_pad: int = 0,
    kernel_shape: list[int], pads: list[int] | None = None, strides: list[int] | None = None,
) -> Value:  # fmt: skip
    n = g.rank(X)
    x = g("DequantizeLinear", X, x_scale, x_zero_point)
    x = nchw(g, x, n) if channels_last else x
    (pooled,) = g.several(
        1, "SummedPool", x, domain=DOMAIN, auto_pad=auto_pad, ceil_mode=ceil_mode,
        count_include_pad=count_include_pad, kernel_shape=kernel_shape,
        pads=pads, strides=strides,
    )  # fmt: skip
    pooled = nhwc(g, pooled, n) if channels_last else pooled
    return _rounded(g, g("Div", pooled, y_scale), y_zero_point, X)


@body("QLinearGlobalAveragePool", infer=infer.nhwc(infer_math.global_pool), flat=PIECEWISE_CONSTANT)
def qlinear_global_average_pool(
    g: Writer, X: Value, x_scale: Value, x_zero_point: Value, y_scale: Value, y_zero_point: Value, *,
    channels_last: int = 0,
) -> Value:  # fmt: skip
    """An exact sum of integers, scaled by `x_scale / (y_scale * count)`."""
    n = g.rank(X)
    axes = g.ints(*(range(1, n - 1) if channels_last else range(2, n)))
    centred = g("Sub", g("Cast", X, to=INT32), g("Cast", x_zero_point, to=INT32))
    total = g("Cast", g("ReduceSum", centred, axes), to=FLOAT)
    count = g("Cast", g("ReduceProd", g("Gather", g("Shape", X), axes), keepdims=0), to=FLOAT)
    scale = g("Div", x_scale, g("Mul", y_scale, count))
    return quantized_to(g, g("Mul", total, scale), g.float32(1), y_zero_point, X)


@body("QLinearMul", infer=infer.qlinear_binary, flat=PIECEWISE_CONSTANT)
def qlinear_mul(
    g: Writer, A: Value, A_scale: Value, A_zero_point: Maybe, B: Value, B_scale: Value, B_zero_point: Maybe,
    C_scale: Value, C_zero_point: Maybe = None,
) -> Value:  # fmt: skip
    """An exact product of integers, scaled."""
    product = g("Mul", _centred(g, A, A_zero_point), _centred(g, B, B_zero_point))
    scale = g("Div", g("Mul", A_scale, B_scale), C_scale)
    return _rounded(g, g("Mul", product, scale), C_zero_point, A)


def _centred(g: Writer, x: Value, zero: Maybe) -> Value:
    """Subtract the zero point from integers, as floats."""
    wide = g("Cast", x, to=FLOAT)
    return wide if zero is None else g("Sub", wide, g("Cast", zero, to=FLOAT))


def _rounded(g: Writer, x: Value, zero: Maybe, like: Value) -> Value:
    """Compute `round(x + zero)`, saturated. onnxruntime rounds after adding the zero point here, so ties differ."""
    x = x if zero is None else g("Add", x, g("Cast", zero, to=FLOAT))
    return g("QuantizeLinear", x, g.float32(1), g.number(0, like))


@body("QLinearConv", infer=infer.nhwc(infer_math.qlinear_conv), flat=PIECEWISE_CONSTANT)
def qlinear_conv(
    g: Writer, x: Value, x_scale: Value, x_zero_point: Value, w: Value, w_scale: Value, w_zero_point: Value,
    y_scale: Value, y_zero_point: Value, B: Maybe = None, *, auto_pad: str = "NOTSET", channels_last: int = 0,
    dilations: list[int] | None = None, group: int = 1, kernel_shape: list[int] | None = None,
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Value:  # fmt: skip
    """QLinearConv, optionally with channels last. The weights are [out, in / group, *kernel] either way."""
    n = g.rank(x)
    inner = nchw(g, x, n) if channels_last else x
    convolved = g(
        "QLinearConv", inner, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B,
        auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape,
        pads=pads, strides=strides,
    )  # fmt: skip
    return nhwc(g, convolved, n) if channels_last else convolved


# ---- products of integers --------------------------------------------------------------------------------------------


@body("MatMulIntegerToFloat", traits=[PRODUCT], infer=infer.float_product)
def matmul_integer_to_float(
    g: Writer, A: Value, B: Value, a_scale: Value, b_scale: Value, a_zero_point: Maybe = None,
    b_zero_point: Maybe = None, bias: Maybe = None,
) -> Value:  # fmt: skip
    """MatMulInteger, times both scales (that of B may be by column), plus a bias."""
    total = g("Cast", g("MatMulInteger", A, B, a_zero_point, b_zero_point), to=(info(a_scale).dtype or FLOAT))
    product = g("Mul", total, g("Mul", a_scale, b_scale))
    return product if bias is None else g("Add", product, bias)


@body("DynamicQuantizeMatMul", traits=[PRODUCT], infer=infer.float_product)
def dynamic_quantize_matmul(
    g: Writer, A: Value, B: Value, b_scale: Value, b_zero_point: Maybe = None, bias: Maybe = None
) -> Value:
    quantized, scale, zero = g.several(3, "DynamicQuantizeLinear", A)
    return matmul_integer_to_float(g, quantized, B, scale, b_scale, zero, b_zero_point, bias)


@body("QGemm", infer=infer.qgemm, flat={"y_scale": PIECEWISE_CONSTANT})
def qgemm(
    g: Writer, A: Value, a_scale: Value, a_zero_point: Value, B: Value, b_scale: Value, b_zero_point: Value,
    C: Maybe = None, y_scale: Maybe = None, y_zero_point: Maybe = None, *,
    alpha: float = 1.0, transA: int = 0, transB: int = 0,
) -> Value:  # fmt: skip
    """An exact product of integers plus C, in the scale `alpha * a_scale * b_scale`. Without y_scale it is float."""
    a = g("Transpose", A, perm=[1, 0]) if transA else A
    b = g("Transpose", B, perm=[1, 0]) if transB else B
    total = g("MatMulInteger", a, b, a_zero_point, b_zero_point)
    total = g("Cast", total if C is None else g("Add", total, C), to=FLOAT)
    scale = g("Mul", a_scale, b_scale)
    scale = scale if alpha == 1.0 else g("Mul", scale, g.float32(alpha))
    if y_scale is None:
        return g("Mul", total, scale)
    one = g.float32(1)
    return quantized_to(g, g("Mul", total, g("Div", scale, y_scale)), one, y_zero_point, A)


def qattention_of(product: Callable[..., Value]) -> Callable[..., Results]:
    """Return the body of QAttention, with projections computed by `product` (the body of MatMulIntegerToFloat)."""

    def qattention(
        g: Writer, input: Value, weight: Value, bias: Value, input_scale: Value, weight_scale: Value,
        mask_index: Maybe = None, input_zero_point: Maybe = None, weight_zero_point: Maybe = None, past: Maybe = None,
        *, num_heads: int, do_rotary: int = 0, mask_filter_value: float = -10000.0, past_present_share_buffer: int = 0,
        scale: float = 0.0, unidirectional: int = 0,
    ) -> Results:  # fmt: skip
        if do_rotary or past_present_share_buffer:
            raise Refused("rotary attention with a shared cache runs on GPUs only", FOR_CPU)
        qkv = product(g, input, weight, input_scale, weight_scale, input_zero_point, weight_zero_point, bias)
        return attended(
            g, projected(g, qkv, None), num_heads, (mask_index, None), past, like=bias, batch=input,
            scale=scale, is_causal=bool(unidirectional), filtered=mask_filter_value,
        )  # fmt: skip

    return qattention


def _product_of_floats(g: Writer, *operands: Maybe) -> Value:
    product: Value = FLOAT_BODIES[MICROSOFT, "MatMulIntegerToFloat"](g, *operands)
    return product


_axes = "b l h; h c; c; ; ; mask; ; ; 2 b n p s"
body("QAttention", infer=infer.attention, axes=_axes, drawn={5: drawn.lengths(8, own_keys=True)})(
    qattention_of(matmul_integer_to_float)
)
in_floats("QAttention")(qattention_of(_product_of_floats))


@in_floats("QEmbedLayerNormalization")
@body("QEmbedLayerNormalization", infer=infer.embed, drawn={0: drawn.rows(2), 1: drawn.rows(4)})
def qembed_layer_normalization(
    g: Writer, input_ids: Value, segment_ids: Maybe, word_embedding_quant: Value, position_embedding_quant: Value,
    segment_embedding: Maybe, gamma_quant: Value, beta_quant: Value, mask: Maybe, word_embedding_scale: Value,
    position_embedding_scale: Value, segment_embedding_scale: Maybe, gamma_scale: Value, beta_scale: Value,
    word_embedding_zero_point: Value, position_embedding_zero_point: Value, segment_embedding_zero_point: Maybe,
    gamma_zero_point: Value, beta_zero_point: Value, *, epsilon: float = 1e-12,
) -> Results:  # fmt: skip
    """EmbedLayerNormalization of quantised tables, each with one scale."""
    word, position, gamma, beta = (
        g("DequantizeLinear", *parts)
        for parts in (
            (word_embedding_quant, word_embedding_scale, word_embedding_zero_point),
            (position_embedding_quant, position_embedding_scale, position_embedding_zero_point),
            (gamma_quant, gamma_scale, gamma_zero_point),
            (beta_quant, beta_scale, beta_zero_point),
        )
    )
    segment = None
    if segment_embedding is not None:
        segment = g("DequantizeLinear", segment_embedding, segment_embedding_scale, segment_embedding_zero_point)
    return embed_layer_normalization(
        g, input_ids, segment_ids, word, position, segment, gamma, beta, mask, None, epsilon=epsilon
    )[:2]


Operand = Maybe


def _product(g: Writer, x: Value, weight: Value, scales: Value, bias: Operand = None, **sizes: int) -> Value:
    operands = [x, weight, scales, *([None, None, bias] if bias is not None else [])]
    return g.several(1, "MatMulNBits", *operands, domain="com.microsoft", **sizes)[0]


def _normalized(g: Writer, x: Value, skip: Operand, scale: Operand, epsilon: float) -> tuple[Value, Value]:
    """Return the input of the products, and the input of the norm."""
    total = x if skip is None else g("Add", x, skip)
    if scale is None:
        return total, total
    return g("RMSNormalization", total, scale, axis=-1, epsilon=epsilon), total


@body("MatMulNBitsQkv", infer=infer.blocked_qkv)
def matmul_nbits_qkv(
    g: Writer, A: Value, skip: Maybe, norm_scale: Value, q_B: Value, q_scales: Value, q_bias: Maybe, k_B: Value,
    k_scales: Value, k_bias: Maybe, v_B: Value, v_scales: Value, v_bias: Maybe = None, *,
    K: int, Nq: int, Nkv: int, block_size: int, bits: int = 4, accuracy_level: int = 0, epsilon: float = 1e-6,
) -> list[Value]:  # fmt: skip
    """q, k and v of RMSNormalization of an input, or of its sum with `skip`; and that sum."""
    x, total = _normalized(g, A, skip, norm_scale, epsilon)
    sizes = {"K": K, "block_size": block_size, "bits": bits, "accuracy_level": accuracy_level}
    q = _product(g, x, q_B, q_scales, q_bias, N=Nq, **sizes)
    k = _product(g, x, k_B, k_scales, k_bias, N=Nkv, **sizes)
    return [q, k, _product(g, x, v_B, v_scales, v_bias, N=Nkv, **sizes), total]


@body("MatMulNBitsMlp", infer=infer.nbits_mlp)
def matmul_nbits_mlp(
    g: Writer, A: Value, skip: Maybe, norm_scale: Maybe, gate_B: Value, gate_scales: Value, gate_bias: Maybe,
    up_B: Value, up_scales: Value, up_bias: Maybe = None, *, K: int, N: int, block_size: int, activation: str,
    bits: int = 4, accuracy_level: int = 0, epsilon: float = 1e-5,
) -> list[Value]:  # fmt: skip
    """One product, gated by the SiLU of another. Norm and sum before them are as in MatMulNBitsQkv."""
    if activation not in ("silu", "swish"):
        raise Refused(f"attribute 'activation' must be silu or swish, not {activation!r}", WRITER)
    if skip is not None and norm_scale is None:
        raise Refused("input skip needs the input norm_scale, which is missing", WRITER)
    x, total = _normalized(g, A, skip, norm_scale, epsilon)
    sizes = {"K": K, "N": N, "block_size": block_size, "bits": bits, "accuracy_level": accuracy_level}
    gate = silu(g, _product(g, x, gate_B, gate_scales, gate_bias, **sizes))
    return [g("Mul", gate, _product(g, x, up_B, up_scales, up_bias, **sizes)), total]


@body("MatMulNBitsQLoRA", infer=infer.blocked_product)
def matmul_nbits_qlora(
    g: Writer, X: Value, W: Value, scales: Value, lora_A: Value, lora_A_scales: Value, lora_B: Value,
    lora_B_scales: Value, *, K: int, N: int, block_size: int = 32, bits: int = 4, lora_block_size: int = 32,
    lora_bits: int = 8, accuracy_level: int = 0,
) -> Value:  # fmt: skip
    """A product plus a product with two low-rank factors (LoRA: Hu et al. 2021). Empty factors add nothing."""
    product = _product(g, X, W, scales, K=K, N=N, block_size=block_size, bits=bits, accuracy_level=accuracy_level)
    shapes = [info(factor).shape for factor in (lora_A, lora_B)]
    known = [[d for d in shape if isinstance(d, int)] for shape in shapes if shape is not None]
    if len(known) < 2 or any(len(dims) != 3 for dims in known):
        raise Refused("the sizes of the factors are unknown", INFER)
    if any(0 in dims for dims in known):
        return product
    sizes = {"block_size": lora_block_size, "bits": lora_bits}
    down = _product(g, X, lora_A, lora_A_scales, None, K=K, N=known[0][0], accuracy_level=accuracy_level, **sizes)
    return g("Add", product, _product(g, down, lora_B, lora_B_scales, None, K=known[0][0], N=N, **sizes))


@body("MatMulBlockQuantizedFp8Weight", flat={"a_scale": SETS_GRID})
def matmul_block_quantized_fp8_weight(
    g: Writer, A: Value, B: Value, b_scale: Value, a_scale: Maybe = None, bias: Maybe = None, *, block_size: int = 128
) -> Value:
    """A product with float8 weights, a scale for each `block_size` in a row. The input may be rounded to float8."""
    x = widened(g, A)
    if a_scale is not None:
        scaled = g.detached(g("Div", x, a_scale), 1)
        small = g("Cast", scaled, to=ir.DataType.FLOAT8E4M3FN)
        x = g.detached(g("Mul", g("Cast", small, to=FLOAT), a_scale), 1)
    scales = _by_column(g, b_scale, size_of(B, 1), block_size)
    weight = g("Mul", g("Cast", B, to=FLOAT), scales)
    product = rounded(g, g("MatMul", x, g("Transpose", weight, perm=[1, 0])), A)
    return product if bias is None else g("Add", product, bias)


@body("MatMulBlockQuantizedFp4Weight", flat={"input_scale": UNREAD})
def matmul_block_quantized_fp4_weight(
    g: Writer, A: Value, B: Value, weight_scale: Value, weight_scale_2: Value, input_scale: Maybe = None,
    bias: Maybe = None, *, block_size: int = 16,
) -> Value:  # fmt: skip
    """A product with 4-bit weights (E2M1), two in a byte. Their scales are float8 (E4M3), stored as bytes."""
    four = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    eight = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    halves = [g("BitwiseAnd", B, _byte(g, 15)), g("BitShift", B, _byte(g, 4), direction="RIGHT")]
    nibbles = g("Concat", *(g("Unsqueeze", half, g.ints(-1)) for half in halves), axis=-1)
    numbers = _looked_up(g, np.concatenate([four, -four]), g("Reshape", nibbles, g.ints(0, -1)))
    scales = _by_column(g, _looked_up(g, eight, weight_scale), 2 * size_of(B, 1), block_size)
    weight = rounded(g, g("Mul", g("Mul", numbers, weight_scale_2), scales), A)
    product = g("MatMul", A, g("Transpose", weight, perm=[1, 0]))
    return product if bias is None else g("Add", product, bias)


def _byte(g: Writer, number: int) -> Value:
    return g.constant(np.asarray(number, np.uint8))


def _looked_up(g: Writer, table: np.ndarray[tuple[int, ...], np.dtype[np.float32]], at: Value) -> Value:
    """Look bytes up in a table."""
    return g("Gather", g.constant(table), g("Cast", at, to=INT64))


def _by_column(g: Writer, scales: Value, columns: int, block_size: int) -> Value:
    """Return a scale for each column, from scales [rows, blocks]."""
    if block_size < 1:
        raise Refused(f"attribute 'block_size' must be positive, not {block_size}", WRITER)
    wide = g("Expand", g("Unsqueeze", scales, g.ints(-1)), g.ints(1, 1, block_size))
    flat = g("Reshape", wide, g.ints(0, -1))
    return flat if columns % block_size == 0 else g("Slice", flat, g.ints(0), g.ints(columns), g.ints(1))
