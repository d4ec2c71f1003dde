"""Infer shapes of products, reductions, recurrent layers and attention."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.shapes.dims import Dim, floordiv
from onnxgen.shapes.infer_elementwise import broadcast
from onnxgen.shapes.info import Info, Shape
from onnxgen.shapes.node_facts import Contradiction, NodeFacts, Unknown, tensor

INT32 = ir.DataType.INT32


def _product_shape(n: NodeFacts, a: int, b: int) -> list[Dim] | None:
    """Return the shape of numpy.matmul of two inputs."""
    x, y = n.input(a).shape, n.input(b).shape
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
    return [tensor(n.dtype(0, 1), _product_shape(n, 0, 1))]


def matmul_integer(n: NodeFacts) -> list[Info]:
    return [tensor(INT32, _product_shape(n, 0, 1))]


def qlinear_matmul(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(7), _product_shape(n, 0, 3))]


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
    axes = n.ints_or_input("axes", 1)
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
    length = _size(n, 1)
    if length is None and n.has(1):
        length = n.fresh(where)
    if onesided and inverse:
        size = (shape[where] - 1) * 2 if length is None else length
    else:
        full = shape[where] if length is None else length
        size = floordiv(full, 2) + 1 if onesided else full
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
    return [tensor(n.input(0).dtype, _product_shape(n, 0, 1))]
