"""The sidecar: `Source`s streamed into safetensors files, and the pair of sidecar and module replaced as one.

The format (https://github.com/huggingface/safetensors, "Format"): the header's length as 8 bytes little-endian, the
header (JSON, padded with spaces to a multiple of 8), then the tensors' bytes, row-major, little-endian, without gaps.

The safetensors library writes too, but its `serialize_file` wants every tensor in memory at once. This writer holds one
tensor at a time, and of a memory-mapped one nothing but the pages it is reading.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.atomic import SUFFIX, replacing
from onnxgen.errors import OnnxgenError, Problem
from onnxgen.options import Options
from onnxgen.wayback import WIDER, Source

Array = NDArray[Any]
Tensors = Mapping[str, Source | Array]

CHUNK = 16 << 20  # bytes in flight
INDEX = ".index.json"
MAX_HEADER = 100_000_000  # what the safetensors library reads
MARK = {"format": "pt", "generator": "onnxgen"}  # "format" is what loaders of the Hugging Face layout ask for

DTYPES = {
    ir.DataType.BOOL: "BOOL",
    ir.DataType.UINT8: "U8",
    ir.DataType.INT8: "I8",
    ir.DataType.UINT16: "U16",
    ir.DataType.INT16: "I16",
    ir.DataType.UINT32: "U32",
    ir.DataType.INT32: "I32",
    ir.DataType.UINT64: "U64",
    ir.DataType.INT64: "I64",
    ir.DataType.FLOAT16: "F16",
    ir.DataType.BFLOAT16: "BF16",
    ir.DataType.FLOAT: "F32",
    ir.DataType.DOUBLE: "F64",
    ir.DataType.COMPLEX64: "C64",
    ir.DataType.FLOAT8E4M3FN: "F8_E4M3",
    ir.DataType.FLOAT8E5M2: "F8_E5M2",
    ir.DataType.FLOAT8E4M3FNUZ: "F8_E4M3FNUZ",
    ir.DataType.FLOAT8E5M2FNUZ: "F8_E5M2FNUZ",
    ir.DataType.FLOAT8E8M0: "F8_E8M0",
}
_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}


class Entry(NamedTuple):
    """A tensor in a safetensors file: dtype by its safetensors name, shape, and its bytes in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


# ---- writing ---------------------------------------------------------------------------------------------------------


def write_safetensors(path: Path, tensors: Tensors, metadata: Mapping[str, str]) -> None:
    """Write one safetensors file, one tensor in memory at a time. Raises `OnnxgenError` if a tensor has no place in it.

    Tensors lie widest type first, then by key, as the library has them: each is aligned, and the same content makes the
    same bytes. Nothing here guards against a kill: see `write_pair`.
    """
    header = _header(tensors, metadata)
    with open(path, "wb") as file:
        _write(file, header, _order(tensors), tensors)


def embed_bytes(tensors: Tensors, metadata: Mapping[str, str]) -> bytes:
    """The bytes that `write_safetensors` would write."""
    file = io.BytesIO()
    _write(file, _header(tensors, metadata), _order(tensors), tensors)
    return file.getvalue()


def write_pair(
    out: Path,
    source: str | None,
    weights: Path | None,
    tensors: Tensors,
    metadata: Mapping[str, str],
    shard_size: int = Options.shard_size,
    force: bool = False,
) -> list[Path]:
    """Write the module `source` to `out` and its sidecar to `weights` (None: leave or have none); return the files.

    A sidecar of more than `shard_size` bytes becomes several files and an index (the Hugging Face layout). Every file
    is complete before the first is renamed into place, the module last: an error leaves the old files as they were,
    and a kill the old pair, the new pair, or new weights beside the old module, whose fingerprint then does not match.
    Runs into one folder wait for each other. Files of the other layout that we wrote before are removed at the end.

    Raises:
        OnnxgenError: a path cannot be written, the disk is full, or a weight cannot be read or stored; or, without
            `force`, the sidecar is there and holds weights that onnxgen did not write.
    """
    out = _followed(out)
    files = [] if weights is None else _plan(_followed(weights), tensors, metadata, shard_size)
    targets = [file.path for file in files]
    if out in targets:
        raise OnnxgenError(f"module and weights would both be written to {out}")
    if not force:
        _refuse_foreign(targets)
    with _clear_errors(out), replacing(path.parent for path in (out, *targets)) as replacements:
        for planned in files:
            with replacements.file(planned.path) as file:
                _write(file, planned.header, planned.keys, tensors)
        if source is not None:
            with replacements.file(out) as file:
                file.write(source.encode())
        for stale in [] if weights is None else _stale(_followed(weights), targets):
            replacements.remove(stale)
    return targets if source is None else [*targets, out]


def _followed(path: Path) -> Path:
    """What is at a path is replaced, and where that is a link, what it leads to."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


@contextmanager
def _clear_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        file = Path(error.filename or out)
        file = file.parent if file.name.endswith(SUFFIX) else file
        where = "" if file == out else f" ({file})"
        raise OnnxgenError(f"cannot write {out}: {error.strerror or error}{where}") from error


def sidecar_targets(weights: Path, tensors: Tensors, shard_size: int) -> list[Path]:
    """The files that `write_pair` would write for a sidecar at `weights`."""
    return [file.path for file in _plan(weights, tensors, {}, shard_size)]


def is_sharded(tensors: Tensors, shard_size: int) -> bool:
    """Whether `write_pair` would write several files and an index."""
    return len(_shards(tensors, shard_size)) > 1


def same_content(
    path: Path, tensors: Tensors, metadata: Mapping[str, str] | None = None, shard_size: int = Options.shard_size
) -> bool:
    """Whether the sidecar at `path` is, byte for byte, what `write_pair` would write.

    Without `metadata` that of the file counts as right. Files of the other layout (one file, or shards) left beside
    it make it differ. Streams both sides; False where the sidecar is missing or broken.
    """
    path = _followed(path)
    try:
        if metadata is None:
            metadata = read_header(sidecar_files(path)[0])[0]
        files = _plan(path, tensors, metadata, shard_size)
        return not _stale(path, [file.path for file in files]) and all(_same(file, tensors) for file in files)
    except (OSError, OnnxgenError):
        return False


def is_lost(path: Path) -> bool:
    """Whether the sidecar at `path` is missing, or broken so that nothing can be read from it."""
    try:
        for file in sidecar_files(_followed(path)):
            read_header(file)
    except OnnxgenError:
        return True
    return False


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_header(path: Path) -> tuple[dict[str, str], dict[str, Entry]]:
    """Metadata and tensors of one safetensors file. Raises `OnnxgenError` if it is none, or cut short."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(MAX_HEADER, size - 8):
                raise ValueError("its header is cut short")
            header = json.loads(file.read(length))
        metadata = header.pop("__metadata__", {})
        begin = 8 + length
        entries = {
            key: Entry(e["dtype"], tuple(e["shape"]), *(begin + at for at in e["data_offsets"]))
            for key, e in header.items()
        }
        for key, entry in entries.items():
            expected = math.prod(entry.shape) * int(_BY_NAME[entry.dtype].itemsize)
            if not begin <= entry.start <= entry.stop <= size or entry.stop - entry.start != expected:
                raise ValueError(f"tensor {key!r} is cut short")
        return metadata, entries
    except OSError as error:
        raise OnnxgenError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OnnxgenError(f"{path} is not a safetensors file: {error}") from error


def sidecar_files(path: Path) -> list[Path]:
    """The safetensors files of the sidecar at `path`: itself, or the shards of its index (which may be named too).

    Raises `OnnxgenError` if the index is missing where it is named, or broken.
    """
    base = path.with_name(path.name.removesuffix(INDEX))
    index = index_path(base)
    if base == path and (path.is_file() or not index.is_file()):
        return [path]
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        if not all(_shard_pattern(base).fullmatch(name) for name in names):
            raise ValueError("it names files that are no shards of it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OnnxgenError(f"{index} is not an index of weights: {error}") from error
    return [path.with_name(name) for name in names]


def read_tensors(path: Path) -> dict[str, Array]:
    """Every tensor of the sidecar at `path`, memory-mapped, read-only, types that numpy lacks by ml_dtypes.

    Raises `OnnxgenError` if a file is missing or broken.
    """
    found: dict[str, Array] = {}
    for file in sidecar_files(path):
        _, entries = read_header(file)
        raw = np.memmap(file, np.uint8, "r")
        for key, entry in entries.items():
            array = raw[entry.start : entry.stop].view(_BY_NAME[entry.dtype].numpy())
            found[key] = array.reshape(entry.shape)
    return found


# ---- one file --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _File:
    """A file to be written: its first bytes, and the tensors that follow (the index has none)."""

    path: Path
    header: bytes
    keys: tuple[str, ...]


def _plan(path: Path, tensors: Tensors, metadata: Mapping[str, str], shard_size: int) -> list[_File]:
    """The files of a sidecar, in the order they are to appear: shards before their index."""
    metadata = {**MARK, **metadata}
    shards = _shards(tensors, shard_size)
    if len(shards) == 1:
        return [_File(path, _header(tensors, metadata), _order(tensors))]
    files: list[_File] = []
    weight_map: dict[str, str] = {}
    for number, keys in enumerate(shards, 1):
        target = path.with_name(f"{path.stem}-{number:05}-of-{len(shards):05}{path.suffix}")
        part = {key: tensors[key] for key in keys}
        files.append(_File(target, _header(part, metadata), _order(part)))
        weight_map |= dict.fromkeys(keys, target.name)
    total = sum(_nbytes(value) for value in tensors.values())
    index = {"metadata": {"total_size": total, **metadata}, "weight_map": weight_map}
    return [*files, _File(index_path(path), json.dumps(index, indent=2, sort_keys=True).encode() + b"\n", ())]


def _shards(tensors: Tensors, shard_size: int) -> list[list[str]]:
    """Keys a file: in order, a new file wherever the next tensor would make it too large."""
    shards: list[list[str]] = [[]]
    size = 0
    for key, value in tensors.items():
        if shards[-1] and size + _nbytes(value) > shard_size:
            shards.append([])
            size = 0
        shards[-1].append(key)
        size += _nbytes(value)
    return shards


def _order(tensors: Tensors) -> tuple[str, ...]:
    return tuple(sorted(tensors, key=lambda key: (-int(_dtype(tensors[key]).itemsize), key)))


def _header(tensors: Tensors, metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for key in _order(tensors):
        value = tensors[key]
        dtype = _dtype(value)
        if dtype not in DTYPES or key == "__metadata__":
            raise OnnxgenError(Problem(f"weight {key!r} of type {dtype.name} cannot be stored as safetensors"))
        begin, end = end, end + _nbytes(value)
        header[key] = {"dtype": DTYPES[dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise OnnxgenError(f"{len(text):,} bytes are too many for the header of a safetensors file")
    return len(text).to_bytes(8, "little") + text


def _write(file: BinaryIO, header: bytes, keys: Iterable[str], tensors: Tensors) -> None:
    file.write(header)
    for key in keys:
        for chunk in _chunks(key, tensors[key]):
            file.write(chunk)


def _same(file: _File, tensors: Tensors) -> bool:
    """Whether a file on disk has these contents."""
    size = len(file.header) + sum(_nbytes(tensors[key]) for key in file.keys)
    with open(file.path, "rb") as there:
        if os.fstat(there.fileno()).st_size != size or there.read(len(file.header)) != file.header:
            return False
        chunks = itertools.chain.from_iterable(_chunks(key, tensors[key]) for key in file.keys)
        return all(there.read(len(chunk)) == chunk.tobytes() for chunk in chunks)


def _dtype(value: Source | Array) -> ir.DataType:
    dtype = value.dtype if isinstance(value, Source) else ir.DataType.from_numpy(value.dtype)
    return WIDER.get(dtype, dtype)


def _nbytes(value: Source | Array) -> int:
    return math.prod(value.shape) * int(_dtype(value).itemsize)


def _chunks(key: str, value: Source | Array) -> Iterator[memoryview]:
    """The tensor's bytes as they are stored, a few at a time; a memory-mapped tensor is let go of afterwards."""
    try:
        array = value.numpy() if isinstance(value, Source) else value
    except (OSError, ValueError) as error:  # external data that is gone, short or not where it may be
        raise OnnxgenError(f"cannot read weight {key!r}: {error}") from error
    try:
        dtype = _dtype(value).numpy()
        array = array.reshape(-1) if array.flags.c_contiguous or not array.ndim else array
        rows = max(1, CHUNK // max(1, math.prod(array.shape[1:]) * dtype.itemsize))
        for row in range(0, len(array) if array.size else 0, rows):
            part = np.ascontiguousarray(array[row : row + rows]).astype(dtype, copy=False)
            # Released here and not when the receiver feels like it: a mapping with a view on it cannot be closed.
            with part.reshape(-1).view(np.uint8).data as view:
                del part
                yield view
    finally:
        del array
        if isinstance(value, Source):
            value.release()


# ---- the files beside each other -------------------------------------------------------------------------------------


def index_path(path: Path) -> Path:
    """The index of the sidecar at `path`, where it is sharded."""
    return path.with_name(path.name + INDEX)


def _shard_pattern(path: Path) -> re.Pattern[str]:
    return re.compile(re.escape(path.stem) + r"-\d{5,}-of-\d{5,}" + re.escape(path.suffix))


def _ours(path: Path, broken: bool) -> bool:
    """Whether we wrote this file; `broken` is the answer where it cannot be told though it is called like weights."""
    try:
        if path.suffix == ".json":
            metadata = json.loads(path.read_bytes()).get("metadata", {})
        else:
            metadata = read_header(path)[0]
        return bool(metadata.get("generator") == MARK["generator"])
    except (OSError, ValueError, AttributeError, OnnxgenError):
        return broken and path.suffix in (".safetensors", ".json")


def _refuse_foreign(targets: Iterable[Path]) -> None:
    for target in targets:
        if target.is_file() and not _ours(target, broken=True):
            way_out = "keep it elsewhere, write the weights to another --weights FILE, or use --force"
            raise OnnxgenError(Problem(f"{target} holds weights that onnxgen did not write", help=way_out))


def _stale(path: Path, targets: list[Path]) -> list[Path]:
    """What an earlier write of ours left at this path in another layout: the one file, or shards and index."""
    pattern = _shard_pattern(path)
    found = [file for file in path.parent.iterdir() if pattern.fullmatch(file.name)] if path.parent.is_dir() else []
    found += [file for file in (path, index_path(path)) if file.exists()]
    return sorted(file for file in found if file not in targets and file.is_file() and _ours(file, broken=False))
