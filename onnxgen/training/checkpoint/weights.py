"""Reads and writes weights in the form that the generated file's `from_pretrained` reads."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from onnxgen.common.atomic import replacing
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.export.state import is_constant
from onnxgen.record.module import sidecar_of
from onnxgen.record.sidecar import shapes_in
from onnxgen.training.sharded.rows import read_rows, sharded

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
        found = read_rows(own, Path(path))
    except (RuntimeError, safetensors.SafetensorError) as error:
        raise OnnxgenError(f"{path} does not fit the model: {one_line(error)}") from error
    wrong = {key for key in found - own.keys() if not is_constant(key, own)} | (own.keys() - found - tied_names(model))
    if wrong:
        raise OnnxgenError(f"{path} does not fit the model: {min(wrong)}")


def plain(state: Mapping[str, Tensor], left_out: Collection[str] = ()) -> dict[str, Tensor]:
    """Return the tensors of a `state_dict` on the CPU, contiguous, without shared memory and torch.compile's prefix."""
    found = {name.replace(COMPILED, ""): tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    places: set[int] = set()
    for name in left_out:
        found.pop(name, None)
    for name, tensor in found.items():
        storage = tensor.untyped_storage()
        if storage.nbytes() != tensor.nbytes or storage.data_ptr() in places:  # safetensors refuses shared memory
            found[name] = tensor.clone()
        places.add(storage.data_ptr())
    return found


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


def write(found: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors as safetensors, as `save_weights` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing([path.parent]) as files, files.file(path) as file:
        file.write(safetensors.torch.save(dict(found), metadata={**(metadata or {}), "format": "pt"}))


def finite(model: nn.Module) -> bool:
    """Return True if all trained parameters are finite; of a sharded model, this process's part is checked."""
    by_device: dict[torch.device, list[Tensor]] = defaultdict(list)
    for parameter in model.parameters():
        if parameter.requires_grad:
            mine: Tensor = getattr(parameter, "to_local", lambda p=parameter: p)()
            by_device[mine.device].append(mine.detach().isfinite().all())
    return all(bool(torch.stack(found).all()) for found in by_device.values())
