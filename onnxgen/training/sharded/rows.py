"""Weights of a sharded model, in safetensors files: each process writes and reads its own rows of each tensor.

The rows of a tensor lie one after the other in a file. So a process writes its share where it belongs, and nothing is
sent. torch's `HuggingFaceStorageWriter` writes each
share into a file of its own, which a second pass puts together, and it has no place for the metadata that a generated
module looks for.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn

from onnxgen.common.atomic import replacing
from onnxgen.record.sidecar import files_there, sidecar_files
from onnxgen.verify.convert import to_numpy
from onnxgen.weights.sidecar import STAMP, plan
from onnxgen.weights.streamed import stored_size

Made = TypeVar("Made")


@dataclass(frozen=True)
class _Shaped:
    """Type and shape of a tensor whose values are elsewhere."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, tensor: Tensor, dtype: torch.dtype | None) -> _Shaped:
        return cls(tuple(tensor.shape), to_numpy(torch.empty(0, dtype=dtype or tensor.dtype)).dtype)


@dataclass(frozen=True)
class _File:
    """A file that was begun: where the tensors that belong into it start."""

    path: Path
    starts: Mapping[str, int]


def sharded(tensor: Tensor) -> bool:
    """Return True if other processes hold parts of the tensor."""
    return hasattr(tensor, "to_local")


def block_of(tensor: Tensor) -> tuple[tuple[int, ...], Tensor]:
    """Return the part of a tensor that this process holds, and where it begins on each axis."""
    if not sharded(tensor):
        return (0,) * tensor.ndim, tensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    held: Any = tensor
    _, offsets = compute_local_shape_and_global_offset(held.shape, held.device_mesh, held.placements)
    return tuple(offsets), held.to_local()


def agreed(action: Callable[[], Made]) -> Made:
    """Return what the action returns in this process. If it raises `OSError` in any process, all raise that."""
    made, failed = None, None
    try:
        made = action()
    except OSError as error:
        failed = (error.errno, error.strerror or str(error), error.filename)
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, failed)
    if (first := next(filter(None, found), None)) is not None:
        raise OSError(*first)
    return made  # type: ignore[return-value]


# ---- writing ---------------------------------------------------------------------------------------------------------


def write_rows(
    state: Mapping[str, Tensor],
    path: Path,
    metadata: Mapping[str, str],
    shard_size: int = 0,
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> None:
    """Write tensors of which each process holds rows. All processes call this with the same names.

    The files are replaced together once all processes have written theirs, as in `write_pair`.

    Args:
        state: the first process writes what is not sharded.
        shard_size: in bytes; larger weights become several files and `path`.index.json, as Hugging Face names them. 0:
            always one file; else at least two.
        dtypes: of the tensors in the files, by name. Default: their own. Each process casts its rows, tensor by tensor.

    Raises:
        OSError: any process could not write. All processes raise it, and the former files are kept.
    """
    first, dtypes = dist.get_rank() == 0, dtypes or {}
    shaped = {key: _Shaped.of(value, dtypes.get(key)) for key, value in state.items()}
    with ExitStack() as stack:
        begun = [agreed(lambda: _begun(stack, shaped, path, metadata, shard_size) if first else [])]
        dist.broadcast_object_list(begun)
        agreed(lambda: _written(state, dtypes, begun[0], first))
        agreed(stack.close)  # the first process renames all files


def _begun(
    stack: ExitStack, shaped: Mapping[str, Any], path: Path, metadata: Mapping[str, str], shard_size: int
) -> list[_File]:
    """Make all files in their size, with their headers. The end of the `stack` puts them in place."""
    total = sum(map(stored_size, shaped.values()))
    most = min(shard_size, total - 1) if shard_size else total
    planned = plan(path, shaped, {STAMP: secrets.token_hex(8), **metadata}, most)
    path.parent.mkdir(parents=True, exist_ok=True)
    files, found = stack.enter_context(replacing([path.parent])), []
    for made in planned:
        starts, end = {}, len(made.header)
        for key in made.keys:
            starts[key], end = end, end + stored_size(shaped[key])
        with files.file(made.path) as file:
            file.write(made.header)
            file.truncate(end)
        found.append(_File(Path(file.name), starts))
    if len(planned) > 1:
        files.withdraw(planned[-1].path)
    for stale in {*files_there(path)} - {made.path for made in planned}:
        files.remove(stale)
    return found


def _written(
    state: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype], files: Sequence[_File], first: bool
) -> None:
    """Write the rows of this process into files that the first one began."""
    for made in files:
        with open(made.path, "r+b") as file:
            for key, start in made.starts.items():
                if not first and not sharded(state[key]):
                    continue
                offsets, mine = block_of(state[key])
                rows = np.ascontiguousarray(to_numpy(mine.detach().to(dtypes.get(key, mine.dtype))))
                before = offsets[0] * math.prod(rows.shape[1:]) * rows.itemsize if offsets else 0
                file.seek(start + before)
                file.write(rows.reshape(-1).view(np.uint8).data)


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_rows(state: Mapping[str, Tensor], path: Path) -> set[str]:
    """Read weights into tensors of which this process holds rows: from the files, these rows alone.

    Returns:
        the names in the files.

    Raises:
        OnnxgenError: the index is damaged.
        safetensors.SafetensorError: a file is missing or damaged.
        RuntimeError: a tensor has another shape.
    """
    found: set[str] = set()
    for file in sidecar_files(path):
        with safe_open(file, "pt") as opened:
            found |= {*opened.keys()}
            for key in state.keys() & {*opened.keys()}:
                offsets, mine = block_of(state[key])
                there = opened.get_slice(key)
                if tuple(there.get_shape()) != tuple(state[key].shape):
                    raise RuntimeError(f"{key} has the shape {there.get_shape()} instead of {list(state[key].shape)}")
                if mine.numel():
                    part = tuple(slice(a, a + n) for a, n in zip(offsets, mine.shape, strict=True))
                    mine.detach().copy_(there[part] if mine.ndim else opened.get_tensor(key))
    return found


def map_rows(model: nn.Module, path: Path) -> None:
    """Give a model the tensors of files that have all of them. They are mapped: what is not read needs no memory.

    Raises as `read_rows`.
    """
    own: dict[str, Tensor] = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    for file in sidecar_files(path):
        with safe_open(file, "pt") as opened:
            for key in own.keys() & {*opened.keys()}:
                own[key].data = opened.get_tensor(key)
