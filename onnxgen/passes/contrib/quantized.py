"""Quantised operators that are an operator between quantising and its inverse, or a product of integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnxgen.errors import FOR_CPU
from onnxgen.graph.domains import DOMAIN
from onnxgen.passes.contrib.attention import attended
from onnxgen.passes.contrib.norms import embed_layer_normalization
from onnxgen.passes.contrib.writer import Refused, Writer, body
from onnxgen.shapes.info import info

Results = list[ir.Value | None]
FLOAT, INT32 = ir.DataType.FLOAT.value, ir.DataType.INT32.value


@body("QuantizeLinear")
def quantize_linear(
    g: Writer, x: ir.Value, y_scale: ir.Value, y_zero_point: ir.Value | None = None, *, axis: int = 1
) -> ir.Value:
    return g("QuantizeLinear", x, y_scale, y_zero_point, axis=axis)


@body("DequantizeLinear")
def dequantize_linear(
    g: Writer, x: ir.Value, x_scale: ir.Value, x_zero_point: ir.Value | None = None, *, axis: int = 1
) -> ir.Value:
    return g("DequantizeLinear", x, x_scale, x_zero_point, axis=axis)


@body("QLinearSigmoid")
def qlinear_sigmoid(
    g: Writer, X: ir.Value, X_scale: ir.Value, X_zero_point: ir.Value | None, Y_scale: ir.Value,
    Y_zero_point: ir.Value | None = None,
) -> ir.Value:  # fmt: skip
    made = g("Sigmoid", g("DequantizeLinear", X, X_scale, X_zero_point))
    return quantized_to(g, made, Y_scale, Y_zero_point, X)


@body("QLinearLeakyRelu")
def qlinear_leaky_relu(
    g: Writer, X: ir.Value, X_scale: ir.Value, X_zero_point: ir.Value | None, Y_scale: ir.Value,
    Y_zero_point: ir.Value | None = None, *, alpha: float = 0.01,
) -> ir.Value:  # fmt: skip
    made = g("LeakyRelu", g("DequantizeLinear", X, X_scale, X_zero_point), alpha=alpha)
    return quantized_to(g, made, Y_scale, Y_zero_point, X)


def quantized_to(g: Writer, x: ir.Value, scale: ir.Value, zero: ir.Value | None, like: ir.Value) -> ir.Value:
    """Quantised to the type of the zero point, which without one is that of `like`."""
    return g("QuantizeLinear", x, scale, g.number(0, like) if zero is None else zero)


@body("QLinearWhere")
def qlinear_where(
    g: Writer, condition: ir.Value, X: ir.Value, x_scale: ir.Value, x_zero_point: ir.Value, Y: ir.Value,
    y_scale: ir.Value, y_zero_point: ir.Value, z_scale: ir.Value, z_zero_point: ir.Value,
) -> ir.Value:  # fmt: skip
    x, y = g("DequantizeLinear", X, x_scale, x_zero_point), g("DequantizeLinear", Y, y_scale, y_zero_point)
    return g("QuantizeLinear", g("Where", condition, x, y), z_scale, z_zero_point)


@body("QLinearConcat")
def qlinear_concat(
    g: Writer, Y_scale: ir.Value, Y_zero_point: ir.Value, *inputs: ir.Value | None, axis: int
) -> ir.Value:
    """Of triples: a tensor, its scale and its zero point; or a tensor of floats and two that mean nothing."""
    parts = []
    for x, scale, zero in zip(inputs[::3], inputs[1::3], inputs[2::3]):
        assert x is not None
        is_float = info(x).dtype == ir.DataType.FLOAT
        parts.append(x if is_float else g("DequantizeLinear", x, scale, zero))
    return g("QuantizeLinear", g("Concat", *parts, axis=axis), Y_scale, Y_zero_point)


@body("QLinearAveragePool")
def qlinear_average_pool(
    g: Writer, X: ir.Value, x_scale: ir.Value, x_zero_point: ir.Value | None, y_scale: ir.Value,
    y_zero_point: ir.Value | None = None, *,
    auto_pad: str = "NOTSET", ceil_mode: int = 0, channels_last: int = 0, count_include_pad: int = 0,
    kernel_shape: list[int], pads: list[int] | None = None, strides: list[int] | None = None,
) -> ir.Value:  # fmt: skip
    n = g.rank(X)
    x = g("DequantizeLinear", X, x_scale, x_zero_point)
    x = g("Transpose", x, perm=[0, n - 1, *range(1, n - 1)]) if channels_last else x
    (made,) = g.several(
        1, "SummedPool", x, domain=DOMAIN, auto_pad=auto_pad, ceil_mode=ceil_mode,
        count_include_pad=count_include_pad, kernel_shape=kernel_shape,
        pads=None if auto_pad != "NOTSET" else pads, strides=strides,
    )  # fmt: skip
    made = g("Transpose", made, perm=[0, *range(2, n), 1]) if channels_last else made
    return _rounded(g, g("Div", made, y_scale), y_zero_point, X)


@body("QLinearGlobalAveragePool")
def qlinear_global_average_pool(
    g: Writer, X: ir.Value, x_scale: ir.Value, x_zero_point: ir.Value, y_scale: ir.Value, y_zero_point: ir.Value, *,
    channels_last: int = 0,
) -> ir.Value:  # fmt: skip
    """An exact sum of integers, scaled by `x_scale / (y_scale * count)`."""
    n = g.rank(X)
    axes = g.ints(*(range(1, n - 1) if channels_last else range(2, n)))
    centred = g("Sub", g("Cast", X, to=INT32), g("Cast", x_zero_point, to=INT32))
    total = g("Cast", g("ReduceSum", centred, axes), to=FLOAT)
    count = g("Cast", g("ReduceProd", g("Gather", g("Shape", X), axes), keepdims=0), to=FLOAT)
    scale = g("Div", x_scale, g("Mul", y_scale, count))
    return quantized_to(g, g("Mul", total, scale), g.constant(np.asarray(1, np.float32)), y_zero_point, X)


@body("QLinearMul")
def qlinear_mul(
    g: Writer, A: ir.Value, A_scale: ir.Value, A_zero_point: ir.Value | None, B: ir.Value, B_scale: ir.Value,
    B_zero_point: ir.Value | None, C_scale: ir.Value, C_zero_point: ir.Value | None = None,
) -> ir.Value:  # fmt: skip
    """An exact product of integers, scaled."""
    product = g("Mul", _centred(g, A, A_zero_point), _centred(g, B, B_zero_point))
    scale = g("Div", g("Mul", A_scale, B_scale), C_scale)
    return _rounded(g, g("Mul", product, scale), C_zero_point, A)


def _centred(g: Writer, x: ir.Value, zero: ir.Value | None) -> ir.Value:
    """Integers without their zero point, as floats."""
    wide = g("Cast", x, to=FLOAT)
    return wide if zero is None else g("Sub", wide, g("Cast", zero, to=FLOAT))


def _rounded(g: Writer, x: ir.Value, zero: ir.Value | None, like: ir.Value) -> ir.Value:
    """`round(x + zero)`, saturated: onnxruntime rounds after it adds the zero point here, so that ties differ."""
    x = x if zero is None else g("Add", x, g("Cast", zero, to=FLOAT))
    return g("QuantizeLinear", x, g.constant(np.asarray(1, np.float32)), g.number(0, like))


@body("QLinearConv")
def qlinear_conv(
    g: Writer, x: ir.Value, x_scale: ir.Value, x_zero_point: ir.Value, w: ir.Value, w_scale: ir.Value,
    w_zero_point: ir.Value, y_scale: ir.Value, y_zero_point: ir.Value, B: ir.Value | None = None, *,
    auto_pad: str = "NOTSET", channels_last: int = 0, dilations: list[int] | None = None, group: int = 1,
    kernel_shape: list[int] | None = None, pads: list[int] | None = None, strides: list[int] | None = None,
) -> ir.Value:  # fmt: skip
    """The standard's, or with channels last; the weights are [out, in / group, *kernel] either way."""
    n = g.rank(x)
    inner = g("Transpose", x, perm=[0, n - 1, *range(1, n - 1)]) if channels_last else x
    made = g(
        "QLinearConv", inner, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B,
        auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape,
        pads=None if auto_pad != "NOTSET" else pads, strides=strides,
    )  # fmt: skip
    return g("Transpose", made, perm=[0, *range(2, n), 1]) if channels_last else made


# ---- products of integers --------------------------------------------------------------------------------------------


@body("MatMulIntegerToFloat")
def matmul_integer_to_float(
    g: Writer, A: ir.Value, B: ir.Value, a_scale: ir.Value, b_scale: ir.Value, a_zero_point: ir.Value | None = None,
    b_zero_point: ir.Value | None = None, bias: ir.Value | None = None,
) -> ir.Value:  # fmt: skip
    """MatMulInteger, times both scales (B's perhaps by column), plus a bias."""
    total = g("Cast", g("MatMulInteger", A, B, a_zero_point, b_zero_point), to=(info(a_scale).dtype or FLOAT))
    made = g("Mul", total, g("Mul", a_scale, b_scale))
    return made if bias is None else g("Add", made, bias)


@body("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(
    g: Writer, A: ir.Value, B: ir.Value, b_scale: ir.Value, b_zero_point: ir.Value | None = None,
    bias: ir.Value | None = None,
) -> ir.Value:  # fmt: skip
    quantized, scale, zero = g.several(3, "DynamicQuantizeLinear", A)
    return matmul_integer_to_float(g, quantized, B, scale, b_scale, zero, b_zero_point, bias)


@body("QGemm")
def qgemm(
    g: Writer, A: ir.Value, a_scale: ir.Value, a_zero_point: ir.Value, B: ir.Value, b_scale: ir.Value,
    b_zero_point: ir.Value, C: ir.Value | None = None, y_scale: ir.Value | None = None,
    y_zero_point: ir.Value | None = None, *, alpha: float = 1.0, transA: int = 0, transB: int = 0,
) -> ir.Value:  # fmt: skip
    """An exact product of integers plus C, in the scale `alpha * a_scale * b_scale`; floats where y has no scale."""
    a = g("Transpose", A, perm=[1, 0]) if transA else A
    b = g("Transpose", B, perm=[1, 0]) if transB else B
    total = g("MatMulInteger", a, b, a_zero_point, b_zero_point)
    total = g("Cast", total if C is None else g("Add", total, C), to=FLOAT)
    scale = g("Mul", a_scale, b_scale)
    scale = scale if alpha == 1.0 else g("Mul", scale, g.constant(np.asarray(alpha, np.float32)))
    if y_scale is None:
        return g("Mul", total, scale)
    one = g.constant(np.asarray(1, np.float32))
    return quantized_to(g, g("Mul", total, g("Div", scale, y_scale)), one, y_zero_point, A)


def qattention_of(product: Callable[..., ir.Value]) -> Callable[..., Results]:
    """QAttention whose projections `product` computes: a MatMulIntegerToFloat."""

    def qattention(
        g: Writer, input: ir.Value, weight: ir.Value, bias: ir.Value, input_scale: ir.Value, weight_scale: ir.Value,
        mask_index: ir.Value | None = None, input_zero_point: ir.Value | None = None,
        weight_zero_point: ir.Value | None = None, past: ir.Value | None = None, *,
        num_heads: int, do_rotary: int = 0, mask_filter_value: float = -10000.0, past_present_share_buffer: int = 0,
        scale: float = 0.0, unidirectional: int = 0,
    ) -> Results:  # fmt: skip
        if do_rotary or past_present_share_buffer:
            raise Refused("rotary attention with a shared cache runs on GPUs only", FOR_CPU)
        made = product(g, input, weight, input_scale, weight_scale, input_zero_point, weight_zero_point, bias)
        operands = list(g.several(3, "Split", made, axis=-1, num_outputs=3))
        return attended(
            g, operands, num_heads, (mask_index, None), past, like=bias, batch=input,
            scale=scale, is_causal=bool(unidirectional), filtered=mask_filter_value,
        )  # fmt: skip

    return qattention


body("QAttention")(qattention_of(matmul_integer_to_float))


@body("QEmbedLayerNormalization")
def qembed_layer_normalization(
    g: Writer, input_ids: ir.Value, segment_ids: ir.Value | None, word_embedding_quant: ir.Value,
    position_embedding_quant: ir.Value, segment_embedding: ir.Value | None, gamma_quant: ir.Value,
    beta_quant: ir.Value, mask: ir.Value | None, word_embedding_scale: ir.Value, position_embedding_scale: ir.Value,
    segment_embedding_scale: ir.Value | None, gamma_scale: ir.Value, beta_scale: ir.Value,
    word_embedding_zero_point: ir.Value, position_embedding_zero_point: ir.Value,
    segment_embedding_zero_point: ir.Value | None, gamma_zero_point: ir.Value, beta_zero_point: ir.Value, *,
    epsilon: float = 1e-12,
) -> Results:  # fmt: skip
    """EmbedLayerNormalization of tables that are quantised, each by one scale."""
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
