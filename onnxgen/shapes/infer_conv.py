"""Infer shapes of convolutions and poolings. Formulas: ONNX operator documentation of Conv, ConvTranspose, MaxPool."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxgen.shapes.dims import Dim, Sym, dim_min, floordiv, nonnegative
from onnxgen.shapes.info import Info, Shape
from onnxgen.shapes.node_facts import Contradiction, NodeFacts, Unknown, tensor


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


def of_integers(n: NodeFacts) -> list[Info]:
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
