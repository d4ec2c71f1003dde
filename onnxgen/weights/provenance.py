"""Weight provenance: how each state-dict tensor is made of ONNX tensors, and the inverse.

A `Source` rearranges and casts elements; it never computes. Its normal form is a list of `Piece`s: each is a block of
the state-dict tensor, and shows a strided view of one ONNX tensor's flat elements. Transposing permutes the view,
slicing narrows it, and reshaping splits and merges its axes. Concatenating sets blocks side by side; neighbours that
continue each other are merged. So if an exporter reorders the gates of an LSTM and a pass restores PyTorch's order, the
result is the identity, and no pattern needs to be recognised.

To invert a strided view, write to it: `way_back` records the views and `rebuild` writes. `Covered` tells which elements
of a stored tensor the pieces cover. The only other inverse is `Fold`: it folds a restored BatchNorm into its layer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.errors import OnnxgenError
from onnxgen.weights.dtypes import WIDER
from onnxgen.weights.strided import (
    Array,
    Axis,
    Piece,
    block,
    common_groups,
    cut,
    lossless,
    merged,
    on_axes,
    recast,
    regroup,
    released,
    resolved,
    size_of,
    tidy,
    window,
)


class Covered:
    """Tracks which elements of one ONNX tensor are covered, in cells as large as the edges of the pieces allow."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        size = max(math.prod(pieces[0].tensor.shape.numpy()), 1)  # an empty tensor has one cell that must be covered
        self.grain = size
        for piece in pieces:
            *outer, (run, _) = _runs(piece)
            self.grain = math.gcd(self.grain, piece.offset, run, *(stride for _, stride in outer))
        self.cells = np.zeros(size // self.grain, bool)

    @property
    def all(self) -> bool:
        return bool(self.cells.all())

    def add(self, piece: Piece) -> tuple[bool, bool]:
        """Cover a piece. Returns two answers: if any of it was not covered before, and if any was."""
        *outer, (run, _) = _runs(piece)
        atoms = [(size, stride // self.grain) for size, stride in outer] + [(run // self.grain, 1)]
        cells = window(self.cells, piece.offset // self.grain, tuple(atoms), write=True) if run else self.cells
        answer = not cells.all(), bool(cells.any())
        cells[...] = True
        return answer


def covers(pieces: Sequence[Piece]) -> bool:
    """Return True if the pieces together cover their whole ONNX tensor."""
    covered = Covered(pieces)
    for piece in pieces:
        covered.add(piece)
    return covered.all


def _runs(piece: Piece) -> Axis:
    """Return the piece's atoms by falling stride. The last is its contiguous run of stride 1 (size 0: no elements)."""
    if 0 in piece.shape:
        return ((0, 1),)
    atoms = merged(sorted(itertools.chain(*piece.axes), key=lambda atom: -atom[1]))
    return atoms if atoms and atoms[-1][1] == 1 else (*atoms, (1, 1))


MAX_PIECES = 65_536  # per tensor; no exporter's reshapes produce more


@dataclass(frozen=True)
class Source:
    """The provenance of one state-dict tensor. Immutable; it holds no data until `numpy()` is called.

    Attributes:
        shape: the shape of the state-dict tensor.
        dtype: its ONNX element type (int4 is INT4 here; the sidecar stores it in the type that `WIDER` names).
        pieces: the blocks that tile it.
        empty: the ONNX tensors without elements that it is made of.
        label: another name that the file gives to the same tensor with an Identity node; "" if none.
    """

    shape: tuple[int, ...]
    dtype: ir.DataType
    pieces: tuple[Piece, ...]
    empty: tuple[Piece, ...] = ()
    label: str = field(default="", compare=False)

    @classmethod
    def of(cls, tensor: ir.TensorProtocol, name: str) -> Source:
        """Return the provenance of a whole ONNX tensor. Raises `OnnxgenError` for strings: no state dict holds them."""
        if tensor.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
            raise OnnxgenError(f"tensor {name!r} of type {tensor.dtype.name} can't be stored as a weight")
        shape = tuple(tensor.shape.numpy())
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        axes = tuple(merged([(size, stride)]) for size, stride in zip(shape, strides, strict=True))
        piece = Piece((0,) * len(shape), name, 0, axes, (), tensor)
        empty = 0 in shape
        return cls(shape, ir.DataType(tensor.dtype), () if empty else (piece,), (piece,) if empty else ())

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the ONNX tensors it is made of, each once, in order of appearance."""
        return tuple(dict.fromkeys(piece.name for piece in (*self.pieces, *self.empty)))

    @property
    def nbytes(self) -> int:
        """Size in bytes, in memory and in the sidecar."""
        return math.prod(self.shape) * int(WIDER.get(self.dtype, self.dtype).itemsize)

    @property
    def is_identity(self) -> bool:
        """True if it is one whole ONNX tensor, unchanged."""
        pieces = self.pieces or self.empty
        return len(pieces) == 1 and self == Source.of(pieces[0].tensor, pieces[0].name)

    def transpose(self, perm: Sequence[int] | None = None) -> Source:
        """Permute axes as `numpy.transpose`. Without `perm` the axes are reversed."""
        perm = [self._axis(axis) for axis in (reversed(range(len(self.shape))) if perm is None else perm)]
        if sorted(perm) != list(range(len(self.shape))):
            raise ValueError(f"{perm} does not permute the axes of shape {self.shape}")
        pieces = (replace(p, at=tuple(p.at[a] for a in perm), axes=tuple(p.axes[a] for a in perm)) for p in self.pieces)
        return self._with(tuple(self.shape[axis] for axis in perm), pieces)

    def reshape(self, shape: Sequence[int]) -> Source:
        """Reshape as `numpy.reshape` (one dim may be -1). Raises `OnnxgenError` for too many pieces."""
        shape = resolved(tuple(self.shape), tuple(int(dim) for dim in shape))
        if 0 in shape:
            return self._with(shape, ())
        pieces: Iterable[Piece] = self.pieces
        # From right to left, so that axes that are not yet processed keep their numbers.
        for first, last, dims in reversed(common_groups(self.shape, shape)):
            if dims != self.shape[first:last]:
                regrouped = (r for piece in pieces for r in regroup(piece, self.shape, first, last, dims))
                pieces = list(itertools.islice(regrouped, MAX_PIECES + 1))
                if len(pieces) > MAX_PIECES:
                    raise OnnxgenError(f"weight {pieces[0].name!r}: reshaping {self.shape} to {shape} tears it apart")
        return self._with(shape, pieces)

    def unsqueeze(self, axis: int) -> Source:
        """Insert a new axis of size 1 at position `axis` of the result."""
        axis = axis if axis >= 0 else axis + len(self.shape) + 1
        if not 0 <= axis <= len(self.shape):
            raise ValueError(f"no axis {axis} to be made in shape {self.shape}")
        return self.reshape((*self.shape[:axis], 1, *self.shape[axis:]))

    def squeeze(self, axis: int) -> Source:
        """Drop `axis`, whose size must be 1."""
        axis = self._axis(axis)
        if self.shape[axis] != 1:
            raise ValueError(f"axis {axis} of shape {self.shape} is not of size 1")
        return self.reshape((*self.shape[:axis], *self.shape[axis + 1 :]))

    def slice(self, axis: int, start: int, stop: int | None = None) -> Source:
        """Slice as `array[..., start:stop, ...]` on `axis` (negative and too large bounds as in Python)."""
        axis = self._axis(axis)
        start, stop, _ = slice(start, stop).indices(self.shape[axis])
        shape = (*self.shape[:axis], max(stop - start, 0), *self.shape[axis + 1 :])
        pieces = []
        for piece in self.pieces:
            low, size = piece.at[axis], size_of(piece.axes[axis])
            for position, offset, part in cut(piece.axes[axis], max(start - low, 0), min(stop - low, size)):
                moved = max(low - start, 0) + position
                pieces.append(on_axes(piece, axis, axis + 1, (moved,), offset, (part,)))
        return self._with(shape, pieces)

    def cast(self, dtype: ir.DataType) -> Source:
        """Cast as `numpy.astype`. Casting back from a type that holds every value undoes the cast."""
        if dtype == self.dtype:
            return self
        pieces, empty = (
            tuple(replace(p, casts=recast(ir.DataType(p.tensor.dtype), p.casts, dtype)) for p in group)
            for group in (self.pieces, self.empty)
        )
        return replace(self, dtype=dtype, pieces=pieces, empty=empty)

    def numpy(self) -> Array:
        """Compute the tensor: shape `shape`, dtype `dtype.numpy()` (ml_dtypes where numpy has none).

        Read-only and no copy where it is a view of one ONNX tensor (memory-mapped if that is external).
        """
        if self.is_identity:
            return np.asarray((self.pieces or self.empty)[0].tensor.numpy())
        if len(self.pieces) == 1:
            return self.pieces[0].numpy()
        array = np.empty(self.shape, self.dtype.numpy())
        for piece in self.pieces:
            array[block(piece)] = piece.numpy()
        return array

    def release(self) -> None:
        """Unmap external tensors; arrays that still view them keep their own mapping alive."""
        for piece in self.pieces:
            with suppress(BufferError):  # a view still exists; the mapping is closed with it
                released(piece.tensor)

    def _axis(self, axis: int) -> int:
        if not -len(self.shape) <= axis < len(self.shape):
            raise ValueError(f"no axis {axis} in shape {self.shape}")
        return axis % len(self.shape)

    def _with(self, shape: tuple[int, ...], pieces: Iterable[Piece]) -> Source:
        return replace(self, shape=shape, pieces=tidy(pieces))


def concat(sources: Sequence[Source], axis: int) -> Source:
    """Concatenate as `numpy.concatenate`. Raises `ValueError` if shapes or dtypes do not fit."""
    first, axis = sources[0], sources[0]._axis(axis)
    pieces: list[Piece] = []
    end = 0
    for source in sources:
        if source.dtype != first.dtype:
            raise ValueError(f"cannot concatenate {source.dtype} to {first.dtype}")
        if any(a != b for i, (a, b) in enumerate(zip(source.shape, first.shape, strict=True)) if i != axis):
            raise ValueError(f"cannot concatenate {source.shape} to {first.shape} on axis {axis}")
        for piece in source.pieces:
            pieces.append(on_axes(piece, axis, axis + 1, (piece.at[axis] + end,), 0, (piece.axes[axis],)))
        end += source.shape[axis]
    shape = (*first.shape[:axis], end, *first.shape[axis + 1 :])
    empty = tuple({piece.name: piece for source in sources for piece in source.empty}.values())
    return Source(shape, first.dtype, tidy(pieces), empty)


@dataclass(frozen=True)
class Fold:
    """A BatchNorm folded into a layer's ONNX tensor. The state dict holds the layer and the norm separately.

    Attributes:
        norm: the BatchNorm's path in the state dict.
        epsilon: of the BatchNorm.
        part: the state-dict tensor's role: the layer's "weight" or "bias", or the "norm bias" of a layer without bias.
        axis, groups: the axis of a weight's output channels; with several groups they are counted within each.
    """

    norm: str
    epsilon: float
    part: str
    axis: int = 0
    groups: int = 1

    def apply(self, value: Array, get: Callable[[str], Array]) -> Array:
        """Compute the folded tensor in float64: `weight * s`, or `norm.bias + (bias - norm.running_mean) * s`."""
        keys = ("weight", "running_mean", "running_var")
        gain, mean, variance = (get(f"{self.norm}.{key}").astype(np.float64) for key in keys)
        scale, wide = gain / np.sqrt(variance + self.epsilon), value.astype(np.float64)
        if self.part == "norm bias":
            return wide - mean * scale
        if self.part == "bias":
            return get(f"{self.norm}.bias").astype(np.float64) + (wide - mean) * scale
        if value.shape[self.axis] * self.groups != scale.size or value.shape[0] % self.groups:
            raise OnnxgenError(f"{self.norm!r} has another size than when the module was generated")
        if self.axis:  # [in, out / groups, ...]
            wide = wide.reshape(self.groups, -1, *value.shape[1:])
            return (wide * scale.reshape(self.groups, 1, -1, *[1] * (value.ndim - 2))).reshape(value.shape)
        return wide * scale.reshape(-1, *[1] * (value.ndim - 1))


_Use = tuple[str, Source, Piece]  # state-dict key, its provenance, and one piece of it

# ---- the record ----------------------------------------------------------------------------------------------------


def way_back(
    keys: Mapping[str, Source], twins: Iterable[tuple[str, Source]] = (), folds: Mapping[str, Fold] | None = None
) -> dict[str, Any]:
    """Return a JSON-able record of how to make each ONNX tensor from the state dict.

    If an ONNX tensor equals a state-dict tensor, its entry is the key. Otherwise it is
    `{"shape", "dtype", "parts": [...]}`. A part reads `key`'s elements in row-major order, or only those of the block
    `slice` (`[[start, stop], ...]`). It casts them to `dtype`, shapes them as `size`, and writes them to the flat
    positions `offset + sum(index * stride)` of the ONNX tensor. `lossy`: the state dict does not hold the exact values.
    `partial`: some elements are in no key, and keep the file's values. If several keys hold the same elements, the
    record is a list of entries. The first one makes the tensor. Each other has the elements that another key holds, so
    that an export can detect when training made them differ. `twins`: further ONNX tensors that equal some key.
    """
    uses: dict[str, list[_Use]] = {}
    for key, source in (*keys.items(), *twins):
        for piece in (*source.pieces, *source.empty):
            uses.setdefault(piece.name, []).append((key, source, piece))
    record: dict[str, Any] = {}
    for name, tensor_uses in uses.items():
        tensors = {(tuple(p.tensor.shape.numpy()), p.tensor.dtype) for _, _, p in tensor_uses}
        if len(tensors) > 1:
            raise ValueError(f"two different tensors are called {name!r}")
        covered = Covered([piece for _, _, piece in tensor_uses])
        primary: list[_Use] = []
        others: dict[str, list[_Use]] = {}
        for use in tensor_uses:
            is_new, is_again = covered.add(use[2])  # both if some of its elements are also another key's
            primary += [use] if is_new else []
            if is_again:
                others.setdefault(use[0], []).append(use)
        entries = [_entry(group, folds or {}) for group in (primary, *others.values())]
        record[name] = entries[0] if len(entries) == 1 else entries
    return record


def rebuild(
    record: Mapping[str, Any],
    name: str,
    get: Callable[[str], Array],
    original: Array | None = None,
    entry: int = 0,
) -> Array:
    """Compute the ONNX tensor `name` from the state dict, bit for bit if nothing was trained.

    Args:
        record: the result of `way_back`, which may have passed through JSON.
        get: returns the state-dict tensor of a key.
        original: the ONNX file's values; required if the entry is `partial`.
        entry: the index of the recorded entry; 0 makes the tensor, others have the elements that further keys hold.

    Raises:
        OnnxgenError: the record has no such tensor or entry, it is partial and `original` is missing, or a state-dict
            tensor does not have the recorded size.
    """
    entries = record.get(name, [])
    entries = entries if isinstance(entries, list) else [entries]
    if entry >= len(entries):
        raise OnnxgenError(f"the weights file does not say how {name!r} is rebuilt: generate the module again")
    recipe = entries[entry]
    if isinstance(recipe, str):
        return get(recipe)
    dtype = ir.DataType[recipe["dtype"]].numpy()
    if original is not None and all(ir.DataType.from_numpy(d).is_floating_point() for d in (dtype, original.dtype)):
        dtype = original.dtype  # the module may have been generated in another floating point type (`--dtype`)
    if not recipe.get("partial"):
        out = np.empty(recipe["shape"], dtype)
    elif original is None:
        raise OnnxgenError(f"only parts of {name!r} are in the weights; the original ONNX file is needed for the rest")
    else:
        out = np.array(original, dtype, order="C").reshape(recipe["shape"])
    for part in reversed(recipe["parts"]):  # reversed, so that the first part wins where parts overlap
        value = get(part["key"])
        if "fold" in part:
            value = Fold(**part["fold"]).apply(value, get)
        if "slice" in part:
            value = value[tuple(slice(start, stop) for start, stop in part["slice"])]
        if value.size != math.prod(part["size"]):
            raise OnnxgenError(f"{part['key']!r} has another size than when the module was generated")
        atoms = tuple(zip(part["size"], part["stride"], strict=True))
        window(out, part.get("offset", 0), atoms, write=True)[...] = value.reshape(part["size"]).astype(dtype)
    return out


def _entry(uses: list[_Use], folds: Mapping[str, Fold]) -> Any:
    key, source, piece = uses[0]
    if len(uses) == 1 and key not in folds and source.is_identity and source.dtype not in WIDER:
        return key
    entry: dict[str, Any] = {"shape": list(piece.tensor.shape.numpy()), "dtype": ir.DataType(piece.tensor.dtype).name}
    entry["parts"] = [_part(*use, folds.get(use[0])) for use in uses if math.prod(use[2].shape)]
    if not covers([piece for _, _, piece in uses]):
        entry["partial"] = True
    return entry


def _part(key: str, source: Source, piece: Piece, fold: Fold | None) -> dict[str, Any]:
    atoms = merged(itertools.chain(*piece.axes))
    part: dict[str, Any] = {"key": key}
    if fold is not None:
        part["fold"] = vars(fold)
    if piece.shape != source.shape:
        part["slice"] = [[low, low + size] for low, size in zip(piece.at, piece.shape, strict=True)]
    if piece.offset:
        part["offset"] = piece.offset
    part |= {"size": [size for size, _ in atoms], "stride": [stride for _, stride in atoms]}
    if not lossless(ir.DataType(piece.tensor.dtype), piece.casts):
        part["lossy"] = True
    return part
