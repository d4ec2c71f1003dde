"""Strided views of flat tensors: cut, split, regroup and join them.

`provenance.Source` is built on these functions. They compute the positions of elements; only `Piece.numpy` reads
elements. An *atom* is `(size, stride)`, an `Axis` is a sequence of atoms, a `Piece` is a view with axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from onnxgen.weights.file_tensor import Array as Array
from onnxgen.weights.file_tensor import FileTensor

Axis = tuple[tuple[int, int], ...]
"""One axis of a view: (size, stride in elements) of its factors, outermost first; none has size 1, none could merge."""


@dataclass(frozen=True)
class Piece:
    """A block of a state-dict tensor: a strided view of one ONNX tensor's elements (row-major), then casts.

    Attributes:
        at: the position in the state-dict tensor where the block begins.
        name: the name of the ONNX tensor.
        offset: the flat index of the block's first element.
        axes: one `Axis` for each axis of the block.
        casts: the dtypes that the elements are cast to, in order.
    """

    at: tuple[int, ...]
    name: str
    offset: int
    axes: tuple[Axis, ...]
    casts: tuple[ir.DataType, ...]
    tensor: ir.TensorProtocol = field(compare=False, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(size_of(axis) for axis in self.axes)

    def numpy(self) -> Array:
        """Return the block's elements, as a view if numpy can make one."""
        atoms = merged(itertools.chain(*self.axes))
        if isinstance(self.tensor, FileTensor):
            reach = 1 + sum((size - 1) * stride for size, stride in atoms) if math.prod(self.shape) else 0
            array = window(self.tensor.elements(self.offset, self.offset + reach), 0, atoms, write=False)
        else:
            array = window(self.tensor.numpy(), self.offset, atoms, write=False)
        array = array.reshape(self.shape)
        for dtype in self.casts:
            array = array.astype(dtype.numpy())
        return array


def released(tensor: ir.TensorProtocol) -> None:
    """Unmap an external tensor."""
    if (release := getattr(tensor, "release", None)) is not None:
        release()


def size_of(axis: Axis) -> int:
    return math.prod(size for size, _ in axis)


def merged(atoms: Iterable[tuple[int, int]]) -> Axis:
    """Return an axis in normal form: factors of size 1 are dropped, contiguous factors are merged."""
    out: list[tuple[int, int]] = []
    for size, stride in atoms:
        if size != 1:
            if out and out[-1][1] == size * stride:
                size *= out.pop()[0]
            out.append((size, stride))
    return tuple(out)


def window(array: Array, offset: int, atoms: Axis, write: bool) -> Array:
    """Return a strided view of a contiguous array's elements."""
    # View as plain bytes and back: numpy's as_strided does not support the dtypes of ml_dtypes.
    flat = array.reshape(-1)[offset:].view(f"V{array.itemsize}")
    strides = [stride * array.itemsize for _, stride in atoms]
    view = np.lib.stride_tricks.as_strided(flat, [size for size, _ in atoms], strides, writeable=write)
    return view.view(array.dtype)


def block(piece: Piece) -> tuple[slice, ...]:
    return tuple(slice(low, low + size) for low, size in zip(piece.at, piece.shape, strict=True))


def on_axes(piece: Piece, first: int, last: int, at: tuple[int, ...], offset: int, axes: tuple[Axis, ...]) -> Piece:
    """Return the piece with its axes `first` to `last` replaced."""
    return replace(
        piece,
        at=(*piece.at[:first], *at, *piece.at[last:]),
        offset=piece.offset + offset,
        axes=(*piece.axes[:first], *axes, *piece.axes[last:]),
    )


def _bounds(start: int, stop: int, row: int) -> list[int]:
    """Return the positions to cut start:stop at, so that each part is whole rows or lies within one row."""
    return sorted({start, stop, min(-(-start // row) * row, stop), max(stop // row * row, start)})


def cut(axis: Axis, start: int, stop: int) -> Iterator[tuple[int, int, Axis]]:
    """Cut elements start:stop of an axis. Yields (position after start, offset, axis), as few as possible."""
    if stop <= start:
        return
    if not axis:
        yield 0, 0, ()
        return
    (_, stride), rest = axis[0], axis[1:]
    row = size_of(rest)
    for low, high in itertools.pairwise(_bounds(start, stop, row)):
        index, within = divmod(low, row)
        if within == 0 and high % row == 0:
            yield low - start, index * stride, merged((((high - low) // row, stride), *rest))
        else:
            for position, offset, part in cut(rest, within, within + high - low):
                yield low - start + position, index * stride + offset, part


def _split(axis: Axis, dims: Sequence[int]) -> tuple[Axis, ...] | None:
    """Split an axis into axes of sizes `dims` (of the same product). Returns None if a factor crosses a border."""
    atoms = list(axis)
    out: list[Axis] = []
    for dim in reversed(dims):
        taken: list[tuple[int, int]] = []
        while dim > 1:
            size, stride = atoms.pop()
            if dim % size == 0:
                taken.insert(0, (size, stride))
                dim //= size
            elif size % dim == 0:
                atoms.append((size // dim, stride * dim))
                taken.insert(0, (dim, stride))
                dim = 1
            else:
                return None
        out.insert(0, merged(taken))
    return tuple(out)


def _place(axis: Axis, low: int, dims: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], int, tuple[Axis, ...]]]:
    """Lay an axis onto the flat positions from `low` of a tensor of shape `dims`. Yields (at, offset, axes)."""
    size = size_of(axis)
    if len(dims) < 2:
        yield ((low,), 0, (axis,)) if dims else ((), 0, ())
        return
    row = math.prod(dims[1:])
    whole = low % row == 0 and size % row == 0
    if whole and (axes := _split(axis, (size // row, *dims[1:]))) is not None:
        yield (low // row, *(0 for _ in dims[1:])), 0, axes
    elif low // row == (low + size - 1) // row:
        for at, offset, axes in _place(axis, low % row, dims[1:]):
            yield (low // row, *at), offset, ((), *axes)
    else:
        cuts = range(low, low + size + 1, row) if whole else _bounds(low, low + size, row)
        for start, stop in itertools.pairwise(cuts):
            for position, offset, part in cut(axis, start - low, stop - low):
                for at, inner, axes in _place(part, start + position, dims):
                    yield at, offset + inner, axes


def regroup(piece: Piece, shape: tuple[int, ...], first: int, last: int, dims: tuple[int, ...]) -> Iterator[Piece]:
    """Yield the pieces that result when axes `first:last` of the tensor's `shape` are reshaped to `dims`."""
    old, at, axes = shape[first:last], piece.at[first:last], piece.axes[first:last]
    # From axis `flat` on, elements contiguous in the piece are contiguous in the tensor, if the inner axes are whole.
    flat = max(len(old) - 1, 0)
    while flat and size_of(axes[flat]) == old[flat]:
        flat -= 1
    for index in itertools.product(*(range(size_of(axis)) for axis in axes[:flat])):
        offset = sum(next(cut(axis, i, i + 1))[1] for axis, i in zip(axes, index, strict=False))
        low = 0
        for dim, begin, i in itertools.zip_longest(old, at, index, fillvalue=0):
            low = low * dim + begin + i
        for place, inner, new in _place(merged(itertools.chain(*axes[flat:])), low, dims):
            yield on_axes(piece, first, last, place, offset + inner, new)


def resolved(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    if new.count(-1) == 1 and (rest := math.prod(dim for dim in new if dim != -1)):
        new = tuple(math.prod(old) // rest if dim == -1 else dim for dim in new)
    if min(new, default=0) < 0 or math.prod(old) != math.prod(new):
        raise ValueError(f"cannot reshape {old} to {new}")
    return new


def common_groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Return the shortest runs of axes of `old` that become runs of `new`, as (first, last, dims). No dim may be 0."""
    groups, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        first, begin = i, j
        have, want = math.prod(old[i : i + 1]), math.prod(new[j : j + 1])
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while have != want:
            if have < want:
                have, i = have * old[i], i + 1
            else:
                want, j = want * new[j], j + 1
        groups.append((first, i, new[begin:j]))
    return groups


def tidy(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Merge neighbouring blocks that continue each other in their ONNX tensor. Returns them sorted by position."""
    out, before = list(pieces), -1
    while len(out) != before and len(out) > 1:
        before = len(out)
        for axis in range(len(out[0].at)):
            out.sort(key=lambda p: (p.at[:axis], p.at[axis + 1 :], p.at[axis]))
            done: list[Piece] = []
            for piece in out:
                joined = _joined(done[-1], piece, axis) if done else None
                if joined is None:
                    done.append(piece)
                else:
                    done[-1] = joined
            out = done
    return tuple(sorted(out, key=lambda p: p.at))


def _joined(a: Piece, b: Piece, axis: int) -> Piece | None:
    """Join two neighbours on `axis` into one piece, or return None."""
    if not _are_beside(a, b, axis):
        return None
    x, y, step = a.axes[axis], b.axes[axis], b.offset - a.offset
    for rest in {x[1:], x}:
        first, second = _lead(x, rest), _lead(y, rest)
        if first is None or second is None or step % first[0]:
            continue
        stride = step // first[0]
        if stride > 0 and all(size == 1 or own == stride for size, own in (first, second)):
            joined = merged(((first[0] + second[0], stride), *rest))
            piece = replace(a, axes=(*a.axes[:axis], joined, *a.axes[axis + 1 :]))
            return piece if _injective(piece) else None
    return None


def _are_beside(a: Piece, b: Piece, axis: int) -> bool:
    """Return True if one piece begins on `axis` where the other one ends, and both are alike otherwise."""
    if a.name != b.name or a.casts != b.casts or b.at[axis] != a.at[axis] + size_of(a.axes[axis]):
        return False
    return all((a.at[i], a.axes[i]) == (b.at[i], b.axes[i]) for i in range(len(a.at)) if i != axis)


def _lead(axis: Axis, rest: Axis) -> tuple[int, int] | None:
    """Return the outermost (size, stride) of an axis whose other factors are `rest`."""
    if axis == rest:
        return 1, 0
    return axis[0] if axis and axis[1:] == rest else None


def _injective(piece: Piece) -> bool:
    """Return True if no ONNX element appears twice, so that writing back is unambiguous. May return False in doubt."""
    reach = 1
    for size, stride in sorted(itertools.chain(*piece.axes), key=lambda atom: atom[1]):
        if stride < reach:
            return False
        reach += (size - 1) * stride
    return True


def _holds(narrow: ir.DataType, wide: ir.DataType) -> bool:
    """Return True if every value of type `narrow` is also a value of type `wide`."""
    if narrow.is_integer() and narrow.itemsize == 8 and not wide.is_integer():
        return False  # numpy calls the cast from int64 to float64 safe, though it is not exact
    return bool(np.can_cast(narrow.numpy(), wide.numpy(), "safe"))


def lossless(dtype: ir.DataType, casts: Sequence[ir.DataType]) -> bool:
    return all(_holds(a, b) for a, b in itertools.pairwise((dtype, *casts)))


def recast(dtype: ir.DataType, casts: tuple[ir.DataType, ...], to: ir.DataType) -> tuple[ir.DataType, ...]:
    """Append a cast to a chain of casts, and drop casts that undo each other."""
    chain = (dtype, *casts)
    if len(chain) > 1 and chain[-2] == to and _holds(to, chain[-1]):
        return chain[1:-1]
    return (*casts, to)
