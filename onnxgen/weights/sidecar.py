"""Write, find and compare the sidecar: one file, or shards and their index.

The format (https://github.com/huggingface/safetensors, "Format"): the header's length as 8 bytes little-endian, the
header (JSON, padded with spaces to a multiple of 8), then the tensors' bytes, row-major, little-endian, without gaps.

The safetensors library's `serialize_file` needs all tensors in memory at once. This writer streams `Source`s: it holds
one tensor at a time, and only the pages that it is reading if the tensor is memory-mapped.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx_ir as ir

from onnxgen.common.atomic import SUFFIX, replacing
from onnxgen.common.timing import WEIGHTS, stage
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.record.sidecar import (
    MARK,
    MAX_HEADER,
    TRAINED,
    followed,
    header_metadata,
    index_path,
    is_ours,
    read_header,
    shapes_in,
    sidecar_files,
    stale,
)
from onnxgen.weights.dtypes import BY_NAME, SAFETENSORS_DTYPES, WIDER
from onnxgen.weights.file_tensor import FileTensor, SourceFile
from onnxgen.weights.provenance import Source
from onnxgen.weights.strided import Array as Array
from onnxgen.weights.strided import merged

Tensors = Mapping[str, Source | Array]

CHUNK = 16 << 20  # bytes in one chunk
COPIED = 1 << 30  # bytes in one system call, at most
SAMPLES = 8  # approximate number of sampled elements of each tensor


# ---- writing ---------------------------------------------------------------------------------------------------------


def embed_bytes(tensors: Tensors, metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a safetensors file."""
    file = io.BytesIO()
    write_tensors(file, header_of(tensors, metadata), in_order(tensors), tensors)
    return file.getvalue()


# ---- one file --------------------------------------------------------------------------------------------------------


def in_order(tensors: Tensors) -> tuple[str, ...]:
    """Return the keys in the library's order, widest type first: each tensor is aligned, and bytes are reproducible."""
    return tuple(sorted(tensors, key=lambda key: (-int(stored_dtype(tensors[key]).itemsize), key)))


def header_of(tensors: Tensors, metadata: Mapping[str, str]) -> bytes:
    """Return the header of a file. Raises `OnnxgenError` if the type of a tensor has no safetensors dtype."""
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for key in in_order(tensors):
        value = tensors[key]
        dtype = stored_dtype(value)
        if dtype not in SAFETENSORS_DTYPES or key == "__metadata__":
            raise OnnxgenError(f"weight {key!r} of type {dtype.name} cannot be stored as safetensors")
        begin, end = end, end + stored_size(value)
        header[key] = {"dtype": SAFETENSORS_DTYPES[dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise OnnxgenError(f"the header of the safetensors file would have {len(text):,} bytes, which is too many")
    return len(text).to_bytes(8, "little") + text


def write_tensors(file: BinaryIO, header: bytes, keys: Iterable[str], tensors: Tensors) -> None:
    """Write a safetensors file, one tensor at a time. Bytes that a file already stores in this form are copied."""
    with stage(WEIGHTS):
        file.write(header)
        for key in keys:
            if not _copied(file, key, tensors[key]):
                for chunk in stored_chunks(key, tensors[key]):
                    file.write(chunk)


def _copied(file: BinaryIO, key: str, value: Source | Array) -> bool:
    """Append a tensor by copying it from file to file, as `cp` does. Returns False if that is not possible."""
    if not isinstance(value, Source) or not isinstance(file, io.BufferedWriter) or not hasattr(os, "copy_file_range"):
        return False
    external = _external(value)
    if external is None:
        return False
    if not isinstance(external[0], SourceFile):
        _array(key, value)  # opening it checks its location and length
        value.release()
    source, start = external
    begin, left = file.tell(), stored_size(value)
    file.flush()
    with suppress(OSError), _opened(source) as number:  # old kernel, or two file systems; a full disk fails again later
        while left and (count := os.copy_file_range(number, file.fileno(), min(left, COPIED), start)):
            start, left = start + count, left - count
    file.seek(begin if left else begin + stored_size(value))
    return not left


@contextmanager
def _opened(source: SourceFile | str) -> Iterator[int]:
    """Open the source file. Yields its descriptor."""
    if isinstance(source, SourceFile):
        yield source.fileno()
        source.check()
        return
    with open(source, "rb") as file:
        yield file.fileno()


def _external(value: Source) -> tuple[SourceFile | str, int] | None:
    """Return the file and offset of a tensor whose bytes are stored contiguously in their final form, else None."""
    if len(value.pieces) != 1 or value.dtype != stored_dtype(value):
        return None
    (piece,) = value.pieces
    in_one = merged(itertools.chain(*piece.axes)) in ((), ((math.prod(value.shape), 1),))
    tensor = piece.tensor
    if piece.casts or not in_one or not isinstance(tensor, (ir.ExternalTensor, FileTensor)):
        return None
    file = tensor.source if isinstance(tensor, FileTensor) else tensor.path
    return file, (tensor.offset or 0) + piece.offset * int(value.dtype.itemsize)


def stored_dtype(value: Source | Array) -> ir.DataType:
    dtype = value.dtype if isinstance(value, Source) else ir.DataType.from_numpy(value.dtype)
    return WIDER.get(dtype, dtype)


def stored_size(value: Source | Array) -> int:
    return math.prod(value.shape) * int(stored_dtype(value).itemsize)


def sample(key: str, value: Source | Array) -> bytes:
    """Return a few elements of a tensor's ONNX tensors. Reads only a few pages of memory-mapped ones."""
    stored = [piece.tensor for piece in value.pieces] if isinstance(value, Source) else [value]
    try:
        flat = [(value if isinstance(value, np.ndarray) else value.numpy()).reshape(-1) for value in stored]
        return b"".join(array[:: max(1, array.size // SAMPLES)].tobytes() for array in flat)
    except (OSError, ValueError) as error:
        raise OnnxgenError(f"cannot read weight {key!r}: {error}") from error
    finally:
        flat = []
        if isinstance(value, Source):
            value.release()


def stored_chunks(key: str, value: Source | Array) -> Iterator[memoryview]:
    """Yield the tensor's stored bytes in chunks. A memory-mapped tensor is unmapped afterwards."""
    array = _array(key, value)
    try:
        dtype = stored_dtype(value).numpy()
        array = array.reshape(-1) if array.flags.c_contiguous or not array.ndim else array
        rows = max(1, CHUNK // max(1, math.prod(array.shape[1:]) * dtype.itemsize))
        for row in range(0, len(array) if array.size else 0, rows):
            part = np.ascontiguousarray(array[row : row + rows]).astype(dtype, copy=False)
            # Released here, not by the receiver: a mapping with a view on it cannot be closed.
            with part.reshape(-1).view(np.uint8).data as view:
                del part
                yield view
    finally:
        del array
        if isinstance(value, Source):
            value.release()


def _array(key: str, value: Source | Array) -> Array:
    try:
        return value.numpy() if isinstance(value, Source) else value
    except (OSError, ValueError) as error:  # external data is missing, too short or outside its folder
        raise OnnxgenError(f"cannot read weight {key!r}: {error}") from error


STAMP = "stamp"


# ---- writing ---------------------------------------------------------------------------------------------------------


def write_pair(
    out: Path,
    source: str | None,
    weights: Path | None,
    tensors: Tensors,
    metadata: Mapping[str, str],
    shard_size: int = Options.shard_size,
    force: bool = False,
    before: bytes | None = None,
) -> list[Path]:
    """Write the module `source` to `out` and its sidecar to `weights` (None: no sidecar is written). Returns the files.

    A sidecar of more than `shard_size` bytes becomes several files and an index (the Hugging Face layout). All files
    are completed before the first is renamed into place. The module comes last. So an error leaves the old files
    unchanged. A killed process leaves the old pair, the new pair, or new weights beside the old module, whose
    fingerprint then does not match. Runs that write to one folder wait for each other. Files of the other layout that
    onnxgen wrote before are removed at the end.

    `before`: the module whose edits are in `source`. If it was changed since, nothing is written. Such a module comes
    first, since the weights can be made again: a killed process leaves it beside the old weights.

    Raises:
        OnnxgenError: a path cannot be written, the disk is full, or a weight cannot be read or stored; or the module
            was changed meanwhile; or, without `force`, the sidecar exists and was not written by onnxgen.
    """
    out = followed(out)
    files = [] if weights is None else plan(followed(weights), tensors, metadata, shard_size)
    targets = [file.path for file in files]
    if out in targets:
        what = f"the module and the weights would both be written to {out}"
        raise OnnxgenError(what, help="name another --weights FILE")
    if not force:
        _refuse_foreign(targets, broken=out.is_file())
    with _clear_errors(out), replacing(path.parent for path in (out, *targets)) as replacements:
        if source is not None and before is not None:
            with replacements.file(out, before) as file:
                file.write(source.encode())
        for planned in files:
            with replacements.file(planned.path) as file:
                write_tensors(file, planned.header, planned.keys, tensors)
        if len(files) > 1:
            # Shards of different trainings fit the same index and module, so a mixture would go unnoticed.
            replacements.withdraw(files[-1].path)
        if source is not None and before is None:
            with replacements.file(out) as file:
                file.write(source.encode())
        for old in [] if weights is None else stale(followed(weights), targets):
            replacements.remove(old)
    return targets if source is None else [*targets, out]


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
    """Return the files that `write_pair` would write for a sidecar at `weights`."""
    return [file.path for file in plan(weights, tensors, {}, shard_size)]


def is_sharded(tensors: Tensors, shard_size: int) -> bool:
    """Return True if `write_pair` would write several files and an index."""
    return len(_shards(tensors, shard_size)) > 1


def same_content(
    path: Path,
    tensors: Tensors,
    metadata: Mapping[str, str] | None = None,
    shard_size: int = Options.shard_size,
    alone: bool = True,
) -> bool:
    """Return True if the sidecar at `path` is, byte for byte, what `write_pair` would write.

    Without `metadata`, the file's metadata counts as right. Returns False if the sidecar is missing or broken, or, if
    it must be `alone`, if files of another layout (one file, or other shards) lie beside it. Streams both sides.
    """
    path = followed(path)
    try:
        if metadata is None:
            metadata = header_metadata(path)
        files = plan(path, tensors, metadata, shard_size)
        left_over = alone and stale(path, [file.path for file in files])
        return not left_over and all(_same(file, tensors) for file in files)
    except (OSError, OnnxgenError):
        return False


def is_lost(path: Path) -> bool:
    """Return True if the sidecar at `path` is missing, or too broken to be read."""
    try:
        shapes_in(followed(path))
    except OnnxgenError:
        return True
    return False


# ---- reading -------------------------------------------------------------------------------------------------------


def read_tensors(path: Path) -> dict[str, Array]:
    """Return every tensor of the sidecar at `path`, memory-mapped and read-only. Types that numpy lacks have ml_dtypes.

    Raises `OnnxgenError` if a file is missing or broken.
    """
    tensors: dict[str, Array] = {}
    for file in sidecar_files(path):
        _, entries = read_header(file)
        raw = np.memmap(file, np.uint8, "r")
        for key, entry in entries.items():
            array = raw[entry.start : entry.stop].view(BY_NAME[entry.dtype].numpy())
            tensors[key] = array.reshape(entry.shape)
    return tensors


# ---- the plan ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """A file to be written: its first bytes and the tensors that follow (the index has none)."""

    path: Path
    header: bytes
    keys: tuple[str, ...]


def plan(path: Path, tensors: Tensors, metadata: Mapping[str, str], shard_size: int) -> list[Planned]:
    """Plan the files of a sidecar, in the order in which they are written: shards before their index.

    If the metadata has no `STAMP`, the shards get one from a few elements of each tensor. Else only types and shapes of
    the tensors are looked at.
    """
    metadata = {**MARK, **metadata}
    shards = _shards(tensors, shard_size)
    if len(shards) == 1:
        return [Planned(path, header_of(tensors, metadata), in_order(tensors))]
    if STAMP not in metadata:
        metadata[STAMP] = _stamp(tensors)
    files: list[Planned] = []
    weight_map: dict[str, str] = {}
    for number, keys in enumerate(shards, 1):
        target = path.with_name(f"{path.stem}-{number:05}-of-{len(shards):05}{path.suffix}")
        part = {key: tensors[key] for key in keys}
        files.append(Planned(target, header_of(part, metadata), in_order(part)))
        weight_map |= dict.fromkeys(keys, target.name)
    total = sum(stored_size(value) for value in tensors.values())
    index = {"metadata": {"total_size": total, **metadata}, "weight_map": weight_map}
    return [*files, Planned(index_path(path), json.dumps(index, indent=2, sort_keys=True).encode() + b"\n", ())]


def _stamp(tensors: Tensors) -> str:
    """Return a digest of a few elements of each tensor. It tells shards of different trainings apart.

    Their names, shapes and fingerprint are the same, so a shard copied without the others would go unnoticed. A digest
    of all elements would take as long as writing them.
    """
    digest = hashlib.sha256()
    for key, value in tensors.items():
        digest.update(sample(key, value))
    return digest.hexdigest()[:16]


def _shards(tensors: Tensors, shard_size: int) -> list[list[str]]:
    """Distribute keys over files in order. A new file begins where the next tensor would exceed the size."""
    shards: list[list[str]] = [[]]
    size = 0
    for key, value in tensors.items():
        if shards[-1] and size + stored_size(value) > shard_size:
            shards.append([])
            size = 0
        shards[-1].append(key)
        size += stored_size(value)
    return shards


def _same(file: Planned, tensors: Tensors) -> bool:
    """Return True if the file on disk has exactly this content."""
    size = len(file.header) + sum(stored_size(tensors[key]) for key in file.keys)
    with stage(WEIGHTS), open(file.path, "rb") as there:
        if os.fstat(there.fileno()).st_size != size or there.read(len(file.header)) != file.header:
            return False
        chunks = itertools.chain.from_iterable(stored_chunks(key, tensors[key]) for key in file.keys)
        return all(there.read(len(chunk)) == chunk.tobytes() for chunk in chunks)


# ---- the files beside each other -------------------------------------------------------------------------------------


def _refuse_foreign(targets: Iterable[Path], broken: bool) -> None:
    """Refuse to overwrite other programs' files. `broken`: an unreadable weights file counts as ours."""
    way_out = "move that file, name another --weights FILE, or overwrite it with --force"
    for target in targets:
        if target.is_file() and not is_ours(target, broken):
            raise OnnxgenError(f"{target} exists, and onnxgen did not write it", help=way_out)
        if target.is_file() and _is_trained(target):
            raise OnnxgenError(f"{target} has the trained weights of a run", help=way_out)


def _is_trained(path: Path) -> bool:
    """Return True if a run wrote this file: its weights can't be made again from the ONNX file."""
    try:
        return TRAINED in read_header(path)[0]
    except OnnxgenError:
        return False
