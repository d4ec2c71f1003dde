"""Quantised operators: an operator between dequantising and quantising, or a product of integers."""

from __future__ import annotations

from collections.abc import Callable

from onnxgen.errors import FOR_CPU
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.gradients import PIECEWISE_CONSTANT
from onnxgen.graph.traits import PRODUCT, QUANTISES, SAME
from onnxgen.passes.contrib.attention import attended, projected
from onnxgen.passes.contrib.norms import embed_layer_normalization
from onnxgen.passes.contrib.writer import FLOAT, INT32, Maybe, Refused, Results, Value, Writer, body, nchw, nhwc
from onnxgen.shapes import drawn, infer_attention, infer_conv, infer_elementwise, infer_microsoft
from onnxgen.shapes.infer_elementwise import same
from onnxgen.shapes.info import info


@body("QuantizeLinear", traits=[QUANTISES, SAME], infer=infer_elementwise.quantize, flat=PIECEWISE_CONSTANT)
def quantize_linear(g: Writer, x: Value, y_scale: Value, y_zero_point: Maybe = None, *, axis: int = 1) -> Value:
    return g("QuantizeLinear", x, y_scale, y_zero_point, axis=axis)


@body("DequantizeLinear", traits=[QUANTISES, SAME], infer=infer_elementwise.dequantize)
def dequantize_linear(g: Writer, x: Value, x_scale: Value, x_zero_point: Maybe = None, *, axis: int = 1) -> Value:
    return g("DequantizeLinear", x, x_scale, x_zero_point, axis=axis)


@body("QLinearSigmoid", infer=same, flat=PIECEWISE_CONSTANT)
def qlinear_sigmoid(
    g: Writer, X: Value, X_scale: Value, X_zero_point: Maybe, Y_scale: Value, Y_zero_point: Maybe = None
) -> Value:
    made = g("Sigmoid", g("DequantizeLinear", X, X_scale, X_zero_point))
    return quantized_to(g, made, Y_scale, Y_zero_point, X)


@body("QLinearLeakyRelu", infer=same, flat=PIECEWISE_CONSTANT)
def qlinear_leaky_relu(
    g: Writer, X: Value, X_scale: Value, X_zero_point: Maybe, Y_scale: Value, Y_zero_point: Maybe = None, *,
    alpha: float = 0.01,
) -> Value:  # fmt: skip
    made = g("LeakyRelu", g("DequantizeLinear", X, X_scale, X_zero_point), alpha=alpha)
    return quantized_to(g, made, Y_scale, Y_zero_point, X)


def quantized_to(g: Writer, x: Value, scale: Value, zero: Maybe, like: Value) -> Value:
    """Quantise to the type of the zero point, or to that of `like` if there is none."""
    return g("QuantizeLinear", x, scale, g.number(0, like) if zero is None else zero)


@body("QLinearWhere", infer=infer_microsoft.qlinear_where, flat=PIECEWISE_CONSTANT)
def qlinear_where(
    g: Writer, condition: Value, X: Value, x_scale: Value, x_zero_point: Value, Y: Value, y_scale: Value,
    y_zero_point: Value, z_scale: Value, z_zero_point: Value,
) -> Value:  # fmt: skip
    x, y = g("DequantizeLinear", X, x_scale, x_zero_point), g("DequantizeLinear", Y, y_scale, y_zero_point)
    return g("QuantizeLinear", g("Where", condition, x, y), z_scale, z_zero_point)


@body("QLinearConcat", infer=infer_microsoft.qlinear_concat, flat=PIECEWISE_CONSTANT)
def qlinear_concat(g: Writer, Y_scale: Value, Y_zero_point: Value, *inputs: Maybe, axis: int) -> Value:
    """Inputs are triples of tensor, scale and zero point. In the triple of a float tensor the others are unused."""
    parts = []
    for x, scale, zero in zip(inputs[::3], inputs[1::3], inputs[2::3]):
        assert x is not None
        is_float = info(x).dtype == FLOAT
        parts.append(x if is_float else g("DequantizeLinear", x, scale, zero))
    return g("QuantizeLinear", g("Concat", *parts, axis=axis), Y_scale, Y_zero_point)


@body("QLinearAveragePool", infer=infer_microsoft.nhwc(infer_conv.pool), flat=PIECEWISE_CONSTANT)
def qlinear_average_pool(
    g: Writer, X: Value, x_scale: Value, x_zero_point: Maybe, y_scale: Value, y_zero_point: Maybe = None, *,
    auto_pad: str = "NOTSET", ceil_mode: int = 0, channels_last: int = 0, count_include_pad: int = 0,
    kernel_shape: list[int], pads: list[int] | None = None, strides: list[int] | None = None,
) -> Value:  # fmt: skip
    n = g.rank(X)
    x = g("DequantizeLinear", X, x_scale, x_zero_point)
    x = nchw(g, x, n) if channels_last else x
    (made,) = g.several(
        1, "SummedPool", x, domain=DOMAIN, auto_pad=auto_pad, ceil_mode=ceil_mode,
        count_include_pad=count_include_pad, kernel_shape=kernel_shape,
        pads=pads, strides=strides,
    )  # fmt: skip
    made = nhwc(g, made, n) if channels_last else made
    return _rounded(g, g("Div", made, y_scale), y_zero_point, X)


@body("QLinearGlobalAveragePool", infer=infer_microsoft.nhwc(infer_conv.global_pool), flat=PIECEWISE_CONSTANT)
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


@body("QLinearMul", infer=infer_microsoft.qlinear_binary, flat=PIECEWISE_CONSTANT)
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


@body("QLinearConv", infer=infer_microsoft.nhwc(infer_conv.qlinear_conv), flat=PIECEWISE_CONSTANT)
def qlinear_conv(
    g: Writer, x: Value, x_scale: Value, x_zero_point: Value, w: Value, w_scale: Value, w_zero_point: Value,
    y_scale: Value, y_zero_point: Value, B: Maybe = None, *, auto_pad: str = "NOTSET", channels_last: int = 0,
    dilations: list[int] | None = None, group: int = 1, kernel_shape: list[int] | None = None,
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Value:  # fmt: skip
    """QLinearConv, optionally with channels last. The weights are [out, in / group, *kernel] either way."""
    n = g.rank(x)
    inner = nchw(g, x, n) if channels_last else x
    made = g(
        "QLinearConv", inner, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B,
        auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape,
        pads=pads, strides=strides,
    )  # fmt: skip
    return nhwc(g, made, n) if channels_last else made


# ---- products of integers --------------------------------------------------------------------------------------------


@body("MatMulIntegerToFloat", traits=[PRODUCT], infer=infer_microsoft.float_product)
def matmul_integer_to_float(
    g: Writer, A: Value, B: Value, a_scale: Value, b_scale: Value, a_zero_point: Maybe = None,
    b_zero_point: Maybe = None, bias: Maybe = None,
) -> Value:  # fmt: skip
    """MatMulInteger, times both scales (that of B may be by column), plus a bias."""
    total = g("Cast", g("MatMulInteger", A, B, a_zero_point, b_zero_point), to=(info(a_scale).dtype or FLOAT))
    made = g("Mul", total, g("Mul", a_scale, b_scale))
    return made if bias is None else g("Add", made, bias)


@body("DynamicQuantizeMatMul", traits=[PRODUCT], infer=infer_microsoft.float_product)
def dynamic_quantize_matmul(
    g: Writer, A: Value, B: Value, b_scale: Value, b_zero_point: Maybe = None, bias: Maybe = None
) -> Value:
    quantized, scale, zero = g.several(3, "DynamicQuantizeLinear", A)
    return matmul_integer_to_float(g, quantized, B, scale, b_scale, zero, b_zero_point, bias)


@body("QGemm", infer=infer_microsoft.qgemm, flat={"y_scale": PIECEWISE_CONSTANT})
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
        made = product(g, input, weight, input_scale, weight_scale, input_zero_point, weight_zero_point, bias)
        return attended(
            g, projected(g, made, None), num_heads, (mask_index, None), past, like=bias, batch=input,
            scale=scale, is_causal=bool(unidirectional), filtered=mask_filter_value,
        )  # fmt: skip

    return qattention


_axes = "b l h; h c; c; ; ; mask; ; ; 2 b n p s"
body("QAttention", infer=infer_attention.attention, axes=_axes, drawn={5: drawn.lengths(8, own_keys=True)})(
    qattention_of(matmul_integer_to_float)
)


@body("QEmbedLayerNormalization", infer=infer_microsoft.embed, drawn={0: drawn.rows(2), 1: drawn.rows(4)})
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
