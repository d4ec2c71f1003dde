"""Operators on int8 in the data orders of cublasLt (`QOrdered...`, `...WithOrder`).

onnxruntime has CUDA kernels only, and the bodies round as they do: a number is multiplied by the inverse of its scale
in float32, rounded half to even (`__float2int_rn`) and saturated. The orders are those that NVIDIA describes
(https://docs.nvidia.com/cuda/cublas/#cublasltorder-t) and onnxruntime's tests spell out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from onnxgen.errors import WRITER
from onnxgen.graph.operators import PIECEWISE_CONSTANT
from onnxgen.microsoft import infer
from onnxgen.microsoft.attention_variants import windowed
from onnxgen.microsoft.domain import body
from onnxgen.passes.contrib.parts import heads_of, merged_heads
from onnxgen.passes.contrib.writer import FLOAT, Maybe, Refused, Value, Writer, widened
from onnxgen.shapes.info import Info, info, set_info

COL, ROW, COL32, COL4_4R2_8C, COL32_2R_4R4 = range(5)
HALF, DOUBLE = ir.DataType.FLOAT16, ir.DataType.DOUBLE
KERNELS = "use data orders that onnxruntime's CUDA kernels take"
UNQUANTISED = "quantise the model in another format (QAttention, or QuantizeLinear and DequantizeLinear)"

# the factors into which tiles split row and column numbers, and the order of all factors in memory
ORDERS: dict[int, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    COL: ((), (), (1, 0)),
    COL32: ((), (32,), (1, 0, 2)),
    COL4_4R2_8C: ((4, 2), (8, 4), (3, 0, 2, 4, 1, 5)),
    COL32_2R_4R4: ((4, 4, 2), (32,), (4, 0, 2, 1, 3, 5)),  # (((row % 8) / 2 * 4 + row / 8) * 2 + row % 2) * 32 + col
}


def laid_out(g: Writer, x: Value, order: int, back: bool = False) -> Value:
    """Rearrange matrices from row-major order to another, with the same shape. `back`: the inverse."""
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
    tiles = g("Reshape", x, g("Concat", g.ints(-1), *split, axis=0))
    return g("Reshape", g("Transpose", tiles, perm=[0, *(1 + i for i in places)]), g("Shape", x))


def bytes_of(g: Writer, x: Value) -> Value:
    """Convert floats to int8, rounded half to even and saturated."""
    return g("QuantizeLinear", x, g.float32(1), g.constant(np.asarray(0, np.int8)))


def _scaled(g: Writer, x: Value, scale: Value) -> Value:
    return bytes_of(g, g("Mul", x, g("Reciprocal", scale)))


def _floats(g: Writer, x: Value, scale: Value) -> Value:
    """Convert int8 to floats. The scale is one number, perhaps in a vector."""
    return g("Mul", g("Cast", x, to=FLOAT), scale)


def _require(orders: Iterable[int | None], *taken: tuple[int, ...]) -> None:
    """Raise `Refused` unless a kernel takes the data orders."""
    if (used := tuple(ROW if o is None else o for o in orders)) not in taken:
        raise Refused(f"no kernel takes the data orders {', '.join(map(str, used))}", KERNELS)


@body("QuantizeWithOrder", infer=infer.ordered, flat=PIECEWISE_CONSTANT)
def quantize_with_order(g: Writer, input: Value, scale_input: Value, *, order_input: int, order_output: int) -> Value:
    """Quantise to int8 in an order of cublasLt. For COL32, float16 inputs are scaled in float16."""
    _require((order_input, order_output), *((ROW, o) for o in (COL, ROW, *ORDERS)))
    x = g.like(laid_out(g, input, order_output), input)
    if info(input).dtype == HALF and order_output == COL32:
        inverse = g("Cast", g("Reciprocal", scale_input), to=HALF)
        return bytes_of(g, g("Cast", g("Mul", x, inverse), to=FLOAT))
    return _scaled(g, widened(g, x), scale_input)


@body("DequantizeWithOrder", infer=infer.ordered)
def dequantize_with_order(
    g: Writer, input: Value, scale_input: Value, *, order_input: int, order_output: int, to: int
) -> Value:
    """Dequantise int8 in an order of cublasLt. From COL32, float16 results are scaled in float16."""
    _require((order_input, order_output), (ROW, ROW), (COL32, ROW))
    rows = laid_out(g, input, order_input, back=True)
    if to == HALF and order_input == COL32:
        return g("Mul", g("Cast", rows, to=to), g("Cast", scale_input, to=to))
    floats = _floats(g, rows, scale_input)
    return floats if to == FLOAT else g("Cast", floats, to=to)


@body("QOrderedGelu", infer=infer.ordered, flat=PIECEWISE_CONSTANT)
def qordered_gelu(
    g: Writer, X: Value, scale_X: Value, scale_Y: Value, *, order_X: int | None = None, order_Y: int | None = None
) -> Value:
    """Gelu from int8 to int8, in any data order."""
    if order_X != order_Y and None not in (order_X, order_Y):
        raise Refused(f"order_Y {order_Y} must be order_X {order_X}", WRITER)
    return _scaled(g, g("Gelu", _floats(g, X, scale_X)), scale_Y)


@body("QOrderedLayerNormalization", infer=infer.ordered, flat=PIECEWISE_CONSTANT)
def qordered_layer_normalization(
    g: Writer, X: Value, scale_X: Value, scale: Value, B: Maybe, scale_Y: Value, *,
    axis: int = -1, epsilon: float = 1e-5, order_X: int = ROW, order_Y: int = ROW,
) -> Value:  # fmt: skip
    """LayerNormalization from int8 to int8."""
    _require((order_X, order_Y), (ROW, ROW))
    weights = [None if w is None else widened(g, w) for w in (scale, B)]
    x = _floats(g, X, scale_X)
    return _scaled(g, g("LayerNormalization", x, *weights, axis=axis, epsilon=epsilon), scale_Y)


def _transposed(g: Writer, x: Value, order: int) -> Value:
    """Return the right operand of a product in row-major order. It is stored transposed: COL means by rows."""
    sizes = [g("Shape", x, start=-1), g("Shape", x, start=-2, end=-1)]
    if g.rank(x) > 2:
        sizes.insert(0, g("Shape", x, end=-2))
    turned = g("Reshape", x, g("Concat", *sizes, axis=0))
    if (shape := info(x).shape) is not None:
        set_info(turned, Info(info(x).dtype, (*shape[:-2], shape[-1], shape[-2])))
    perm = [*range(g.rank(x) - 2), g.rank(x) - 1, g.rank(x) - 2]
    return g("Transpose", laid_out(g, turned, ROW if order == COL else order, back=True), perm=perm)


def _product(g: Writer, a: Value, b: Value, factor: Value) -> Value:
    """Return an exact product of integers, scaled."""
    return g("Mul", g("Cast", g("MatMulInteger", a, b), to=FLOAT), factor)


@body("QOrderedMatMul", infer=infer.ordered_product, flat=PIECEWISE_CONSTANT)
def qordered_matmul(
    g: Writer, A: Value, scale_A: Value, B: Value, scale_B: Value, scale_Y: Value, bias: Maybe = None, C: Maybe = None,
    scale_C: Maybe = None, *, order_A: int, order_B: int, order_Y: int,
) -> Value:  # fmt: skip
    """A product of int8 plus a bias and a scaled matrix. B is transposed, and may have a scale for each column."""
    tiled = ((COL32, order, COL32) for order in (COL4_4R2_8C, COL32_2R_4R4))
    _require((order_A, order_B, order_Y), (ROW, COL, ROW), *tiled)
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
    product = _product(g, laid_out(g, A, order_A, back=True), b, factor)
    if bias is not None:
        product = g("Add", product, g("Mul", bias, g("Reciprocal", scale_Y)))
    if C is not None:
        c = g("Cast", laid_out(g, C, order_Y, back=True), to=FLOAT)
        c = g("Squeeze", c, g.ints(0)) if g.rank(C) > rank else c
        product = g("Add", product, g("Mul", c, g("Div", scale_C, scale_Y)))
    return laid_out(g, g.like(bytes_of(g, product), g.node.outputs[0]), order_Y)


@body("QOrderedAttention", infer=infer.ordered_product, flat=PIECEWISE_CONSTANT)
def qordered_attention(
    g: Writer, input: Value, scale_input: Value, scale_Q_gemm: Value, scale_K_gemm: Value, scale_V_gemm: Value,
    Q_weight: Value, K_weight: Value, V_weight: Value, scale_Q_weight: Value, scale_K_weight: Value,
    scale_V_weight: Value, Q_bias: Value, K_bias: Value, V_bias: Value, scale_QKT_gemm: Maybe, scale_QKT_softmax: Maybe,
    scale_values_gemm: Value, mask_index: Maybe = None, past: Maybe = None, attention_bias: Maybe = None, *,
    num_heads: int, order_input: int, order_output: int, order_weight: int, qkv_hidden_sizes: list[int] | None = None,
    unidirectional: int = 0,
) -> Value:  # fmt: skip
    """Self-attention whose projections, scores, probabilities and results are int8."""
    _require((order_input, order_weight, order_output), (ROW, COL, ROW))
    if unidirectional or past is not None or attention_bias is not None or len({*(qkv_hidden_sizes or ())}) > 1:
        raise Refused("the kernel takes no causal mask, cache, attention bias or heads of different sizes", UNQUANTISED)
    if scale_QKT_gemm is None or scale_QKT_softmax is None:
        raise Refused("scale_QKT_gemm or scale_QKT_softmax is missing", WRITER)
    if mask_index is not None and g.rank(mask_index) != 2:
        raise Refused("the kernel takes only masks of shape [batch, sequence]", UNQUANTISED)
    q, k, v = (
        _projected(g, input, scale_input, num_heads, *projection)
        for projection in (
            (Q_weight, scale_Q_weight, Q_bias, scale_Q_gemm),
            (K_weight, scale_K_weight, K_bias, scale_K_gemm),
            (V_weight, scale_V_weight, V_bias, scale_V_gemm),
        )
    )
    turned = g("Transpose", k, perm=[0, 1, 3, 2])
    scores = bytes_of(g, _product(g, q, turned, _in_double(g, scale_Q_gemm, scale_K_gemm, scale_QKT_gemm)))
    size = g("Sqrt", g("Cast", g("Shape", q, start=3), to=DOUBLE))
    spread = g("Div", g("Cast", scale_QKT_gemm, to=DOUBLE), size)
    probabilities = _softmax(g, scores, spread, scale_QKT_softmax, mask_index)
    factor = _in_double(g, scale_QKT_softmax, scale_V_gemm, scale_values_gemm)
    return merged_heads(g, bytes_of(g, _product(g, probabilities, v, factor)))


def _projected(
    g: Writer, x: Value, x_scale: Value, heads: int, weight: Value, scale: Value, bias: Value, to: Value
) -> Value:
    """Project to int8 with the scale `to`, as [batch, heads, length, size]."""
    product = _product(g, x, _transposed(g, weight, COL), g("Mul", scale, g("Div", x_scale, to)))
    product = bytes_of(g, g("Add", product, g("Mul", bias, g("Reciprocal", to))))
    return heads_of(g, product, heads)


def _in_double(g: Writer, first: Value, second: Value, over: Value) -> Value:
    """Compute `first * second / over`, rounded to float32 once."""
    a, b, c = (g("Cast", s, to=DOUBLE) for s in (first, second, over))
    return g("Cast", g("Div", g("Mul", a, b), c), to=FLOAT)


def _softmax(g: Writer, scores: Value, spread: Value, scale: Value, mask: Maybe) -> Value:
    """Softmax of scores in units of `spread`, as int8. The maximum includes masked keys; rows without keys are 127."""
    wide = g("Cast", scores, to=DOUBLE)
    below = g("Sub", wide, g("ReduceMax", wide, g.ints(-1)))
    powers = g("Cast", g("Exp", g("Mul", below, spread)), to=FLOAT)
    if mask is not None:
        kept = g("Cast", g("Cast", mask, to=ir.DataType.BOOL), to=FLOAT)
        powers = g("Mul", powers, g("Unsqueeze", kept, g.ints(1, 2)))
    total = g("Cast", g("ReduceSum", powers, g.ints(-1)), to=DOUBLE)
    inverse = g("Cast", g("Reciprocal", g("Mul", total, g("Cast", scale, to=DOUBLE))), to=FLOAT)
    softmax = g("Mul", powers, inverse)
    if mask is not None:  # 0 * inf is NaN, of which CUDA's fminf makes 127
        softmax = g("Where", g("IsNaN", softmax), g.float32(127), softmax)
    return bytes_of(g, softmax)


@body("QOrderedLongformerAttention", infer=infer.ordered, flat=PIECEWISE_CONSTANT)
def qordered_longformer_attention(
    g: Writer, input: Value, scale_input: Value, weight: Value, scale_weight: Value, bias: Value, scale_bias: Value,
    scale_qkv_gemm: Value, mask: Value, global_weight: Value, scale_global_weight: Value, global_bias: Value,
    scale_global_gemm: Value, global_: Value, scale_output: Value, *,
    num_heads: int, window: int, order_global_weight: int, order_input: int, order_output: int, order_weight: int,
) -> Value:  # fmt: skip
    """LongformerAttention in float16 with int8 projections. `scale_bias` is not used.

    Biases are in units of the projection's result, as qordered_longformer_attention.cc says (no schema does).
    """
    _require((order_input, order_weight, order_global_weight, order_output), (ROW, COL, COL, ROW))
    operands = []
    for w, scale, b, to in (
        (weight, scale_weight, bias, scale_qkv_gemm),
        (global_weight, scale_global_weight, global_bias, scale_global_gemm),
    ):
        factor = g("Div", g("Mul", scale_input, scale), to)
        product = bytes_of(g, g("Add", _product(g, input, _transposed(g, w, COL), factor), b))
        operands.append(g("Cast", _floats(g, product, to), to=HALF))
    context = windowed(g, (operands[0], operands[1]), mask, global_, num_heads, window)
    return _scaled(g, g("Cast", context, to=FLOAT), scale_output)
