"""Operators on integers as float operators that they approximate: dequantise, compute, quantise.

Each operator has one function, as in `passes/contrib`. Plugins add the bodies of theirs that have this form anyway. A
bias has the scale `input scale * weight scale`. `products` does the same for integer products that are cast and scaled
afterwards:

    Mul(Cast(MatMulInteger(a, b, a_zero, b_zero)), Mul(a_scale, b_scale))
        = MatMul(DequantizeLinear(a, a_scale, a_zero), DequantizeLinear(b, b_scale, b_zero))

onnxruntime's dynamic quantisation writes the former. There `a` comes from a DynamicQuantizeLinear.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.annotations import FIXED
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import FLOATS, made_by
from onnxgen.graph.operators import bundled
from onnxgen.passes.contrib.writer import (
    FLOAT_BODIES,
    Bodies,
    Maybe,
    Refused,
    Value,
    Writer,
    body,
    nchw,
    nhwc,
    quantized_to,
)
from onnxgen.passes.match import other, standard_nodes
from onnxgen.passes.quantized.moved import elements, same
from onnxgen.passes.rewrite import input_at, insert, only_user, replace
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored

PACKED = "DequantizePacked"  # onnxgen's own: a matrix that onnxruntime packs, with the attributes of a `Dequantised`


def float_bodies() -> Bodies:
    """Return the bodies of all operators on integers."""
    bundled()  # plugins add theirs
    return FLOAT_BODIES


def _floats(g: Writer, x: Value, scale: Value, zero: Maybe = None, axis: int = 0) -> Value:
    return g("DequantizeLinear", x, scale, zero, axis=axis)


@body("QLinearConv", domain="", table=FLOAT_BODIES)
@body("QLinearConv", table=FLOAT_BODIES)
def qlinear_conv(
    g: Writer, x: Value, x_scale: Value, x_zero_point: Value, w: Value, w_scale: Value, w_zero_point: Value,
    y_scale: Value, y_zero_point: Value, B: Maybe = None, *,
    auto_pad: str = "NOTSET", channels_last: int = 0, dilations: list[int] | None = None, group: int = 1,
    kernel_shape: list[int] | None = None, pads: list[int] | None = None, strides: list[int] | None = None,
) -> Value:  # fmt: skip
    data = _floats(g, x, x_scale, x_zero_point)
    rank = g.rank(x) if channels_last else 0
    bias = None if B is None else _floats(g, B, g("Mul", x_scale, w_scale))
    y = g(
        "Conv", nchw(g, data, rank) if channels_last else data, _floats(g, w, w_scale, w_zero_point), bias,
        auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape,
        pads=pads, strides=strides,
    )  # fmt: skip
    y = nhwc(g, y, rank) if channels_last else y
    return g("QuantizeLinear", y, y_scale, y_zero_point)


@body("QLinearMatMul", domain="", table=FLOAT_BODIES)
def qlinear_matmul(
    g: Writer, a: Value, a_scale: Value, a_zero_point: Value, b: Value, b_scale: Value, b_zero_point: Value,
    y_scale: Value, y_zero_point: Value,
) -> Value:  # fmt: skip
    y = g("MatMul", _rows(g, a, a_scale, a_zero_point), _columns(g, b, b_scale, b_zero_point))
    return g("QuantizeLinear", y, y_scale, y_zero_point)


def _columns(g: Writer, b: Value, scale: Value, zero: Maybe) -> Value:
    """Dequantise the right operand of a product, which may have a scale for each column."""
    shape = info(scale).shape
    if shape is None or len(shape) > 1:
        raise Refused("the right operand has a scale for each matrix", "generate with --quantized keep")
    return _floats(g, b, scale, zero, g.rank(b) - 1 if shape not in ((), (1,)) else 0)


def _rows(g: Writer, a: Value, scale: Value, zero: Maybe) -> Value:
    if info(scale).shape not in ((), (1,)):
        raise Refused("the left operand has a scale for each row", "generate with --quantized keep")
    return _floats(g, a, scale, zero)


@body("QGemm", table=FLOAT_BODIES)
def qgemm(
    g: Writer, A: Value, a_scale: Value, a_zero_point: Value, B: Value, b_scale: Value, b_zero_point: Value,
    C: Maybe = None, y_scale: Maybe = None, y_zero_point: Maybe = None, *,
    alpha: float = 1.0, transA: int = 0, transB: int = 0,
) -> Value:  # fmt: skip
    if alpha != 1.0 and C is not None:
        raise Refused("the scale of the bias contains alpha", "generate with --quantized keep")
    bias = None if C is None else _floats(g, C, g("Mul", a_scale, b_scale), axis=g.rank(C) - 1)
    weight = _floats(g, B, b_scale, b_zero_point, 0 if transB else 1)
    y = g("Gemm", _floats(g, A, a_scale, a_zero_point), weight, bias, alpha=alpha, transA=transA, transB=transB)
    return y if y_scale is None else quantized_to(g, y, y_scale, y_zero_point, A)


@body("MatMulIntegerToFloat", table=FLOAT_BODIES)
def matmul_integer_to_float(
    g: Writer, A: Value, B: Value, a_scale: Value, b_scale: Value, a_zero_point: Maybe = None,
    b_zero_point: Maybe = None, bias: Maybe = None,
) -> Value:  # fmt: skip
    y = g("MatMul", _rows(g, A, a_scale, a_zero_point), _columns(g, B, b_scale, b_zero_point))
    return y if bias is None else g("Add", y, bias)


@body("DynamicQuantizeMatMul", table=FLOAT_BODIES)
def dynamic_quantize_matmul(
    g: Writer, A: Value, B: Value, b_scale: Value, b_zero_point: Maybe = None, bias: Maybe = None
) -> Value:
    quantised, scale, zero = g.several(3, "DynamicQuantizeLinear", A)
    y = g("MatMul", _floats(g, quantised, scale, zero), _columns(g, B, b_scale, b_zero_point))
    return y if bias is None else g("Add", y, bias)


# ---- matrices packed by block ----------------------------------------------------------------------------------------


def _packed(g: Writer, stored: list[Maybe], rows: int, columns: int, block: int, **attributes: object) -> Value:
    """Return the matrix [columns, rows] of a product, which is stored as [rows, columns]."""
    (matrix,) = g.several(1, PACKED, *stored, domain=DOMAIN, shape=[rows, columns], block=block, **attributes)
    return g("Transpose", matrix, perm=[1, 0])


@body("MatMulNBits", table=FLOAT_BODIES)
def matmul_nbits(
    g: Writer, A: Value, B: Value, scales: Value, zero_points: Maybe = None, g_idx: Maybe = None, bias: Maybe = None,
    *, K: int, N: int, block_size: int, bits: int = 4, accuracy_level: int = 0, weight_prepacked: int = 0,
) -> Value:  # fmt: skip
    if g_idx is not None or weight_prepacked or block_size < 1 or not 1 <= bits <= 8:
        raise Refused("the weights are reordered (g_idx) or prepacked", "generate with --quantized keep")
    weight = _packed(g, [B, scales, zero_points], N, K, block_size, form="bits", bits=bits)
    y = g("MatMul", A, weight)
    return y if bias is None else g("Add", y, bias)


@body("MatMulBnb4", table=FLOAT_BODIES)
def matmul_bnb4(
    g: Writer, A: Value, B: Value, absmax: Value, *, K: int, N: int, block_size: int, quant_type: int,
    training_mode: int = 0, transB: int = 1,
) -> Value:  # fmt: skip
    if quant_type not in (0, 1) or block_size < 1 or not transB:
        raise Refused("the weights are neither FP4 nor NF4, or transposed", "generate with --quantized keep")
    return g("MatMul", A, _packed(g, [B, absmax], N, K, block_size, form="table", kind=quant_type))


@body("QLinearAdd", "QLinearMul", table=FLOAT_BODIES)
def qlinear_binary(
    g: Writer, A: Value, A_scale: Value, A_zero_point: Maybe, B: Value, B_scale: Value, B_zero_point: Maybe,
    C_scale: Value, C_zero_point: Maybe = None,
) -> Value:  # fmt: skip
    operands = _floats(g, A, A_scale, A_zero_point), _floats(g, B, B_scale, B_zero_point)
    return quantized_to(g, g(g.node.op_type.removeprefix("QLinear"), *operands), C_scale, C_zero_point, A)


@body("QLinearSoftmax", table=FLOAT_BODIES)
def qlinear_softmax(
    g: Writer, X: Value, X_scale: Value, x_zero_point: Maybe, y_scale: Value, y_zero_point: Value, *,
    axis: int = -1, opset: int,
) -> Value:  # fmt: skip
    x, rank = _floats(g, X, X_scale, x_zero_point), g.rank(X)
    if opset < 13 and axis % rank != rank - 1:
        raise Refused("the softmax is over several axes", "generate with --quantized keep")
    y = quantized_to(g, g("Softmax", x, axis=axis), y_scale, y_zero_point, X)
    FIXED.set(g.written[-1], True)  # onnxruntime uses the integer below 1 / y_scale instead
    return y


@body("QLinearGlobalAveragePool", table=FLOAT_BODIES)
def qlinear_global_average_pool(
    g: Writer, X: Value, x_scale: Value, x_zero_point: Value, y_scale: Value, y_zero_point: Value, *,
    channels_last: int = 0,
) -> Value:  # fmt: skip
    x, rank = _floats(g, X, x_scale, x_zero_point), g.rank(X) if channels_last else 0
    y = g("GlobalAveragePool", nchw(g, x, rank) if channels_last else x)
    y = nhwc(g, y, rank) if channels_last else y
    return g("QuantizeLinear", y, y_scale, y_zero_point)


@body("QLinearAveragePool", table=FLOAT_BODIES)
def qlinear_average_pool(
    g: Writer, X: Value, x_scale: Value, x_zero_point: Maybe, y_scale: Value, y_zero_point: Maybe = None, *,
    auto_pad: str = "NOTSET", ceil_mode: int = 0, channels_last: int = 0, count_include_pad: int = 0,
    kernel_shape: list[int], pads: list[int] | None = None, strides: list[int] | None = None,
) -> Value:  # fmt: skip
    x, rank = _floats(g, X, x_scale, x_zero_point), g.rank(X) if channels_last else 0
    counts_all = ceil_mode and count_include_pad  # also counts elements behind the padding; the standard does not
    (y,) = g.several(
        1, "SummedPool" if counts_all else "AveragePool", nchw(g, x, rank) if channels_last else x,
        domain=DOMAIN if counts_all else "", auto_pad=auto_pad, ceil_mode=ceil_mode,
        count_include_pad=count_include_pad, kernel_shape=kernel_shape,
        pads=pads, strides=strides,
    )  # fmt: skip
    y = nhwc(g, y, rank) if channels_last else y
    return quantized_to(g, y, y_scale, y_zero_point, X)


FLOAT_PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}


def products(model: ir.Model) -> None:
    """Rewrite every integer product whose scales are found."""
    for node in standard_nodes(model, *FLOAT_PRODUCTS):
        if len(node.outputs[0].uses()) == 1:
            _rewrite(node)


def _rewrite(node: ir.Node) -> None:
    cast = only_user(node.outputs[0], "Cast")
    scaled = None if cast is None else only_user(cast.outputs[0], "Mul")
    if cast is None or scaled is None or cast.attributes["to"].as_int() not in FLOATS:
        return
    a, b, factor = node.inputs[0], node.inputs[1], other(scaled, cast.outputs[0])
    scales = None if a is None or factor is None else _scales(a, factor)
    if a is None or b is None or scales is None:
        return
    axis = (info(b).rank or 1) - 1 if node.op_type == "MatMulInteger" else 0
    left = _dequantised(scaled, a, scales[0], input_at(node, 2), 0)
    right = _dequantised(scaled, b, scales[1], input_at(node, 3), axis)
    product = ir.Node("", FLOAT_PRODUCTS[node.op_type], [left, right], node.attributes.values(), version=22)
    replace(scaled, product, origin=node)


def _scales(a: ir.Value, factor: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Return the one scale of the left operand, and the stored scale of the right one, if a factor is their product."""
    scales = _factors(factor)
    left = next((s for s in scales if _is_scale_of(s, a)), None)
    others = [s for s in scales if s is not left]
    if left is None or len(others) != 1 or elements(left) != 1 or stored(others[0]) is None:
        return None
    return left, others[0]


def _factors(value: ir.Value) -> list[ir.Value]:
    node = made_by(value, "Mul")
    return [value] if node is None else [f for v in node.inputs if v is not None for f in _factors(v)]


def _is_scale_of(scale: ir.Value, x: ir.Value) -> bool:
    """Return True if `x` was quantised with this scale."""
    node = made_by(x, "DynamicQuantizeLinear", "QuantizeLinear")
    if node is None or node.op_type == "DynamicQuantizeLinear":
        return node is not None and scale is node.outputs[1]
    return same(scale, node.inputs[1])


def _dequantised(before: ir.Node, x: ir.Value, scale: ir.Value, zero: ir.Value | None, axis: int) -> ir.Value:
    node = ir.Node("", "DequantizeLinear", [x, scale, zero], [ir.AttrInt64("axis", axis)], version=21)
    node.outputs[0].name = f"{before.outputs[0].name}:{axis}:{x.name}"
    insert(before, node)
    return node.outputs[0]
