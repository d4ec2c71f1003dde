"""Bytes that lie in the orders of cublasLt, and what is computed of them (`QOrdered...`, `...WithOrder`).

onnxruntime has kernels for CUDA only. The rounding is theirs: a number is multiplied by the inverse of its scale in
float32, rounded half to even (`__float2int_rn`) and saturated. So are the orders, as NVIDIA describes them
(https://docs.nvidia.com/cuda/cublas/#cublasltorder-t) and as onnxruntime's tests spell them out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from onnxgen.errors import WRITER
from onnxgen.passes.contrib.gated import widened
from onnxgen.passes.contrib.projected import windowed
from onnxgen.passes.contrib.writer import FLOAT, Refused, Writer, body
from onnxgen.shapes.info import Info, info, set_info

COL, ROW, COL32, COL4_4R2_8C, COL32_2R_4R4 = range(5)
HALF, DOUBLE = ir.DataType.FLOAT16, ir.DataType.DOUBLE
KERNELS = "use data orders that onnxruntime's CUDA kernels take"
UNQUANTISED = "quantise the model in another format (QAttention, or QuantizeLinear and DequantizeLinear)"

# into which parts a row's number and a column's fall within their tiles, and in which order all parts follow each other
ORDERS: dict[int, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    COL: ((), (), (1, 0)),
    COL32: ((), (32,), (1, 0, 2)),
    COL4_4R2_8C: ((4, 2), (8, 4), (3, 0, 2, 4, 1, 5)),
    COL32_2R_4R4: ((4, 4, 2), (32,), (4, 0, 2, 1, 3, 5)),  # (((row % 8) / 2 * 4 + row / 8) * 2 + row % 2) * 32 + col
}


def laid_out(g: Writer, x: ir.Value, order: int, back: bool = False) -> ir.Value:
    """Matrices in another order than by rows, under the same shape; `back`: by rows again."""
    if order == ROW:
        return x
    rows, columns, places = ORDERS[order]
    rank, shape = g.rank(x), info(x).shape or ()
    for size, parts in zip((1, *shape)[-2:], (rows, columns)):
        if isinstance(size, int) and size % math.prod(parts):
            raise Refused(f"{size} rows or columns do not divide into tiles of {math.prod(parts)}", "pad the matrices")
    if rank == 1:
        return x
    sizes = [g("Shape", x, start=-2, end=-1), g("Shape", x, start=-1)]
    split = []
    for whole, parts in zip(sizes, (rows, columns)):
        outer = g("Div", whole, g.ints(math.prod(parts))) if parts else whole
        split += [outer, *(g.ints(p) for p in parts)]
    if back:
        split = [split[i] for i in places]
        places = tuple(places.index(i) for i in range(len(places)))
    made = g("Reshape", x, g("Concat", g.ints(-1), *split, axis=0))
    return g("Reshape", g("Transpose", made, perm=[0, *(1 + i for i in places)]), g("Shape", x))


def bytes_of(g: Writer, x: ir.Value) -> ir.Value:
    """Floats as int8, rounded half to even and saturated."""
    return g("QuantizeLinear", x, g.constant(np.asarray(1, np.float32)), g.constant(np.asarray(0, np.int8)))


def _scaled(g: Writer, x: ir.Value, scale: ir.Value) -> ir.Value:
    return bytes_of(g, g("Mul", x, g("Reciprocal", scale)))


def _floats(g: Writer, x: ir.Value, scale: ir.Value) -> ir.Value:
    """What int8 stand for; their scale is one number, perhaps in a vector."""
    return g("Mul", g("Cast", x, to=FLOAT.value), scale)


def _held(orders: Iterable[int | None], *taken: tuple[int, ...]) -> None:
    if (given := tuple(ROW if o is None else o for o in orders)) not in taken:
        raise Refused(f"no kernel takes the data orders {', '.join(map(str, given))}", KERNELS)


@body("QuantizeWithOrder")
def quantize_with_order(
    g: Writer, input: ir.Value, scale_input: ir.Value, *, order_input: int, order_output: int
) -> ir.Value:
    """To int8, in an order of cublasLt; numbers of float16 are scaled as such where they come to be COL32."""
    _held((order_input, order_output), *((ROW, o) for o in (COL, ROW, *ORDERS)))
    x = g.like(laid_out(g, input, order_output), input)
    if info(input).dtype == HALF and order_output == COL32:
        inverse = g("Cast", g("Reciprocal", scale_input), to=HALF.value)
        return bytes_of(g, g("Cast", g("Mul", x, inverse), to=FLOAT.value))
    return _scaled(g, widened(g, x), scale_input)


@body("DequantizeWithOrder")
def dequantize_with_order(
    g: Writer, input: ir.Value, scale_input: ir.Value, *, order_input: int, order_output: int, to: int
) -> ir.Value:
    """From int8 in an order of cublasLt; to float16, COL32 is scaled as such."""
    _held((order_input, order_output), (ROW, ROW), (COL32, ROW))
    rows = laid_out(g, input, order_input, back=True)
    if to == HALF.value and order_input == COL32:
        return g("Mul", g("Cast", rows, to=to), g("Cast", scale_input, to=to))
    made = _floats(g, rows, scale_input)
    return made if to == FLOAT.value else g("Cast", made, to=to)


@body("QOrderedGelu")
def qordered_gelu(
    g: Writer, X: ir.Value, scale_X: ir.Value, scale_Y: ir.Value, *, order_X: int | None = None,
    order_Y: int | None = None,
) -> ir.Value:  # fmt: skip
    """Gelu between int8; in any order, which stays."""
    if order_X != order_Y and None not in (order_X, order_Y):
        raise Refused(f"order_Y {order_Y} must be order_X {order_X}", WRITER)
    return _scaled(g, g("Gelu", _floats(g, X, scale_X)), scale_Y)


@body("QOrderedLayerNormalization")
def qordered_layer_normalization(
    g: Writer, X: ir.Value, scale_X: ir.Value, scale: ir.Value, B: ir.Value | None, scale_Y: ir.Value, *,
    axis: int = -1, epsilon: float = 1e-5, order_X: int = ROW, order_Y: int = ROW,
) -> ir.Value:  # fmt: skip
    """LayerNormalization between int8."""
    _held((order_X, order_Y), (ROW, ROW))
    weights = [None if w is None else widened(g, w) for w in (scale, B)]
    x = _floats(g, X, scale_X)
    return _scaled(g, g("LayerNormalization", x, *weights, axis=axis, epsilon=epsilon), scale_Y)


def _transposed(g: Writer, x: ir.Value, order: int) -> ir.Value:
    """The right operand of a product by rows; it lies transposed, by rows where its order is COL."""
    sizes = [g("Shape", x, start=-1), g("Shape", x, start=-2, end=-1)]
    if g.rank(x) > 2:
        sizes.insert(0, g("Shape", x, end=-2))
    turned = g("Reshape", x, g("Concat", *sizes, axis=0))
    if (shape := info(x).shape) is not None:
        set_info(turned, Info(info(x).dtype, (*shape[:-2], shape[-1], shape[-2])))
    perm = [*range(g.rank(x) - 2), g.rank(x) - 1, g.rank(x) - 2]
    return g("Transpose", laid_out(g, turned, ROW if order == COL else order, back=True), perm=perm)


def _product(g: Writer, a: ir.Value, b: ir.Value, factor: ir.Value) -> ir.Value:
    """An exact product of integers, scaled."""
    return g("Mul", g("Cast", g("MatMulInteger", a, b), to=FLOAT.value), factor)


@body("QOrderedMatMul")
def qordered_matmul(
    g: Writer, A: ir.Value, scale_A: ir.Value, B: ir.Value, scale_B: ir.Value, scale_Y: ir.Value,
    bias: ir.Value | None = None, C: ir.Value | None = None, scale_C: ir.Value | None = None, *,
    order_A: int, order_B: int, order_Y: int,
) -> ir.Value:  # fmt: skip
    """A product of int8, plus a bias and a scaled matrix; B lies transposed, and may have a scale for each column."""
    tiled = ((COL32, order, COL32) for order in (COL4_4R2_8C, COL32_2R_4R4))
    _held((order_A, order_B, order_Y), (ROW, COL, ROW), *tiled)
    if bias is not None and order_B != COL:
        raise Refused("a bias is not defined for a tiled product", KERNELS)
    if C is not None and scale_C is None:
        raise Refused("input C needs scale_C, which is missing", WRITER)
    b, rank = _transposed(g, B, order_B), g.rank(A)
    if g.rank(scale_B):
        factor = g("Mul", scale_B, g("Div", scale_A, scale_Y))
    else:
        factor = g("Div", g("Mul", scale_A, scale_B), scale_Y)
    b = g("Squeeze", b, g.ints(0)) if g.rank(B) > rank else b
    made = _product(g, laid_out(g, A, order_A, back=True), b, factor)
    if bias is not None:
        made = g("Add", made, g("Mul", bias, g("Reciprocal", scale_Y)))
    if C is not None:
        c = g("Cast", laid_out(g, C, order_Y, back=True), to=FLOAT.value)
        c = g("Squeeze", c, g.ints(0)) if g.rank(C) > rank else c
        made = g("Add", made, g("Mul", c, g("Div", scale_C, scale_Y)))
    return laid_out(g, g.like(bytes_of(g, made), g.node.outputs[0]), order_Y)


@body("QOrderedAttention")
def qordered_attention(
    g: Writer, input: ir.Value, scale_input: ir.Value, scale_Q_gemm: ir.Value, scale_K_gemm: ir.Value,
    scale_V_gemm: ir.Value, Q_weight: ir.Value, K_weight: ir.Value, V_weight: ir.Value, scale_Q_weight: ir.Value,
    scale_K_weight: ir.Value, scale_V_weight: ir.Value, Q_bias: ir.Value, K_bias: ir.Value, V_bias: ir.Value,
    scale_QKT_gemm: ir.Value | None, scale_QKT_softmax: ir.Value | None, scale_values_gemm: ir.Value,
    mask_index: ir.Value | None = None, past: ir.Value | None = None, attention_bias: ir.Value | None = None, *,
    num_heads: int, order_input: int, order_output: int, order_weight: int,
    qkv_hidden_sizes: list[int] | None = None, unidirectional: int = 0,
) -> ir.Value:  # fmt: skip
    """Self-attention whose projections, scores, probabilities and results are int8."""
    _held((order_input, order_weight, order_output), (ROW, COL, ROW))
    if unidirectional or past is not None or attention_bias is not None or len({*(qkv_hidden_sizes or ())}) > 1:
        raise Refused("the kernel takes no causal mask, cache, attention bias or heads of different sizes", UNQUANTISED)
    if scale_QKT_gemm is None or scale_QKT_softmax is None:
        raise Refused("scale_QKT_gemm or scale_QKT_softmax is missing", WRITER)
    if mask_index is not None and g.rank(mask_index) != 2:
        raise Refused("the kernel takes only masks of shape [batch, sequence]", UNQUANTISED)
    q, k, v = (
        _projected(g, input, scale_input, num_heads, *given)
        for given in (
            (Q_weight, scale_Q_weight, Q_bias, scale_Q_gemm),
            (K_weight, scale_K_weight, K_bias, scale_K_gemm),
            (V_weight, scale_V_weight, V_bias, scale_V_gemm),
        )
    )
    turned = g("Transpose", k, perm=[0, 1, 3, 2])
    scores = bytes_of(g, _product(g, q, turned, _in_double(g, scale_Q_gemm, scale_K_gemm, scale_QKT_gemm)))
    size = g("Sqrt", g("Cast", g("Shape", q, start=3), to=DOUBLE.value))
    spread = g("Div", g("Cast", scale_QKT_gemm, to=DOUBLE.value), size)
    probabilities = _softmax(g, scores, spread, scale_QKT_softmax, mask_index)
    factor = _in_double(g, scale_QKT_softmax, scale_V_gemm, scale_values_gemm)
    made = bytes_of(g, _product(g, probabilities, v, factor))
    return g("Reshape", g("Transpose", made, perm=[0, 2, 1, 3]), g.ints(0, 0, -1))


def _projected(
    g: Writer, x: ir.Value, x_scale: ir.Value, heads: int, weight: ir.Value, scale: ir.Value, bias: ir.Value,
    to: ir.Value,
) -> ir.Value:  # fmt: skip
    """int8 of the scale `to`, as [batch, heads, length, size]."""
    made = _product(g, x, _transposed(g, weight, COL), g("Mul", scale, g("Div", x_scale, to)))
    made = bytes_of(g, g("Add", made, g("Mul", bias, g("Reciprocal", to))))
    return g("Transpose", g("Reshape", made, g.ints(0, 0, heads, -1)), perm=[0, 2, 1, 3])


def _in_double(g: Writer, first: ir.Value, second: ir.Value, over: ir.Value) -> ir.Value:
    """`first * second / over`, rounded to float32 once."""
    a, b, c = (g("Cast", s, to=DOUBLE.value) for s in (first, second, over))
    return g("Cast", g("Div", g("Mul", a, b), c), to=FLOAT.value)


def _softmax(g: Writer, scores: ir.Value, spread: ir.Value, scale: ir.Value, mask: ir.Value | None) -> ir.Value:
    """Of scores in units of `spread`, as int8. What is masked counts for the largest; a row without keys is 127."""
    wide = g("Cast", scores, to=DOUBLE.value)
    below = g("Sub", wide, g("ReduceMax", wide, g.ints(-1)))
    powers = g("Cast", g("Exp", g("Mul", below, spread)), to=FLOAT.value)
    if mask is not None:
        kept = g("Cast", g("Cast", mask, to=ir.DataType.BOOL.value), to=FLOAT.value)
        powers = g("Mul", powers, g("Unsqueeze", kept, g.ints(1, 2)))
    total = g("Cast", g("ReduceSum", powers, g.ints(-1)), to=DOUBLE.value)
    inverse = g("Cast", g("Reciprocal", g("Mul", total, g("Cast", scale, to=DOUBLE.value))), to=FLOAT.value)
    made = g("Mul", powers, inverse)
    if mask is not None:  # 0 * inf is NaN, which CUDA's fminf takes for 127
        made = g("Where", g("IsNaN", made), g.constant(np.asarray(127, np.float32)), made)
    return bytes_of(g, made)


@body("QOrderedLongformerAttention")
def qordered_longformer_attention(
    g: Writer, input: ir.Value, scale_input: ir.Value, weight: ir.Value, scale_weight: ir.Value, bias: ir.Value,
    scale_bias: ir.Value, scale_qkv_gemm: ir.Value, mask: ir.Value, global_weight: ir.Value,
    scale_global_weight: ir.Value, global_bias: ir.Value, scale_global_gemm: ir.Value, global_: ir.Value,
    scale_output: ir.Value, *, num_heads: int, window: int, order_global_weight: int, order_input: int,
    order_output: int, order_weight: int,
) -> ir.Value:  # fmt: skip
    """LongformerAttention in float16, of projections that are int8. `scale_bias` is not used.

    Biases are in units of their projection's result, as qordered_longformer_attention.cc says and no schema.
    """
    _held((order_input, order_weight, order_global_weight, order_output), (ROW, COL, COL, ROW))
    operands = []
    for w, scale, b, to in (
        (weight, scale_weight, bias, scale_qkv_gemm),
        (global_weight, scale_global_weight, global_bias, scale_global_gemm),
    ):
        factor = g("Div", g("Mul", scale_input, scale), to)
        made = bytes_of(g, g("Add", _product(g, input, _transposed(g, w, COL), factor), b))
        operands.append(g("Cast", _floats(g, made, to), to=HALF.value))
    made = windowed(g, (operands[0], operands[1]), mask, global_, num_heads, window)
    return _scaled(g, g("Cast", made, to=FLOAT.value), scale_output)
