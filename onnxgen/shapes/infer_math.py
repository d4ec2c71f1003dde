"""Infer dtypes and shapes of operators that compute: elementwise, products, reductions, layers.

Formulas of convolutions and poolings: ONNX operator documentation of Conv, ConvTranspose, MaxPool.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxgen.shapes.dims import Call, Dim, Sym, atoms, dim_min, floordiv, known_less, nonnegative
from onnxgen.shapes.info import Contradiction, Info, NodeFacts, Shape, Unknown, tensor

BOOL, INT64, FLOAT = ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.FLOAT


def broadcast(n: NodeFacts, shapes: list[Shape], offset: int = 0) -> Shape:
    """Return the common shape by numpy's rules (ONNX "Broadcasting in ONNX")."""
    rank = max(map(len, shapes), default=0)
    return tuple(
        _common(n, [s[axis - rank + len(s)] for s in shapes if axis >= rank - len(s)], axis + offset)
        for axis in range(rank)
    )


def _common(n: NodeFacts, dims: list[Dim], axis: int) -> Dim:
    different = [dim for dim in dict.fromkeys(dims) if dim != 1]
    if len(different) < 2:
        return different[0] if different else 1
    sure = [d for d in different if d == 0 or known_less(1, d)]
    if len({d for d in sure if isinstance(d, int)}) > 1:
        raise Contradiction(f"dims {dims} do not broadcast")
    if sure:  # dims that cannot be 1 must be equal for the node to run, so take the simplest one
        return min(sure, key=lambda d: (not isinstance(d, int), len(str(d))))
    dim = _unclipped(*different) if len(different) == 2 else None
    return n.fresh(axis) if dim is None else dim


def _unclipped(one: Dim, other: Dim) -> Dim | None:
    """Return the dim of which the other one is min(c, dim) with c > 1: they are equal, or the node fails."""
    for dim, clipped in ((one, other), (other, one)):
        *_, call = (None, *atoms(clipped))
        if not isinstance(call, Call) or call.function != "min" or clipped != Sym(((((call, 1),), 1),)):
            continue
        if all(a == dim or (isinstance(a, int) and a > 1) for a in call.args):
            return dim
    return None


def _broadcasted(n: NodeFacts) -> Shape | None:
    """Return the shape that all inputs broadcast to; None if it is unknown."""
    try:
        if n.opset < 7 and n.int_("broadcast"):  # opsets 1 to 6: b broadcasts to the shape of a
            return n.shape(0)
        return broadcast(n, [n.shape(i) for i in range(len(n.inputs))])
    except Unknown:
        return None


def arithmetic(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(*range(len(n.inputs))), _broadcasted(n))]


def comparison(n: NodeFacts) -> list[Info]:
    return [tensor(BOOL, _broadcasted(n))]


def power(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0), _broadcasted(n))]


def where(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(1, 2), _broadcasted(n))]


def cast(n: NodeFacts) -> list[Info]:
    return [tensor(ir.DataType(n.int_("to")), n.input(0).shape)]


def cast_like(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(1), n.input(0).shape)]


def unchanged(n: NodeFacts) -> list[Info]:
    return [n.input(0)]


def same(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0), n.input(0).shape)]


def same_bool(n: NodeFacts) -> list[Info]:
    return [tensor(BOOL, n.input(0).shape)]


def dropout(n: NodeFacts) -> list[Info]:
    mask = BOOL if n.opset >= 10 else n.dtype(0)
    return [tensor(n.dtype(0), n.input(0).shape), tensor(mask, n.input(0).shape)]


def batch_norm(n: NodeFacts) -> list[Info]:
    channels = n.input(1).shape
    if n.opset >= 14:
        statistics = [tensor(n.dtype(i), channels) for i in (3, 4)]
    else:
        statistics = [tensor(n.dtype(0), channels) for _ in range(4)]
    return [tensor(n.dtype(0), n.input(0).shape), *statistics]


def layer_norm(n: NodeFacts) -> list[Info]:
    shape = n.input(0).shape
    stash = ir.DataType(n.int_("stash_type", FLOAT.value))
    statistics = None
    if shape is not None:
        axis = n.axis(len(shape), -1)
        statistics = [d if i < axis else 1 for i, d in enumerate(shape)]
    return [tensor(n.dtype(0), shape), tensor(stash, statistics), tensor(stash, statistics)]


def standardize(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0), n.ints("shape") or n.input(0).shape)]


def like(n: NodeFacts) -> list[Info]:
    """Infer EyeLike, RandomNormalLike, ...: the shape of the input, and the dtype of the attribute or the input."""
    default = n.dtype(0)
    dtype = ir.DataType(n.int_("dtype")) if n.int_("dtype") else default
    return [tensor(dtype, n.input(0).shape)]


def quantize(n: NodeFacts) -> list[Info]:
    chosen = n.int_("output_dtype")
    dtype = n.dtype(2) if n.has(2) else ir.DataType(chosen) if chosen else ir.DataType.UINT8
    return [tensor(dtype, n.input(0).shape)]


def dequantize(n: NodeFacts) -> list[Info]:
    chosen = n.int_("output_dtype")
    return [tensor(ir.DataType(chosen) if chosen else n.dtype(1), n.input(0).shape)]


def dynamic_quantize(n: NodeFacts) -> list[Info]:
    return [tensor(ir.DataType.UINT8, n.input(0).shape), tensor(FLOAT, ()), tensor(ir.DataType.UINT8, ())]


hardmax = cumsum = same


INT32 = ir.DataType.INT32


def _product_shape(n: NodeFacts, second: int) -> list[Dim] | None:
    """Return the shape of numpy.matmul of the first input and another one."""
    x, y = n.input(0).shape, n.input(second).shape
    if x is None or y is None:
        return None
    if not x or not y:
        raise Contradiction("MatMul of a scalar")
    inner = x[-1], y[-2] if len(y) > 1 else y[0]
    if all(isinstance(d, int) for d in inner) and inner[0] != inner[1]:
        raise Contradiction(f"MatMul over {inner[0]} and {inner[1]} elements")
    batch = broadcast(n, [x[:-2], y[:-2]])
    return [*batch, *x[-2:-1], *(y[-1:] if len(y) > 1 else ())]


def matmul(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0, 1), _product_shape(n, 1))]


def matmul_integer(n: NodeFacts) -> list[Info]:
    return [tensor(INT32, _product_shape(n, 1))]


def qlinear_matmul(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(7), _product_shape(n, 3))]


def gemm(n: NodeFacts) -> list[Info]:
    shape: list[Dim] = []
    for i, name, axis in ((0, "transA", 0), (1, "transB", 1)):
        matrix = n.input(i).shape
        if matrix is not None and len(matrix) != 2:
            raise Contradiction("Gemm of what is no matrix")
        if n.int_(name):
            axis = 1 - axis
        shape.append(n.fresh(i) if matrix is None else matrix[axis])
    return [tensor(n.dtype(0, 1), shape)]


def einsum(n: NodeFacts) -> list[Info]:
    left, _, right = n.str_("equation").replace(" ", "").partition("->")
    terms = left.split(",")
    sizes: dict[str, list[Dim]] = {}
    ellipses: list[Shape] = []
    for i, term in enumerate(terms):
        shape = n.shape(i)
        before, dots, after = term.partition("...")
        if len(before) + len(after) > len(shape) or (not dots and len(before) != len(shape)):
            raise Contradiction("Einsum terms and ranks differ")
        tail = len(shape) - len(after)
        if dots:
            ellipses.append(shape[len(before) : tail])
        for letter, dim in zip(before + after, shape[: len(before)] + shape[tail:], strict=True):
            sizes.setdefault(letter, []).append(dim)
    if "->" not in n.str_("equation"):
        right = "..." * bool(ellipses) + "".join(sorted(c for c in sizes if len(sizes[c]) == 1))
    before, _, after = right.partition("...")
    middle = broadcast(n, ellipses, offset=len(before)) if "..." in right else ()
    dims = [broadcast(n, [(d,) for d in sizes[c]], offset=i)[0] for i, c in enumerate(before)]
    start = len(before) + len(middle)
    dims += [*middle, *(broadcast(n, [(d,) for d in sizes[c]], offset=start + i)[0] for i, c in enumerate(after))]
    return [tensor(n.dtype(*range(len(terms))), dims)]


# --------------------------------------------------------------------------------------------------- reductions


def reduced_axes(n: NodeFacts, rank: int) -> list[int]:
    """Return the axes that a Reduce operator reduces, from attribute or input. Raises `Unknown`."""
    axes = n.stated_axes()
    if not axes:
        return [] if n.int_("noop_with_empty_axes") else list(range(rank))
    return n.axes(axes, rank)


def _without(shape: Shape, axes: list[int], keep: bool) -> list[Dim]:
    if keep:
        return [1 if i in axes else d for i, d in enumerate(shape)]
    return [d for i, d in enumerate(shape) if i not in axes]


def reduce(n: NodeFacts) -> list[Info]:
    keep = bool(n.int_("keepdims", 1))
    shape = n.input(0).shape
    if shape is None:
        full = not keep and not n.has(1) and not n.ints("axes") and not n.int_("noop_with_empty_axes")
        return [tensor(n.dtype(0), () if full else None)]
    try:
        return [tensor(n.dtype(0), _without(shape, reduced_axes(n, len(shape)), keep))]
    except Unknown:
        if not keep:
            raise
        return [tensor(n.dtype(0), n.fresh_shape(len(shape)))]


def stft(n: NodeFacts) -> list[Info]:
    """Infer STFT here: onnx's inference takes it to be two-sided where the attribute is left out."""
    shape, window = n.input(0).shape, n.input(2).shape
    if shape is None:
        return [tensor(n.dtype(), None)]
    step, length = _size(n, 1), _size(n, 3)
    if length is None and window:
        length = window[0]
    elif not n.has(2) and not n.has(3):
        length = shape[1]
    frames = n.fresh(1) if length is None or step is None else floordiv(shape[1] - length, step) + 1
    bins = n.fresh(2) if length is None else floordiv(length, 2) + 1 if n.int_("onesided", 1) else length
    return [tensor(n.dtype(), [shape[0], frames, bins, 2])]


def _size(n: NodeFacts, i: int) -> Dim | None:
    """Return the size that an input states, if it is known."""
    return n.dims(i)[0] if n.has(i) and n.input(i).data is not None else None


def dft(n: NodeFacts) -> list[Info]:
    """Infer DFT here: onnx's inference differs between 1.16 and 1.23, and gets the one-sided inverse wrong before that.

    The length changes along one axis, which may be known at run time only. The last axis has one or two parts.
    """
    shape, inverse, onesided = n.input(0).shape, n.int_("inverse"), n.int_("onesided")
    if shape is None:
        return [tensor(n.dtype(), None)]
    parts = 1 if inverse and onesided else 2
    axis = n.input(2).constant if n.has(2) else n.int_("axis", 1 if n.opset < 20 else -2)
    if axis is None:
        is_same = not n.has(1) and not onesided
        return [tensor(n.dtype(), [*(shape[:-1] if is_same else n.fresh_shape(len(shape) - 1)), parts])]
    (where,) = n.axes([int(axis)], len(shape))
    full = (shape[where] - 1) * 2 if inverse and onesided else shape[where]
    if n.has(1):
        length = _size(n, 1)
        full = n.fresh(where) if length is None else length
    size = floordiv(full, 2) + 1 if onesided and not inverse else full
    return [tensor(n.dtype(), [*shape[:where], size, *shape[where + 1 : -1], parts])]


# ---------------------------------------------------------------------------------------- recurrence, attention


def recurrent(n: NodeFacts) -> list[Info]:
    x, r = n.input(0).shape, n.input(2).shape
    if x is not None and len(x) != 3:
        raise Contradiction("a recurrent layer needs three axes")
    swapped = n.int_("layout") == 1
    directions = 2 if n.str_("direction", "forward") == "bidirectional" else 1
    hidden: Dim = n.int_("hidden_size") or (r[-1] if r else n.fresh(2, 1))
    seq, batch = (n.fresh(0), n.fresh(2)) if x is None else (x[0], x[1])
    if swapped:
        seq, batch = (n.fresh(1), n.fresh(0)) if x is None else (x[1], x[0])
    last = [batch, directions, hidden] if swapped else [directions, batch, hidden]
    every = [batch, seq, directions, hidden] if swapped else [seq, directions, batch, hidden]
    dtype = n.dtype(0, 1, 2)
    return [tensor(dtype, every), tensor(dtype, last), tensor(dtype, last)]


def attention(n: NodeFacts) -> list[Info]:
    """Infer Attention-23, with inputs of (batch, heads, length, size), or three axes with the heads packed."""
    dtype = n.dtype(0)
    if any(n.input(i).shape is None for i in range(3)):  # onnx's inference takes the products to be scalars then
        return [tensor(t, None) for t in (dtype, n.dtype(4, 1), n.dtype(5, 2), dtype)]
    (bq, hq, s, _), (_, hk, t, d), (_, _, _, dv) = (_heads(n, i) for i in range(3))
    total = t + n.shape(4)[2] if n.has(4) else t
    packed = len(n.shape(0)) == 3
    y = [bq, s, hq * dv] if packed else [bq, hq, s, dv]
    return [
        tensor(dtype, y),
        tensor(n.dtype(4, 1), [bq, hk, total, d]),
        tensor(n.dtype(5, 2), [bq, hk, total, dv]),
        tensor(dtype, [bq, hq, s, total]),
    ]


def _heads(n: NodeFacts, i: int) -> tuple[Dim, Dim, Dim, Dim]:
    shape = n.shape(i)
    if len(shape) == 4:
        return shape[0], shape[1], shape[2], shape[3]
    heads = n.int_("kv_num_heads" if i else "q_num_heads")
    if len(shape) != 3 or heads < 1:
        raise Contradiction("Attention needs four axes, or three and a number of heads")
    return shape[0], heads, shape[1], floordiv(shape[2], heads)


def of_integers(n: NodeFacts) -> list[Info]:
    """A product of floats with a matrix of integers."""
    return [tensor(n.input(0).dtype, _product_shape(n, 1))]


def ceildiv(a: Dim, b: int) -> Dim:
    """Return `a / b` rounded up, for b > 0."""
    return floordiv(a + (b - 1), b)


def _windows(n: NodeFacts, count: int) -> tuple[list[int], list[int], list[int], bool]:
    """Return strides, dilations and pads of `count` spatial axes, and True if pads make the sizes those of SAME."""
    strides, dilations = _spatial(n, "strides", count, 1), _spatial(n, "dilations", count, 1)
    auto_pad = n.str_("auto_pad", "NOTSET")
    pads = _spatial(n, "pads", 2 * count, 0) if auto_pad != "VALID" else [0] * (2 * count)
    return strides, dilations, pads, auto_pad in ("SAME_UPPER", "SAME_LOWER")


def _spatial(n: NodeFacts, name: str, count: int, default: int) -> list[int]:
    values = n.ints(name)
    if values is None:
        return [default] * count
    if len(values) != count:
        raise Contradiction(f"{name} has {len(values)} elements, not {count}")
    return values


def window_sizes(n: NodeFacts, sizes: Shape, kernel: Sequence[Dim], ceil_mode: bool = False) -> list[Dim]:
    """Return the number of window positions along each spatial axis.

    With `ceil_mode` a last window that would start in the padding at the end is left out (ONNX MaxPool, AveragePool).
    Symbolic sizes are taken to hold at least one window.
    """
    count = len(sizes)
    strides, dilations, pads, is_same = _windows(n, count)
    if any(s <= 0 for s in strides):
        raise Contradiction("strides must be positive")
    if is_same:
        return [ceildiv(size, stride) for size, stride in zip(sizes, strides, strict=True)]
    result: list[Dim] = []
    for i, size in enumerate(sizes):
        span = size + pads[i] + pads[i + count] - (kernel[i] - 1) * dilations[i] - 1
        if isinstance(span, int) and (span <= -strides[i] if ceil_mode else span < 0):
            result.append(n.fresh(i + 2))  # the window is larger than its input: runtimes disagree
        elif ceil_mode:
            inside = floordiv(size + pads[i] - 1, strides[i])  # last window that starts before the end padding
            result.append(dim_min(ceildiv(span, strides[i]), inside) + 1)
        else:
            result.append(floordiv(span, strides[i]) + 1)
    return result


def _conv_shape(n: NodeFacts, weight: int) -> list[Dim] | None:
    try:
        w = n.shape(weight)
    except Unknown:
        rank = n.input(0).rank
        return None if rank is None else [n.shape(0)[0], *n.fresh_shape(rank)[1:]]
    x = n.input(0).shape
    if x is None:
        return [n.fresh(0), w[0], *n.fresh_shape(len(w))[2:]]
    if len(x) != len(w):
        raise Contradiction("input and weight of different rank")
    return [x[0], w[0], *window_sizes(n, x[2:], n.ints("kernel_shape") or w[2:])]


def conv(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0, 1), _conv_shape(n, 1))]


def conv_integer(n: NodeFacts) -> list[Info]:
    return [tensor(ir.DataType.INT32, _conv_shape(n, 1))]


def qlinear_conv(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(7), _conv_shape(n, 3))]


def conv_of_integers(n: NodeFacts) -> list[Info]:
    """A convolution of floats with a weight in integers."""
    return [tensor(n.input(0).dtype, _conv_shape(n, 1))]


def conv_transpose(n: NodeFacts) -> list[Info]:
    dtype = n.dtype(0, 1)
    x, w = n.input(0).shape, n.input(1).shape
    if x is None or w is None:
        rank = len(x if x is not None else w if w is not None else ()) or None
        return [tensor(dtype, None if rank is None else n.fresh_shape(rank))]
    if len(x) != len(w):
        raise Contradiction("input and weight of different rank")
    channels = w[1] * n.int_("group", 1)
    return [tensor(dtype, [x[0], channels, *_transposed_sizes(n, x[2:], n.ints("kernel_shape") or w[2:])])]


def _transposed_sizes(n: NodeFacts, sizes: Shape, kernel: Sequence[Dim]) -> list[Dim]:
    count = len(sizes)
    chosen = n.ints("output_shape")
    if chosen is not None:
        return list(chosen[-count:])
    strides, dilations, pads, is_same = _windows(n, count)
    extra = _spatial(n, "output_padding", count, 0)
    if is_same:
        spans = [extra[i] + (kernel[i] - 1) * dilations[i] + 1 for i in range(count)]
        return [  # for kernels smaller than the stride, the standard and onnxruntime disagree
            sizes[i] * strides[i] if nonnegative(spans[i] - strides[i]) else n.fresh(i + 2) for i in range(count)
        ]
    return [
        (sizes[i] - 1) * strides[i] + extra[i] + (kernel[i] - 1) * dilations[i] + 1 - pads[i] - pads[i + count]
        for i in range(count)
    ]


def pool(n: NodeFacts) -> list[Info]:
    x = n.input(0).shape
    shape: list[Dim] | None = None
    if x is not None:
        kernel = _spatial(n, "kernel_shape", len(x) - 2, 1)
        if n.str_("auto_pad", "NOTSET").startswith("SAME") and any(d != 1 for d in n.ints("dilations") or []):
            sizes: list[Dim] = list(n.fresh_shape(len(x))[2:])  # the standard and onnxruntime disagree
        else:
            sizes = window_sizes(n, x[2:], kernel, bool(n.int_("ceil_mode")))
        shape = [*x[:2], *sizes]
    return [tensor(n.dtype(0), shape), tensor(ir.DataType.INT64, shape)]


def global_pool(n: NodeFacts) -> list[Info]:
    x = n.input(0).shape
    return [tensor(n.dtype(0), None if x is None else [*x[:2], *[1] * (len(x) - 2)])]


def depth_to_space(n: NodeFacts) -> list[Info]:
    b, c, h, w = _rank4(n)
    k = n.int_("blocksize", 1)
    return [tensor(n.dtype(0), [b, floordiv(c, k * k), h * k, w * k])]


def space_to_depth(n: NodeFacts) -> list[Info]:
    b, c, h, w = _rank4(n)
    k = n.int_("blocksize", 1)
    return [tensor(n.dtype(0), [b, c * k * k, floordiv(h, k), floordiv(w, k)])]


def _rank4(n: NodeFacts) -> Shape:
    if len(n.shape(0)) != 4 or n.int_("blocksize", 1) < 1:
        raise Contradiction("needs four axes and a positive block size")
    return n.shape(0)


def grid_sample(n: NodeFacts) -> list[Info]:
    x, grid = n.input(0).shape, n.input(1).shape
    if x is None or grid is None:
        raise Unknown("shapes")
    batch: Dim = grid[0] if isinstance(x[0], Sym) and isinstance(grid[0], int) else x[0]
    return [tensor(n.dtype(0), [batch, x[1], *grid[1:-1]])]
