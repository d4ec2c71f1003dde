"""Infer shapes of operators that rearrange, select or make elements: Reshape, Concat, Slice.

Slice, Range, TopK and Resize have symbolic dims and bounds, too.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxgen.shapes.dims import (
    Dim,
    Sym,
    dim_max,
    dim_min,
    exact_div,
    float32,
    floordiv,
    known_different,
    known_less,
    nonnegative,
    product,
    scale_size,
    symbols,
)
from onnxgen.shapes.infer_math import broadcast
from onnxgen.shapes.info import Contradiction, Info, NodeFacts, Shape, Unknown, integer, tensor

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
    axes = n.axes(attribute, len(shape)) if (attribute := n.ints("axes")) is not None else range(len(shape))
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


def _length(n: NodeFacts, i: int) -> int:
    """Return the number of elements of the 1-D input i. Raises `Unknown`."""
    (length,) = n.shape(i) or (1,)
    if isinstance(length, Sym):
        raise Unknown(f"the length of input {i}")
    return length


def reshape(n: NodeFacts) -> list[Info]:
    old = n.ints("shape")  # opset 1
    try:
        target: list[Dim] = list(old) if old is not None else n.dims(1)
    except Unknown:
        return [tensor(n.dtype(0), n.fresh_shape(_length(n, 1)))]
    shape = n.input(0).shape
    for i, dim in enumerate(target):
        if dim == 0 and not n.int_("allowzero"):
            if shape is not None and i >= len(shape):
                raise Contradiction("Reshape copies an axis that is not there")
            target[i] = n.fresh(i) if shape is None else shape[i]
    if target.count(-1) > 1:
        raise Contradiction("Reshape with more than one -1")
    if -1 in target:
        axis = target.index(-1)
        rest = product(target[:axis] + target[axis + 1 :])
        target[axis] = n.fresh(axis) if shape is None else _quotient(product(shape), rest)
    elif shape is not None and known_different(product(shape), product(target)):
        raise Contradiction("Reshape to another number of elements")
    return [tensor(n.dtype(0), target)]


def _quotient(total: Dim, known: Dim) -> Dim:
    if isinstance(known, int) and known == 0:
        raise Contradiction("Reshape with -1 beside a dim of 0")
    exact = exact_div(total, known)
    if exact is None and isinstance(total, int) and isinstance(known, int):
        raise Contradiction("Reshape to another number of elements")
    return floordiv(total, known) if exact is None else exact


def flatten(n: NodeFacts) -> list[Info]:
    shape = n.input(0).shape
    if shape is None:
        return [tensor(n.dtype(), n.fresh_shape(2))]
    axis = n.int_("axis", 1)
    axis += len(shape) if axis < 0 else 0
    return [tensor(n.dtype(0), [product(shape[:axis]), product(shape[axis:])])]


def transpose(n: NodeFacts) -> list[Info]:
    shape = n.shape(0)
    perm = n.ints("perm")
    if perm is None:
        perm = list(range(len(shape)))[::-1]
    if sorted(perm) != list(range(len(shape))):
        raise Contradiction("perm is no permutation of the axes")
    return [tensor(n.dtype(0), [shape[p] for p in perm])]


def concat(n: NodeFacts) -> list[Info]:
    count = len(n.inputs)
    dtype = n.dtype(*range(count))
    shapes = [s for i in range(count) if (s := n.input(i).shape) is not None]
    if not shapes:
        return [tensor(dtype, None)]
    rank = len(shapes[0])
    if any(len(s) != rank for s in shapes):
        raise Contradiction("Concat of tensors of different rank")
    axis = n.axis(rank, 1)
    dims: list[Dim] = [0 if i == axis else _plainest([s[i] for s in shapes]) for i in range(rank)]
    for shape in shapes:
        dims[axis] = dims[axis] + shape[axis]
    if len(shapes) < count:
        dims[axis] = n.fresh(axis)
    return [tensor(dtype, dims)]


def _plainest(dims: list[Dim]) -> Dim:
    """Return the simplest of several dims that must be equal: a number if there is one, else the first."""
    numbers = {d for d in dims if isinstance(d, int)}
    if len(numbers) > 1:
        raise Contradiction(f"dims {dims} differ")
    return numbers.pop() if numbers else dims[0]


def split(n: NodeFacts) -> list[Info]:
    shape = n.shape(0)
    axis = n.axis(len(shape))
    count = len(n.node.outputs)
    sizes: list[Dim]
    old = n.ints("split")
    try:
        if old is not None or n.has(1):
            sizes = list(old) if old is not None else n.dims(1)
        elif n.opset >= 18:
            sizes = equal_parts(shape[axis], count)
        else:
            sizes = [floordiv(shape[axis], count)] * count
    except Unknown:
        sizes = [n.fresh(axis, output) for output in range(count)]
    if len(sizes) != count:
        raise Contradiction("Split into another number of parts")
    return [tensor(n.dtype(0), [*shape[:axis], size, *shape[axis + 1 :]]) for size in sizes]


def equal_parts(size: Dim, count: int) -> list[Dim]:
    """Return the sizes of the parts that Split makes by default (opset 18): rounded up, and the last one smaller."""
    part = floordiv(size + (count - 1), count)
    if part * count == size or count == 2:
        return [part] * (count - 1) + [size - part * (count - 1)]
    return [dim_max(0, dim_min(part, size - part * i)) for i in range(count)]


def squeeze(n: NodeFacts) -> list[Info]:
    shape = n.shape(0)
    axes = n.stated_axes()
    if axes is None:
        if any(isinstance(d, Sym) for d in shape):
            raise Unknown("which dims are 1")
        return [tensor(n.dtype(0), [d for d in shape if d != 1])]
    gone = n.axes(axes, len(shape))
    if any(isinstance(shape[a], int) and shape[a] != 1 for a in gone):
        raise Contradiction("Squeeze of a dim that is not 1")
    return [tensor(n.dtype(0), [d for i, d in enumerate(shape) if i not in gone])]


def unsqueeze(n: NodeFacts) -> list[Info]:
    shape = n.shape(0)
    try:
        axes = n.stated_axes() or []
    except Unknown:
        return [tensor(n.dtype(0), n.fresh_shape(len(shape) + _length(n, 1)))]
    rank = len(shape) + len(axes)
    new = set(n.axes(axes, rank))
    if len(new) != len(axes):
        raise Contradiction("Unsqueeze with an axis twice")
    old = iter(shape)
    return [tensor(n.dtype(0), [1 if i in new else next(old) for i in range(rank)])]


def expand(n: NodeFacts) -> list[Info]:
    shape = n.shape(0)
    try:
        target: Shape = tuple(n.dims(1))
    except Unknown:
        return [tensor(n.dtype(0), _at_least(n, shape, _length(n, 1)))]
    return [tensor(n.dtype(0), broadcast(n, [shape, target]))]


def _at_least(n: NodeFacts, shape: Shape, rank: int) -> list[Dim]:
    """Return the shape of an expansion to unknown dims. Only sizes above 1 are certain to stay."""
    rank = max(rank, len(shape))
    padded = [1] * (rank - len(shape)) + list(shape)
    return [d if isinstance(d, int) and d > 1 else n.fresh(i) for i, d in enumerate(padded)]


def tile(n: NodeFacts) -> list[Info]:
    shape = n.shape(0)
    if n.opset < 6:
        return [tensor(n.dtype(0), n.fresh_shape(len(shape)))]
    try:
        repeats = n.dims(1)
    except Unknown:
        return [tensor(n.dtype(0), n.fresh_shape(len(shape)))]
    if len(repeats) != len(shape):
        raise Contradiction("Tile needs a repeat an axis")
    return [tensor(n.dtype(0), [d * r for d, r in zip(shape, repeats, strict=True)])]


def pad(n: NodeFacts) -> list[Info]:
    shape = list(n.shape(0))
    old = n.ints("pads") or n.ints("paddings")
    try:
        pads: list[Dim] = list(old) if old is not None else n.dims(1)
        axes = n.axes((int(a) for a in n.constant(3).flat), len(shape)) if n.has(3) else list(range(len(shape)))
    except Unknown:
        return [tensor(n.dtype(0), n.fresh_shape(len(shape)))]
    if len(pads) != 2 * len(axes):
        raise Contradiction("Pad needs two numbers an axis")
    for i, axis in enumerate(axes):
        shape[axis] = shape[axis] + pads[i] + pads[i + len(axes)]
    return [tensor(n.dtype(0), shape)]


def gather(n: NodeFacts) -> list[Info]:
    shape, indices = n.shape(0), n.shape(1)
    axis = n.axis(len(shape))
    return [tensor(n.dtype(0), [*shape[:axis], *indices, *shape[axis + 1 :]])]


def gather_elements(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0), n.input(1).shape)]


def gather_nd(n: NodeFacts) -> list[Info]:
    shape, indices = n.shape(0), n.shape(1)
    if not indices or isinstance(indices[-1], Sym):
        raise Unknown("how many axes GatherND indexes")
    first = indices[-1] + n.int_("batch_dims")
    if first > len(shape):
        raise Contradiction("GatherND indexes more axes than there are")
    return [tensor(n.dtype(0), [*indices[:-1], *shape[first:]])]


def constant_of_shape(n: NodeFacts) -> list[Info]:
    value = n.node.attributes.get("value")
    dtype = ir.DataType.FLOAT if value is None else value.as_tensor().dtype
    try:
        return [tensor(dtype, n.dims(0))]
    except Unknown:
        return [tensor(dtype, n.fresh_shape(_length(n, 0)))]


def one_hot(n: NodeFacts) -> list[Info]:
    shape = n.shape(0)
    axis = n.axis(len(shape) + 1, -1)
    try:
        (depth,) = n.dims(1)
    except Unknown:
        depth = n.fresh(axis)
    return [tensor(n.dtype(2), [*shape[:axis], depth, *shape[axis:]])]


def shape(n: NodeFacts) -> list[Info]:
    rank = n.input(0).rank
    if rank is None:
        return [tensor(ir.DataType.INT64, n.fresh_shape(1))]
    return [tensor(ir.DataType.INT64, [len(range(rank)[shape_slice(n)])])]


def size(n: NodeFacts) -> list[Info]:
    return [tensor(ir.DataType.INT64, ())]


def shape_slice(n: NodeFacts) -> slice:
    """Return the slice of axes that Shape returns: attributes `start` and `end` of opset 15, clamped as in Python."""
    return slice(n.int_("start"), n.int_("end") if "end" in n.node.attributes else None)


def non_zero(n: NodeFacts) -> list[Info]:
    rank = n.input(0).rank
    return [tensor(ir.DataType.INT64, [n.fresh(0) if rank is None else max(rank, 1), n.fresh(1)])]


def sequence_at(n: NodeFacts) -> list[Info]:
    """Infer SequenceAt. Dims that the file declares only for the list become new dims of this element."""
    dims = enumerate(n.shape(0))
    own = [n.fresh(axis) if n.symbols.elements.intersection(symbols(d)) else d for axis, d in dims]
    return [tensor(n.dtype(0), own)]
