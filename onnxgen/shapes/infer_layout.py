"""Infer shapes of operators that rearrange elements: Reshape, Transpose, Concat, Gather and similar ones."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.shapes.dims import Dim, Sym, dim_max, dim_min, exact_div, floordiv, known_different, product, symbols
from onnxgen.shapes.infer_elementwise import broadcast
from onnxgen.shapes.info import Info, Shape
from onnxgen.shapes.node_facts import Contradiction, NodeFacts, Unknown, tensor


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
        if isinstance(dim, int) and dim == 0 and not n.int_("allowzero"):
            if shape is not None and i >= len(shape):
                raise Contradiction("Reshape copies an axis that is not there")
            target[i] = n.fresh(i) if shape is None else shape[i]
    open_axes = [i for i, dim in enumerate(target) if isinstance(dim, int) and dim == -1]
    if len(open_axes) > 1:
        raise Contradiction("Reshape with more than one -1")
    if open_axes:
        rest = target[: open_axes[0]] + target[open_axes[0] + 1 :]
        target[open_axes[0]] = n.fresh(open_axes[0]) if shape is None else _quotient(product(shape), product(rest))
    elif shape is not None:
        if known_different(product(shape), product(target)):
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
    axes = n.ints_or_input("axes", 1)
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
        axes = n.ints_or_input("axes", 1) or []
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
