"""Write, find and compare the sidecar: one file, or shards and their index, replaced together with the module."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onnxgen.common.atomic import SUFFIX, replacing
from onnxgen.common.timing import WEIGHTS, stage
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.record.sidecar import (
    MARK,
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
from onnxgen.weights.dtypes import BY_NAME
from onnxgen.weights.streamed import (
    Array,
    Tensors,
    header_of,
    in_order,
    sample,
    stored_chunks,
    stored_size,
    write_tensors,
)

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
    found: dict[str, Array] = {}
    for file in sidecar_files(path):
        _, entries = read_header(file)
        raw = np.memmap(file, np.uint8, "r")
        for key, entry in entries.items():
            array = raw[entry.start : entry.stop].view(BY_NAME[entry.dtype].numpy())
            found[key] = array.reshape(entry.shape)
    return found


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
