"""How each state-dict tensor is made of ONNX tensors, and the way back.

A `Source` rearranges elements and casts them; it never computes. So in normal form it is a list of `Piece`s: a block
of the state-dict tensor that shows a strided view of one ONNX tensor's flat elements. Transposing permutes the view,
slicing narrows it, reshaping splits and merges its axes, concatenating sets blocks side by side, and neighbours that
continue each other merge again. Whatever order an exporter shuffled the gates of an LSTM into, shuffling them back
therefore ends in the identity, with no pattern to be recognised.

The inverse of a strided view is the same view, written to: that is all that `way_back` records and `rebuild` does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.errors import OnnxgenError

Array = NDArray[Any]
Axis = tuple[tuple[int, int], ...]
"""One axis of a view: (size, stride in elements) of its factors, outermost first; none has size 1, none could merge."""

WIDER = {
    ir.DataType.INT4: ir.DataType.INT8,
    ir.DataType.UINT4: ir.DataType.UINT8,
    ir.DataType.INT2: ir.DataType.INT8,
    ir.DataType.UINT2: ir.DataType.UINT8,
    ir.DataType.FLOAT4E2M1: ir.DataType.FLOAT8E4M3FN,
    ir.DataType.FLOAT6E2M3: ir.DataType.FLOAT8E4M3FN,
    ir.DataType.FLOAT6E3M2: ir.DataType.FLOAT8E4M3FN,
}
"""Types that torch lacks, and the next wider one that they travel in (it holds each of their values exactly)."""

MAX_PIECES = 65_536  # past this a reshape has cut a tensor into crumbs; no exporter does that


@dataclass(frozen=True)
class Piece:
    """A block of a state-dict tensor: a strided view of one ONNX tensor's elements (row-major), then casts.

    Attributes:
        at: where in the state-dict tensor the block begins.
        name: the ONNX tensor.
        offset: the flat element that the block's first element is.
        axes: one `Axis` an axis of the block.
        casts: the dtypes that the elements are cast to, one after the other.
    """

    at: tuple[int, ...]
    name: str
    offset: int
    axes: tuple[Axis, ...]
    casts: tuple[ir.DataType, ...]
    tensor: ir.TensorProtocol = field(compare=False, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(_size(axis) for axis in self.axes)

    def numpy(self) -> Array:
        """The block's elements: a view wherever numpy can make one."""
        array = _window(self.tensor.numpy(), self.offset, _merged(itertools.chain(*self.axes)), write=False)
        array = array.reshape(self.shape)
        for dtype in self.casts:
            array = array.astype(dtype.numpy())
        return array


@dataclass(frozen=True)
class Source:
    """How one state-dict tensor is made of ONNX tensors. Immutable; it holds no data until `numpy()` is called.

    Attributes:
        shape: shape of the state-dict tensor.
        dtype: its element type (the ONNX one: int4 is INT4 here, and travels in the sidecar as `WIDER` says).
        pieces: the blocks that tile it.
        empty: ONNX tensors without elements that took part.
    """

    shape: tuple[int, ...]
    dtype: ir.DataType
    pieces: tuple[Piece, ...]
    empty: tuple[Piece, ...] = ()

    @classmethod
    def of(cls, tensor: ir.TensorProtocol, name: str) -> Source:
        """The ONNX tensor itself. Raises `OnnxgenError` for strings, which no state dict holds."""
        if tensor.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
            raise OnnxgenError(f"tensor {name!r} of type {tensor.dtype.name} cannot be a weight")
        shape = tuple(tensor.shape.numpy())
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        axes = tuple(_merged([(size, stride)]) for size, stride in zip(shape, strides, strict=True))
        piece = Piece((0,) * len(shape), name, 0, axes, (), tensor)
        empty = 0 in shape
        return cls(shape, ir.DataType(tensor.dtype), () if empty else (piece,), (piece,) if empty else ())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the ONNX tensors it is made of, each once, in order of appearance."""
        return tuple(dict.fromkeys(piece.name for piece in (*self.pieces, *self.empty)))

    @property
    def nbytes(self) -> int:
        """Bytes in memory and in the sidecar."""
        return math.prod(self.shape) * int(WIDER.get(self.dtype, self.dtype).itemsize)

    @property
    def is_identity(self) -> bool:
        """Whether it is one whole ONNX tensor as it stands."""
        pieces = self.pieces or self.empty
        return len(pieces) == 1 and self == Source.of(pieces[0].tensor, pieces[0].name)

    def transpose(self, perm: Sequence[int] | None = None) -> Source:
        """As `numpy.transpose`; without `perm` the axes are reversed."""
        perm = [self._axis(axis) for axis in (reversed(range(len(self.shape))) if perm is None else perm)]
        if sorted(perm) != list(range(len(self.shape))):
            raise ValueError(f"{perm} does not permute the axes of shape {self.shape}")
        pieces = (replace(p, at=tuple(p.at[a] for a in perm), axes=tuple(p.axes[a] for a in perm)) for p in self.pieces)
        return self._with(tuple(self.shape[axis] for axis in perm), pieces)

    def reshape(self, shape: Sequence[int]) -> Source:
        """As `numpy.reshape` (one dim may be -1). Raises `OnnxgenError` if it would shred the tensor."""
        shape = _resolved(tuple(self.shape), tuple(int(dim) for dim in shape))
        if 0 in shape:
            return self._with(shape, ())
        pieces: Iterable[Piece] = self.pieces
        # From right to left, so that the axes still to come keep their numbers.
        for first, last, dims in reversed(_common_groups(self.shape, shape)):
            if dims != self.shape[first:last]:
                regrouped = (r for piece in pieces for r in _regroup(piece, self.shape, first, last, dims))
                pieces = list(itertools.islice(regrouped, MAX_PIECES + 1))
                if len(pieces) > MAX_PIECES:
                    raise OnnxgenError(f"weight {pieces[0].name!r}: reshaping {self.shape} to {shape} tears it apart")
        return self._with(shape, pieces)

    def unsqueeze(self, axis: int) -> Source:
        """A new axis of size 1 at `axis` of the result."""
        axis = axis if axis >= 0 else axis + len(self.shape) + 1
        if not 0 <= axis <= len(self.shape):
            raise ValueError(f"no axis {axis} to be made in shape {self.shape}")
        return self.reshape((*self.shape[:axis], 1, *self.shape[axis:]))

    def squeeze(self, axis: int) -> Source:
        """Drop `axis`, whose size is 1."""
        axis = self._axis(axis)
        if self.shape[axis] != 1:
            raise ValueError(f"axis {axis} of shape {self.shape} is not of size 1")
        return self.reshape((*self.shape[:axis], *self.shape[axis + 1 :]))

    def slice(self, axis: int, start: int, stop: int | None = None) -> Source:
        """As `array[..., start:stop, ...]` on `axis` (negative and too large bounds as in Python)."""
        axis = self._axis(axis)
        start, stop, _ = slice(start, stop).indices(self.shape[axis])
        shape = (*self.shape[:axis], max(stop - start, 0), *self.shape[axis + 1 :])
        pieces = []
        for piece in self.pieces:
            low, size = piece.at[axis], _size(piece.axes[axis])
            for position, offset, part in _cut(piece.axes[axis], max(start - low, 0), min(stop - low, size)):
                moved = max(low - start, 0) + position
                pieces.append(_on_axes(piece, axis, axis + 1, (moved,), offset, (part,)))
        return self._with(shape, pieces)

    def cast(self, dtype: ir.DataType) -> Source:
        """As `numpy.astype`; casting back from a type that holds every value undoes the cast."""
        if dtype == self.dtype:
            return self
        pieces = tuple(replace(p, casts=_cast(ir.DataType(p.tensor.dtype), p.casts, dtype)) for p in self.pieces)
        empty = tuple(replace(p, casts=_cast(ir.DataType(p.tensor.dtype), p.casts, dtype)) for p in self.empty)
        return replace(self, dtype=dtype, pieces=pieces, empty=empty)

    def numpy(self) -> Array:
        """Compute the tensor: shape `shape`, dtype `dtype.numpy()` (ml_dtypes where numpy has none).

        Read-only and no copy where it is a view of one ONNX tensor (memory-mapped if that is external).
        """
        if self.is_identity:
            return np.asarray(self.pieces[0].tensor.numpy() if self.pieces else self.empty[0].tensor.numpy())
        if len(self.pieces) == 1:
            return self.pieces[0].numpy()
        array = np.empty(self.shape, self.dtype.numpy())
        for piece in self.pieces:
            array[_block(piece)] = piece.numpy()
        return array

    def release(self) -> None:
        """Unmap external tensors; arrays that still view them keep their own mapping alive."""
        for piece in self.pieces:
            release = getattr(piece.tensor, "release", None)
            if release is not None:
                try:
                    release()
                except BufferError:  # a view lives: the mapping goes with it
                    pass

    def _axis(self, axis: int) -> int:
        if not -len(self.shape) <= axis < len(self.shape):
            raise ValueError(f"no axis {axis} in shape {self.shape}")
        return axis % len(self.shape)

    def _with(self, shape: tuple[int, ...], pieces: Iterable[Piece]) -> Source:
        return replace(self, shape=shape, pieces=_tidy(pieces))


def concat(sources: Sequence[Source], axis: int) -> Source:
    """As `numpy.concatenate`, for sources of one dtype. Raises `ValueError` if shapes or dtypes do not fit."""
    first, axis = sources[0], sources[0]._axis(axis)
    pieces: list[Piece] = []
    end = 0
    for source in sources:
        if source.dtype != first.dtype or len(source.shape) != len(first.shape):
            raise ValueError(f"cannot concatenate {source.shape} {source.dtype} to {first.shape} {first.dtype}")
        if any(a != b for i, (a, b) in enumerate(zip(source.shape, first.shape, strict=True)) if i != axis):
            raise ValueError(f"cannot concatenate {source.shape} to {first.shape} on axis {axis}")
        for piece in source.pieces:
            pieces.append(_on_axes(piece, axis, axis + 1, (piece.at[axis] + end,), 0, (piece.axes[axis],)))
        end += source.shape[axis]
    shape = (*first.shape[:axis], end, *first.shape[axis + 1 :])
    empty = tuple({piece.name: piece for source in sources for piece in source.empty}.values())
    return Source(shape, first.dtype, _tidy(pieces), empty)


# ---- the record ----------------------------------------------------------------------------------------------------


def way_back(keys: Mapping[str, Source]) -> dict[str, Any]:
    """For each ONNX tensor that the state dict is made of: how it is made of the state dict. JSON-able.

    An entry is the key itself where the ONNX tensor is that state-dict tensor, else
    `{"shape", "dtype", "parts": [...]}`: a part takes `key`'s elements (of its block `slice`, `[[start, stop], ...]`, if
    given) in row-major order, shaped `size`, to the flat positions `offset + sum(index * stride)` of the ONNX tensor,
    cast to `dtype`. `lossy` says that the state dict does not hold the values exactly; `partial` that elements of the
    ONNX tensor are in no key: they stay what the file has. Where several keys hold the same elements, the record is a
    list of entries: the first is the tensor, each other is what one more key holds of it, so that an export can tell
    when training made them differ.
    """
    uses: dict[str, list[tuple[str, Source, Piece]]] = {}
    for key, source in keys.items():
        for piece in (*source.pieces, *source.empty):
            uses.setdefault(piece.name, []).append((key, source, piece))
    record: dict[str, Any] = {}
    for name, found in uses.items():
        tensors = {(tuple(p.tensor.shape.numpy()), p.tensor.dtype) for _, _, p in found}
        if len(tensors) > 1:
            raise ValueError(f"two different tensors are called {name!r}")
        covered = _Covered([piece for _, _, piece in found])
        first: list[tuple[str, Source, Piece]] = []
        others: dict[str, list[tuple[str, Source, Piece]]] = {}
        for use in found:
            (first if covered.add(use[2]) else others.setdefault(use[0], [])).append(use)
        entries = [_entry(uses_, covered.all) for uses_ in ([first] if first else [])]
        entries += [_entry(uses_, _Covered.by(uses_)) for uses_ in others.values()]
        record[name] = entries[0] if len(entries) == 1 else entries
    return record


def rebuild(
    record: Mapping[str, Any],
    name: str,
    get: Callable[[str], Array],
    original: Array | None = None,
    entry: int = 0,
) -> Array:
    """The ONNX tensor `name` from the state dict, bit for bit if nothing was trained.

    Args:
        record: what `way_back` returned (through JSON or not).
        get: the state-dict tensor of a key.
        original: the ONNX file's own values; needed where the entry is `partial`.
        entry: which of the recorded entries; 0 is the tensor, the others are what further keys hold of it.

    Raises:
        OnnxgenError: the record has no such tensor or entry, it is partial and `original` is missing, or a state-dict
            tensor is not of the recorded size.
    """
    entries = record.get(name, [])
    entries = entries if isinstance(entries, list) else [entries]
    if entry >= len(entries):
        raise OnnxgenError(f"the weights do not say how {name!r} is rebuilt")
    found = entries[entry]
    if isinstance(found, str):
        return get(found)
    dtype = ir.DataType[found["dtype"]].numpy()
    if not found.get("partial"):
        out = np.empty(found["shape"], dtype)
    elif original is None:
        raise OnnxgenError(f"only parts of {name!r} are in the weights; the original tensor is needed for the rest")
    else:
        out = np.array(original, dtype, order="C").reshape(found["shape"])
    for part in reversed(found["parts"]):  # where parts overlap the first one wins
        value = get(part["key"])
        if "slice" in part:
            value = value[tuple(slice(start, stop) for start, stop in part["slice"])]
        if value.size != math.prod(part["size"]):
            raise OnnxgenError(f"{part['key']!r} is not of the size it was generated with")
        window = _window(out, part.get("offset", 0), tuple(zip(part["size"], part["stride"], strict=True)), write=True)
        window[...] = value.reshape(part["size"]).astype(dtype)
    return out


def _entry(uses: list[tuple[str, Source, Piece]], complete: bool) -> Any:
    key, source, piece = uses[0]
    if len(uses) == 1 and source.is_identity and source.dtype not in WIDER:
        return key
    entry: dict[str, Any] = {"shape": list(piece.tensor.shape.numpy()), "dtype": ir.DataType(piece.tensor.dtype).name}
    entry["parts"] = [_part(*use) for use in uses if math.prod(use[2].shape)]
    if not complete:
        entry["partial"] = True
    return entry


def _part(key: str, source: Source, piece: Piece) -> dict[str, Any]:
    atoms = _merged(itertools.chain(*piece.axes))
    part: dict[str, Any] = {"key": key}
    if piece.shape != source.shape:
        part["slice"] = [[low, low + size] for low, size in zip(piece.at, piece.shape, strict=True)]
    if piece.offset:
        part["offset"] = piece.offset
    part |= {"size": [size for size, _ in atoms], "stride": [stride for _, stride in atoms]}
    if not _lossless(ir.DataType(piece.tensor.dtype), piece.casts):
        part["lossy"] = True
    return part


class _Covered:
    """Which elements of one ONNX tensor are spoken for, in cells as large as the pieces' edges allow."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        size = math.prod(pieces[0].tensor.shape.numpy())
        self.grain = size
        for piece in pieces:
            *outer, (run, _) = self._runs(piece)
            self.grain = math.gcd(self.grain, piece.offset, run, *(stride for _, stride in outer))
        self.cells = np.zeros(size // self.grain if size else 0, bool)
        self.size = size

    @classmethod
    def by(cls, uses: Sequence[tuple[str, Source, Piece]]) -> bool:
        """Whether these uses cover their tensor."""
        covered = cls([piece for _, _, piece in uses])
        for _, _, piece in uses:
            covered.add(piece)
        return covered.all

    @staticmethod
    def _runs(piece: Piece) -> Axis:
        """The piece's factors by falling stride; the last is its contiguous run, of stride 1."""
        atoms = _merged(sorted(itertools.chain(*piece.axes), key=lambda atom: -atom[1]))
        return atoms if atoms and atoms[-1][1] == 1 else (*atoms, (1, 1))

    @property
    def all(self) -> bool:
        return bool(self.cells.all())

    def add(self, piece: Piece) -> bool:
        """Cover a piece; False if all of it was covered before."""
        if not self.size:
            new, self.size = not hasattr(self, "seen"), 0
            self.seen = True
            return new
        *outer, (run, _) = self._runs(piece)
        cells = tuple((size, stride // self.grain) for size, stride in outer) + ((run // self.grain, 1),)
        window = _window(self.cells, piece.offset // self.grain, cells, write=True)
        new = not window.all()
        window[...] = True
        return new


# ---- strided views ---------------------------------------------------------------------------------------------------


def _size(axis: Axis) -> int:
    return math.prod(size for size, _ in axis)


def _merged(atoms: Iterable[tuple[int, int]]) -> Axis:
    """Normal form: factors of size 1 dropped, those that run on into each other merged."""
    out: list[tuple[int, int]] = []
    for size, stride in atoms:
        if size != 1:
            if out and out[-1][1] == size * stride:
                size *= out.pop()[0]
            out.append((size, stride))
    return tuple(out)


def _window(array: Array, offset: int, atoms: Axis, write: bool) -> Array:
    """The strided view of a contiguous array's elements."""
    flat = array.reshape(-1)[offset:]
    strides = [stride * array.itemsize for _, stride in atoms]
    return np.lib.stride_tricks.as_strided(flat, [size for size, _ in atoms], strides, writeable=write)


def _block(piece: Piece) -> tuple[slice, ...]:
    return tuple(slice(low, low + size) for low, size in zip(piece.at, piece.shape, strict=True))


def _on_axes(piece: Piece, first: int, last: int, at: tuple[int, ...], offset: int, axes: tuple[Axis, ...]) -> Piece:
    """The piece with its axes `first` to `last` replaced."""
    return replace(
        piece,
        at=(*piece.at[:first], *at, *piece.at[last:]),
        offset=piece.offset + offset,
        axes=(*piece.axes[:first], *axes, *piece.axes[last:]),
    )


def _bounds(start: int, stop: int, row: int) -> list[int]:
    """Where to cut start:stop so that each part is whole rows or within one row."""
    return sorted({start, stop, min(-(-start // row) * row, stop), max(stop // row * row, start)})


def _cut(axis: Axis, start: int, stop: int) -> Iterator[tuple[int, int, Axis]]:
    """Elements start:stop of an axis: (position after start, offset, axis), as few as there can be."""
    if stop <= start:
        return
    if not axis:
        yield 0, 0, ()
        return
    (_, stride), rest = axis[0], axis[1:]
    row = _size(rest)
    for low, high in itertools.pairwise(_bounds(start, stop, row)):
        index, within = divmod(low, row)
        if within == 0 and high % row == 0:
            yield low - start, index * stride, _merged((((high - low) // row, stride), *rest))
        else:
            for position, offset, part in _cut(rest, within, within + high - low):
                yield low - start + position, index * stride + offset, part


def _split(axis: Axis, dims: Sequence[int]) -> tuple[Axis, ...] | None:
    """The axis as axes of sizes `dims` (of the same product); None if a factor lies across a border."""
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
        out.insert(0, _merged(taken))
    return tuple(out)


def _place(axis: Axis, low: int, dims: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], int, tuple[Axis, ...]]]:
    """Lay an axis onto the flat positions from `low` on of a tensor of shape `dims`: (at, offset, axes) a block."""
    size = _size(axis)
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
            for position, offset, part in _cut(axis, start - low, stop - low):
                for at, inner, axes in _place(part, start + position, dims):
                    yield at, offset + inner, axes


def _regroup(piece: Piece, shape: tuple[int, ...], first: int, last: int, dims: tuple[int, ...]) -> Iterator[Piece]:
    """The piece after axes `first:last` of the tensor's `shape` were reshaped to `dims`."""
    old, at, axes = shape[first:last], piece.at[first:last], piece.axes[first:last]
    # Elements that follow each other in the piece do so in the tensor from axis `flat` on, if what is inside is whole.
    flat = max(len(old) - 1, 0)
    while flat and _size(axes[flat]) == old[flat]:
        flat -= 1
    for index in itertools.product(*(range(_size(axis)) for axis in axes[:flat])):
        offset = sum(next(_cut(axis, i, i + 1))[1] for axis, i in zip(axes, index, strict=False))
        low = 0
        for dim, begin, i in itertools.zip_longest(old, at, index, fillvalue=0):
            low = low * dim + begin + i
        for place, inner, new in _place(_merged(itertools.chain(*axes[flat:])), low, dims):
            yield _on_axes(piece, first, last, place, offset + inner, new)


def _resolved(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    if new.count(-1) == 1 and (rest := math.prod(dim for dim in new if dim != -1)):
        new = tuple(math.prod(old) // rest if dim == -1 else dim for dim in new)
    if min(new, default=0) < 0 or math.prod(old) != math.prod(new):
        raise ValueError(f"cannot reshape {old} to {new}")
    return new


def _common_groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[int, int, tuple[int, ...]]]:
    """The shortest runs of axes of `old` that become runs of `new`: (first, last, dims). No dim is 0."""
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


def _tidy(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Merge blocks that lie side by side and continue each other in their ONNX tensor; sorted by place."""
    out, before = list(pieces), -1
    while len(out) != before and len(out) > 1:
        before = len(out)
        for axis in range(len(out[0].at)):
            out.sort(key=lambda p: (p.at[:axis], p.at[axis + 1 :], p.at[axis]))
            merged: list[Piece] = []
            for piece in out:
                joined = _joined(merged[-1], piece, axis) if merged else None
                if joined is None:
                    merged.append(piece)
                else:
                    merged[-1] = joined
            out = merged
    return tuple(sorted(out, key=lambda p: p.at))


def _joined(a: Piece, b: Piece, axis: int) -> Piece | None:
    """One piece for two neighbours on `axis`, or None."""
    if a.name != b.name or a.casts != b.casts or b.at[axis] != a.at[axis] + _size(a.axes[axis]):
        return None
    if any((a.at[i], a.axes[i]) != (b.at[i], b.axes[i]) for i in range(len(a.at)) if i != axis):
        return None
    x, y, step = a.axes[axis], b.axes[axis], b.offset - a.offset
    for rest in {x[1:], x} if x else {x}:
        leads = [lead for lead in (_lead(x, rest), _lead(y, rest)) if lead is not None]
        if len(leads) < 2 or step % leads[0][0]:
            continue
        stride = step // leads[0][0]
        if stride > 0 and all(size == 1 or own == stride for size, own in leads):
            joined = _merged(((leads[0][0] + leads[1][0], stride), *rest))
            piece = replace(a, axes=(*a.axes[:axis], joined, *a.axes[axis + 1 :]))
            return piece if _injective(piece) else None
    return None


def _lead(axis: Axis, rest: Axis) -> tuple[int, int] | None:
    """The outermost (size, stride) of an axis whose other factors are `rest`."""
    if axis == rest:
        return 1, 0
    return axis[0] if axis and axis[1:] == rest else None


def _injective(piece: Piece) -> bool:
    """Whether no ONNX element shows twice (else writing back would be ambiguous); may say no when in doubt."""
    reach = 1
    for size, stride in sorted(itertools.chain(*piece.axes), key=lambda atom: atom[1]):
        if stride < reach:
            return False
        reach += (size - 1) * stride
    return True


def _holds(narrow: ir.DataType, wide: ir.DataType) -> bool:
    """Whether every value of one type is a value of the other."""
    if narrow.is_integer() and narrow.itemsize == 8 and not wide.is_integer():
        return False  # numpy calls int64 to float64 safe
    return bool(np.can_cast(narrow.numpy(), wide.numpy(), "safe"))


def _lossless(dtype: ir.DataType, casts: Sequence[ir.DataType]) -> bool:
    return all(_holds(a, b) for a, b in itertools.pairwise((dtype, *casts)))


def _cast(dtype: ir.DataType, casts: tuple[ir.DataType, ...], to: ir.DataType) -> tuple[ir.DataType, ...]:
    """The chain of casts with one more, less those that undo each other."""
    chain = (dtype, *casts)
    if len(chain) > 1 and chain[-2] == to and _holds(to, chain[-1]):
        return chain[1:-1]
    return (*casts, to)
