"""Reads and writes weights in the form that the generated file's `from_pretrained` reads.

Of a sharded model, each process writes and reads its own rows of each tensor. The rows of a tensor
lie one after the other in a file. So a process writes its share where it belongs, and nothing is
sent. torch's `HuggingFaceStorageWriter` writes each share into a file of its own, which a second
pass puts together, and it has no place for the metadata that a generated module looks for.
"""

from __future__ import annotations

import math
import secrets
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors
import safetensors.torch
import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn

from onnxgen.common.atomic import replacing
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.export.state import is_constant
from onnxgen.record.sidecar import files_there, shapes_in, sidecar_files, sidecar_of
from onnxgen.verify.convert import to_numpy
from onnxgen.weights.sidecar import STAMP, plan, stored_size

COMPILED = "_orig_mod."  # torch.compile's prefix for the names in a module that it wraps


def save_weights(
    model: nn.Module,
    path: Path | str,
    constants: Mapping[str, Tensor] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a model's weights as safetensors, with the keys of the generated file's sidecar.

    `Model.from_pretrained(path)` reads them. The file is replaced atomically, and is on disk when this returns.
    `constants` are further tensors of the file.

    Raises:
        OSError: it can't be written; the former file is kept.
    """
    write({**plain(model.state_dict(), tied_names(model)), **(constants or {})}, Path(path), metadata)


def load_weights(model: nn.Module, path: Path | str) -> None:
    """Load the weights that `save_weights` or `write_rows` wrote into a model of the same class.

    Of a sharded model, each process reads its own rows.

    Raises:
        OnnxgenError: the file has other names or shapes.
    """
    try:
        own = {key.replace(COMPILED, ""): value for key, value in model.state_dict().items()}
        names = read_rows(own, Path(path))
    except (RuntimeError, safetensors.SafetensorError) as error:
        raise OnnxgenError(f"{path} does not fit the model: {one_line(error)}") from error
    wrong = {key for key in names - own.keys() if not is_constant(key, own)} | (own.keys() - names - tied_names(model))
    if wrong:
        raise OnnxgenError(f"{path} does not fit the model: {min(wrong)}")


def plain(state: Mapping[str, Tensor], left_out: Collection[str] = ()) -> dict[str, Tensor]:
    """Return the tensors of a `state_dict` on the CPU, contiguous, without shared memory and torch.compile's prefix."""
    tensors = {name.replace(COMPILED, ""): tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    places: set[int] = set()
    for name in left_out:
        tensors.pop(name, None)
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        if storage.nbytes() != tensor.nbytes or storage.data_ptr() in places:  # safetensors refuses shared memory
            tensors[name] = tensor.clone()
        places.add(storage.data_ptr())
    return tensors


def tied_names(model: nn.Module) -> frozenset[str]:
    """Return the names in a `state_dict` that the sidecar lacks, because `from_pretrained` ties them to others."""
    sharing: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for name, tensor in model.state_dict(keep_vars=True).items():
        place = id(tensor) if sharded(tensor) else tensor.data_ptr()
        sharing[place, tensor.shape, tensor.stride()].append(name.replace(COMPILED, ""))
    groups = [names for names in sharing.values() if len(names) > 1]
    stored = _stored(model) if groups else frozenset()
    return frozenset(name for names in groups if stored & {*names} for name in names if name not in stored)


def _stored(model: nn.Module) -> frozenset[str]:
    """Return the keys of a generated model's sidecar; for any other model none."""
    kinds = type(getattr(model, "_orig_mod", model)).__mro__  # FSDP2 derives a class
    spaces = [vars(sys.modules[kind.__module__]) for kind in kinds if kind.__module__ in sys.modules]
    try:
        sidecar = next(filter(None, map(sidecar_of, spaces)), None)
        return frozenset(() if sidecar is None else shapes_in(sidecar))
    except OnnxgenError:
        return frozenset()


def write(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors as safetensors, as `save_weights` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing([path.parent]) as files, files.file(path) as file:
        file.write(safetensors.torch.save(dict(tensors), metadata={**(metadata or {}), "format": "pt"}))


def finite(model: nn.Module) -> bool:
    """Return True if all trained parameters are finite; of a sharded model, this process's part is checked."""
    by_device: dict[torch.device, list[Tensor]] = defaultdict(list)
    for parameter in model.parameters():
        if parameter.requires_grad:
            mine: Tensor = getattr(parameter, "to_local", lambda p=parameter: p)()
            by_device[mine.device].append(mine.detach().isfinite().all())
    return all(bool(torch.stack(checks).all()) for checks in by_device.values())


Result = TypeVar("Result")


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


def agreed(action: Callable[[], Result]) -> Result:
    """Return what the action returns in this process. If it raises `OSError` in any process, all raise that."""
    result, failed = None, None
    try:
        result = action()
    except OSError as error:
        failed = (error.errno, error.strerror or str(error), error.filename)
    failures: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(failures, failed)
    if (first := next(filter(None, failures), None)) is not None:
        raise OSError(*first)
    return result  # type: ignore[return-value]


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
    files, begun = stack.enter_context(replacing([path.parent])), []
    for part in planned:
        starts, end = {}, len(part.header)
        for key in part.keys:
            starts[key], end = end, end + stored_size(shaped[key])
        with files.file(part.path) as file:
            file.write(part.header)
            file.truncate(end)
        begun.append(_File(Path(file.name), starts))
    if len(planned) > 1:
        files.withdraw(planned[-1].path)
    for stale in {*files_there(path)} - {part.path for part in planned}:
        files.remove(stale)
    return begun


def _written(
    state: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype], files: Sequence[_File], first: bool
) -> None:
    """Write the rows of this process into files that the first one began."""
    for target in files:
        with open(target.path, "r+b") as file:
            for key, start in target.starts.items():
                if not first and not sharded(state[key]):
                    continue
                offsets, mine = block_of(state[key])
                rows = np.ascontiguousarray(to_numpy(mine.detach().to(dtypes.get(key, mine.dtype))))
                before = offsets[0] * math.prod(rows.shape[1:]) * rows.itemsize if offsets else 0
                file.seek(start + before)
                file.write(rows.reshape(-1).view(np.uint8).data)


def read_rows(state: Mapping[str, Tensor], path: Path) -> set[str]:
    """Read weights into tensors of which this process holds rows: from the files, these rows alone.

    Returns:
        the names in the files.

    Raises:
        OnnxgenError: the index is damaged.
        safetensors.SafetensorError: a file is missing or damaged.
        RuntimeError: a tensor has another shape.
    """
    names: set[str] = set()
    for file in sidecar_files(path):
        with safe_open(file, "pt") as opened:
            names |= {*opened.keys()}
            for key in state.keys() & {*opened.keys()}:
                offsets, mine = block_of(state[key])
                there = opened.get_slice(key)
                if tuple(there.get_shape()) != tuple(state[key].shape):
                    raise RuntimeError(f"{key} has the shape {there.get_shape()} instead of {list(state[key].shape)}")
                if mine.numel():
                    part = tuple(slice(a, a + n) for a, n in zip(offsets, mine.shape, strict=True))
                    mine.detach().copy_(there[part] if mine.ndim else opened.get_tensor(key))
    return names


def map_rows(model: nn.Module, path: Path) -> None:
    """Give a model the tensors of files that have all of them. They are mapped: what is not read needs no memory.

    Raises as `read_rows`.
    """
    own: dict[str, Tensor] = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    for file in sidecar_files(path):
        with safe_open(file, "pt") as opened:
            for key in own.keys() & {*opened.keys()}:
                own[key].data = opened.get_tensor(key)
