"""Infer Slice with symbolic dims and bounds, Range, TopK and Resize."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxgen.shapes.dims import (
    Dim,
    Sym,
    dim_max,
    dim_min,
    float32,
    floordiv,
    known_less,
    nonnegative,
    scale_size,
)
from onnxgen.shapes.info import Info
from onnxgen.shapes.node_facts import Contradiction, NodeFacts, Unknown, integer, tensor

OPEN_END = 2**31 - 1  # exporters write an open end as INT32_MAX, INT64_MAX or their negatives
MEMORY = 2**50  # bits: what a program can address, so an end past it is open, too
OPEN_ENDS = (2**31 - 1, 2**63 - 1)  # open ends of backward slices in onnxruntime; the standard asks for INT_MIN


def slice_bounds(n: NodeFacts) -> tuple[list[Dim], list[Dim], list[int], list[int]]:
    """Return (starts, ends, axes, steps) of a Slice, with axes counted from the front. Raises `Unknown`."""
    rank = len(n.shape(0))
    if n.opset < 10:
        starts: list[Dim] = list(n.ints("starts") or [])
        ends: list[Dim] = list(n.ints("ends") or [])
        axes, steps = n.ints("axes"), None
    else:
        starts, ends = n.dims(1), n.dims(2)
        axes = [int(a) for a in n.constant(3).flat] if n.has(3) else None
        steps = [int(a) for a in n.constant(4).flat] if n.has(4) else None
    axes = n.axes(range(len(starts)) if axes is None else axes, rank)
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise Contradiction("Slice with bounds, axes and steps that do not fit together")
    ends = [-OPEN_END if step < 0 and end in OPEN_ENDS else end for end, step in zip(ends, steps)]
    return starts, ends, axes, steps


def slices(n: NodeFacts) -> list[Info]:
    shape = list(n.shape(0))
    try:
        bounds = slice_bounds(n)
    except Unknown:
        return [tensor(n.dtype(0), _unsliced(n))]
    for start, end, axis, step in zip(*bounds, strict=True):
        if isinstance(end, int) and end * _bits(n, axis) >= MEMORY:
            end = OPEN_END
        length = slice_length(shape[axis], start, end, step)
        shape[axis] = n.fresh(axis) if length is None else length
    return [tensor(n.dtype(0), shape)]


def _bits(n: NodeFacts, axis: int) -> int:
    """Return the fewest bits that one position along an axis takes."""
    others = [d for i, d in enumerate(n.shape(0)) if i != axis and isinstance(d, int)]
    dtype = n.dtype(0)
    return math.prod(others) * (1 if dtype in (None, ir.DataType.STRING) else dtype.bitwidth)


def _unsliced(n: NodeFacts) -> list[Dim]:
    """Return the dims that remain when a Slice with unknown bounds has known axes."""
    shape = list(n.shape(0))
    axes = n.ints("axes") if n.opset < 10 else None
    if axes is None and n.has(3) and n.input(3).constant is not None:
        axes = [int(a) for a in n.constant(3).flat]
    sliced = set(n.axes(axes, len(shape))) if axes is not None else set(range(len(shape)))
    return [n.fresh(i) if i in sliced else d for i, d in enumerate(shape)]


def slice_length(dim: Dim, start: Dim, end: Dim, step: int) -> Dim | None:
    """Return the number of elements of `range(dim)[start:end:step]`, or None if a dim cannot express it."""
    if isinstance(dim, int) and isinstance(start, int) and isinstance(end, int):
        # Slice-13 clamps the start to the first element, where a backward slice of Python is empty
        return len(range(dim)[max(start, -dim) : end : step])
    if step < 0:
        return _backward(dim, start, end, -step)
    last = _bound(end, dim)
    if last is None:
        return None
    if nonnegative(start):  # a slice past the end is empty either way, so the start is not clamped to dim
        length = dim_max(last - start, 0)
    elif isinstance(start, int) and last == dim:  # the last elements
        length = dim if start <= -OPEN_END else dim_min(dim, -start)
    else:
        first = _bound(start, dim)
        if first is None:
            return None
        length = dim_max(last - first, 0)
    return floordiv(length + (step - 1), step)


def _bound(bound: Dim, dim: Dim) -> Dim | None:
    """Return a bound of a forward slice, clamped to [0, dim]; None if its sign is unknown."""
    if isinstance(bound, int) and bound >= OPEN_END:
        return dim
    if nonnegative(bound):
        return dim_min(bound, dim)
    if known_less(bound, 0):
        return 0 if isinstance(bound, int) and bound <= -OPEN_END else dim_max(bound + dim, 0)
    if dim - bound in (1, 2):  # dim - 1 is negative only if dim is 0, and then the slice is empty; likewise dim - 2
        return dim_max(bound, 0)
    return None


def _backward(dim: Dim, start: Dim, end: Dim, step: int) -> Dim | None:
    """Return the length of `[::-step]`, or None for any other reversed slice of a symbolic dim."""
    if (start == -1 or (isinstance(start, int) and start >= OPEN_END)) and isinstance(end, int) and end <= -OPEN_END:
        return floordiv(dim + (step - 1), step)
    return None


def ranged(n: NodeFacts) -> list[Info]:
    dtype = n.dtype(0, 1, 2)
    try:
        return [tensor(dtype, [_range_length(n, dtype)])]
    except Unknown:
        return [tensor(dtype, n.fresh_shape(1))]


def _range_length(n: NodeFacts, dtype: ir.DataType | None) -> Dim:
    """Return max(ceil((limit - start) / delta), 0) (ONNX Range)."""
    if not integer(dtype):
        start, limit, step = (n.constant(i).reshape(()) for i in range(3))
        if step == 0:
            raise Contradiction("Range with a delta of 0")
        return max(int(np.ceil((limit - start).astype(np.float64) / step.astype(np.float64))), 0)
    (first,), (last,), (delta,) = (n.dims(i) for i in range(3))
    if isinstance(delta, Sym):
        raise Unknown("the step of Range")
    if delta == 0:
        raise Contradiction("Range with a delta of 0")
    distance = last - first if delta > 0 else first - last
    return dim_max(floordiv(distance + (abs(delta) - 1), abs(delta)), 0)


def top_k(n: NodeFacts) -> list[Info]:
    shape = list(n.shape(0))
    axis = n.axis(len(shape), -1)
    try:
        (k,) = n.dims(1) if n.has(1) else [n.int_("k")]
    except Unknown:
        k = n.fresh(axis)
    shape[axis] = k
    return [tensor(n.dtype(0), shape), tensor(ir.DataType.INT64, shape)]


# -------------------------------------------------------------------------------------------------------- Resize


def resize(n: NodeFacts) -> list[Info]:
    shape = n.shape(0)
    try:
        return [tensor(n.dtype(0), _resized(n))]
    except Unknown:
        axes = n.ints("axes")
        kept = set() if axes is None else set(range(len(shape))) - set(n.axes(axes, len(shape)))
        return [tensor(n.dtype(0), [d if i in kept else n.fresh(i) for i, d in enumerate(shape)])]


def _resized(n: NodeFacts) -> list[Dim]:
    shape = list(n.shape(0))
    axes = n.axes(found, len(shape)) if (found := n.ints("axes")) is not None else range(len(shape))
    if n.op == "Resize" and n.opset >= 11 and n.has(3) and n.input(3).shape != (0,):
        sizes = n.dims(3)
        if len(sizes) != len(axes):
            raise Contradiction("Resize needs a size an axis")
        policy = n.str_("keep_aspect_ratio_policy", "stretch")
        new = sizes if policy == "stretch" else _keep_ratio([shape[a] for a in axes], sizes, policy)
    else:
        scales = _scales(n)
        if len(scales) != len(axes):
            raise Contradiction("Resize needs a scale an axis")
        if n.str_("coordinate_transformation_mode") == "tf_crop_and_resize":
            raise Unknown("the region of interest")
        new = [scale_size(shape[a], s) for a, s in zip(axes, scales, strict=True)]
    for axis, size in zip(axes, new, strict=True):
        shape[axis] = size
    return shape


def _scales(n: NodeFacts) -> list[float]:
    attribute = n.node.attributes.get("scales")  # Upsample 7
    if attribute is not None:
        return list(attribute.as_floats())
    index = 2 if n.op == "Resize" and n.opset >= 11 else 1
    return [float(s) for s in n.constant(index).flat]


def _keep_ratio(sizes: list[Dim], wanted: list[Dim], policy: str) -> list[Dim]:
    """Apply one scale to all axes, in float32, halves rounded up (ONNX Resize 18, keep_aspect_ratio_policy)."""
    old = [d for d in sizes if isinstance(d, int)]
    new = [d for d in wanted if isinstance(d, int)]
    if len(old) < len(sizes) or len(new) < len(wanted):
        raise Unknown("sizes")
    ratios = [float32(w / o) for o, w in zip(old, new, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [int(np.floor(float32(scale * o) + 0.5)) for o in old]
