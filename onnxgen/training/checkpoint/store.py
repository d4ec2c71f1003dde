"""Checkpoints on disk: the last one and the one before it, each of them always complete.

A checkpoint is a file or, of a sharded run, a folder: torch.distributed.checkpoint writes the
shards, and this module puts them in place. torch reads the folder's table of contents with
`pickle`, and what is no tensor with `torch.load(weights_only=False)`. Both would run code of a
foreign checkpoint, so both are replaced here.
"""

from __future__ import annotations

import errno
import io
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load

from onnxgen.common.atomic import replacing
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.runtime.checkpoint import load_checked, need_safe_torch
from onnxgen.training.runs.folder import CHECKPOINT_FILES

LAST, PREVIOUS = CHECKPOINT_FILES


class Store(CheckpointIO):
    """Reads and writes the checkpoints of one run in `folder`, as a plug-in of Lightning.

    A checkpoint is written under another name. When it is on disk, it is renamed to `last.ckpt`, and the former one is
    kept as `previous.ckpt`. If it can't be written, the old ones stay, `say` gets a message, and training goes on.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder, self.say = folder, say
        self.found: Path | None = None  # the file that `read` returned
        self._read: dict[str, Any] | None = None

    @property
    def last(self) -> Path:
        return self.folder / LAST

    def read(self) -> dict[str, Any] | None:
        """Return the newest checkpoint that is not damaged; None if there are no checkpoints.

        Raises:
            OnnxgenError: all checkpoints are damaged.
        """
        damaged = []
        if self.last.exists():
            need_safe_torch()
        for path in (self.last, self.folder / PREVIOUS):
            if not path.exists():
                continue
            try:
                checkpoint = _load(path)
            except Exception as error:  # for a damaged file torch raises any exception
                damaged.append(f"{path} is damaged ({one_line(error, 120)})")
                continue
            if damaged:
                self.say(f"{damaged[0]}; continuing from {path.name}")
            self._read, self.found = checkpoint, path
            return checkpoint
        if damaged:
            raise OnnxgenError("; ".join(damaged), help="start a new run without --resume")
        return None

    def clear(self) -> None:
        """Remove all checkpoints."""
        for name in (LAST, PREVIOUS):
            remove(self.folder / name)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write the checkpoint of Lightning's Trainer. It is called on rank 0 only."""
        try:
            self._save(checkpoint)
        except OSError as error:
            self.say(f"no checkpoint was written: {reason(error)}; the one before it is kept")

    def _save(self, checkpoint: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing([self.folder]) as files:
            with files.file(self.last) as file:
                try:
                    torch.save(checkpoint, file)
                except RuntimeError as error:  # torch's writer hides the OSError of a full disk
                    raise error.__context__ if isinstance(error.__context__, OSError) else error from None
            if self.last.is_file():
                files.keep(self.last, self.folder / PREVIOUS)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Return the checkpoint of `read`, on the CPU. The path is ignored."""
        checkpoint, self._read = self._read or self.read(), None
        if checkpoint is None:
            raise OnnxgenError(f"there is no checkpoint in {self.folder}")
        return checkpoint

    def remove_checkpoint(self, path: Any) -> None:
        """Do nothing: `save_checkpoint` replaces the two files."""


def reason(error: OSError) -> str:
    """Return the system's message in one line."""
    text = os.strerror(error.errno) if error.errno else one_line(error)
    where = f": {error.filename}" if error.filename else ""
    return f"{text}{where}" + (" (make room)" if error.errno == errno.ENOSPC else "")


def _load(path: Path) -> dict[str, Any]:
    """Return a checkpoint; of a folder what is not sharded."""
    if path.is_dir():
        return read_rest(path)
    checkpoint = load_checked(path)
    if not isinstance(checkpoint, dict):
        raise ValueError("the file is not a checkpoint")
    return checkpoint


REST = "meta.pt"  # what is not sharded: Lightning's name
CONTENTS = ".metadata"
_TORCH = ("float64", "float32", "float16", "bfloat16", "uint8", "int8", "int16", "int32", "int64", "bool", "Size")
_ALLOWED = {
    *(("torch", name) for name in _TORCH),
    ("torch.serialization", "_get_layout"),
    *(
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            "Metadata", "TensorStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING", "ChunkStorageMetadata",
            "BytesStorageMetadata", "MetadataIndex", "StorageMeta",
        )
    ),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *(("pathlib", name) for name in ("Path", "PosixPath", "WindowsPath")),
    *(("pathlib._local", name) for name in ("Path", "PosixPath", "WindowsPath")),
}  # fmt: skip


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


class _Reader(FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = contents(Path(self.path))
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _Planner(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        torch.load(value, weights_only=True)  # raises if there is more than plain values
        value.seek(0)
        super().load_bytes(read_item, value)


def contents(folder: Path) -> Metadata:
    """Return the table of contents of a checkpoint. Raises `pickle.UnpicklingError` if it has anything else."""
    metadata = _Unpickler(io.BytesIO((folder / CONTENTS).read_bytes())).load()
    if not isinstance(metadata, Metadata):
        raise pickle.UnpicklingError("it is no table of contents")
    return metadata


def read_rest(folder: Path) -> dict[str, Any]:
    """Return what is not sharded of a checkpoint, once all shards are known to be there, in their length.

    Raises:
        ValueError: a shard is missing or cut short, or the rest is no dict.
        Exception: a file is damaged; what torch and pickle raise then.
    """
    ends: dict[str, int] = {}
    for stored in contents(folder).storage_data.values():
        if Path(stored.relative_path).name != stored.relative_path:
            raise ValueError("its shards are elsewhere")
        ends[stored.relative_path] = max(ends.get(stored.relative_path, 0), stored.offset + stored.length)
    for name, end in sorted(ends.items()):
        if not (folder / name).is_file() or (folder / name).stat().st_size < end:
            raise ValueError(f"its shard {name} is {'cut short' if (folder / name).is_file() else 'missing'}")
    rest = torch.load(folder / REST, map_location="cpu", weights_only=True)
    if not isinstance(rest, dict):
        raise ValueError(f"{REST} is not the rest of a checkpoint")
    return rest


def check(folder: Path, rank: int, processes: int) -> None:
    """Compare the checksums of the part of the shards that falls to a process: torch does not.

    Raises:
        Exception: a shard is damaged; the rest is as in `read_rest`.
    """
    read_rest(folder)
    stored = sorted(contents(folder).storage_data.values(), key=lambda one: (one.relative_path, one.offset))
    for one in stored[rank::processes]:
        with open(folder / one.relative_path, "rb") as file:
            file.seek(one.offset)
            part = io.BytesIO(file.read(one.length))
        with zipfile.ZipFile(part) as archive:
            if (bad := archive.testzip()) is not None:
                raise ValueError(f"wrong checksum of {bad} in {one.relative_path}")


def read_shards(state: dict[str, Any], folder: Path) -> None:
    """Fill the tensors and values of a state from a checkpoint: each process reads what it holds."""
    load(state, storage_reader=_Reader(folder), planner=_Planner())


def begin(folder: Path, rest: Mapping[str, Any]) -> None:
    """Make an empty folder for a checkpoint, with what is not sharded. Raises `OSError`."""
    remove(folder)
    folder.mkdir(parents=True)
    with open(folder / REST, "wb") as file:
        torch.save(dict(rest), file)
        file.flush()
        os.fsync(file.fileno())


def put_in_place(folder: Path, last: Path, previous: Path) -> None:
    """Make a finished checkpoint the last one, and the last one the one before it. At any moment one is whole."""
    old = previous.with_name(f".{previous.name}.old")
    remove(old)
    if last.exists():
        if previous.exists():
            os.replace(previous, old)
        os.replace(last, previous)
    os.replace(folder, last)
    with suppress(OSError):  # only POSIX has a way to, and only some file systems need it
        handle = os.open(last.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    remove(old)


def remove(path: Path) -> None:
    """Remove a checkpoint, a file or a folder, if it is there. Raises `OSError`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)  # another process may do the same
    else:
        path.unlink(missing_ok=True)
