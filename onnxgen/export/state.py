"""What is exported: the module, its ONNX file, and its trained tensors.

The ONNX file is the one that the module was generated from. The tensors are those of a safetensors
file, or of a module in memory.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError
from onnxgen.record.sidecar import metadata_of, sidecar_files, sidecar_of
from onnxgen.record.signature import Signature, recorded
from onnxgen.record.way_back import TENSORS, WayBack, source_of
from onnxgen.runtime.checkpoint import is_pickled, read_weights, without_prefix
from onnxgen.verify.convert import to_numpy
from onnxgen.weights.sidecar import Array, read_tensors


@dataclass(frozen=True)
class Origin:
    """A generated module and the ONNX file that it was generated from.

    Attributes:
        module: the module's path.
        space: the names in the module.
        onnx: the ONNX file, which has not changed since.
        signature: inputs and outputs.
        record: how the file's tensors are made of the state dict.
    """

    module: Path
    space: Mapping[str, Any]
    onnx: Path
    signature: Signature
    record: WayBack

    @property
    def files(self) -> set[Path]:
        """Return the module and its weights files."""
        sidecar = sidecar_of(self.space)
        return {self.module, *([] if sidecar is None else sidecar_files(sidecar))}


def origin_of(module: Path, space: Mapping[str, Any], onnx: Path | None) -> Origin:
    """Find the ONNX file that a module was generated from (`onnx`: named by the user).

    Raises:
        OnnxgenError: the module's weights do not name the file, or it can't be found, or has changed.
    """
    metadata = metadata_of(space)
    signature = recorded(metadata)
    record = WayBack.from_metadata(metadata)
    path = source_of(module, signature if TENSORS in metadata else None, onnx)
    assert signature is not None
    return Origin(module, space, path, signature, record)


MAX_KEYS_SHOWN = 3  # keys in a message


def read_state(path: Path) -> dict[str, Array]:
    """Read the tensors of a checkpoint (see `read_weights`). Those of safetensors are memory-mapped.

    Raises:
        OnnxgenError: there is no such file, it is something else, or torch can't read it safely.
    """
    if is_pickled(path):
        return {key: to_numpy(tensor) for key, tensor in read_weights(path).items()}
    return read_tensors(path)


def state_of(model: nn.Module) -> dict[str, Array]:
    """Return the tensors of a module's state dict. Tensors on the CPU are not copied."""
    return {key: to_numpy(value) for key, value in model.state_dict().items() if isinstance(value, torch.Tensor)}


def bare(model: nn.Module) -> nn.Module:
    """Return the network itself, on the CPU, without the wrappers of `torch.compile` and DistributedDataParallel."""
    while isinstance(inner := getattr(model, "_orig_mod", None) or _parallel(model), nn.Module):
        model = inner
    devices = {t.device.type for t in (*model.parameters(), *model.buffers())}
    return model if devices <= {"cpu"} else copy.deepcopy(model).cpu()


def _parallel(model: nn.Module) -> object:
    kinds = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    return model.module if isinstance(model, kinds) else None


def bare_model(origin: Origin, device: str = "meta") -> nn.Module:
    """Return the generated `Model` without its weights. Raises `OnnxgenError` if the file has no such class."""
    kind = origin.space.get("Model")
    if not isinstance(kind, type):
        what = f"{origin.module} has no class Model"
        raise OnnxgenError(what, help="name a module that onnxgen generated")
    with torch.random.fork_rng(devices=[]), torch.device(device):
        model: nn.Module = kind()
    return model


def build(origin: Origin, state: Mapping[str, torch.Tensor], shown: Path) -> nn.Module:
    """Return the generated `Model` with these tensors themselves: mapped ones stay mapped. Tied ones may be given once.

    If only the head has another number of classes, the model's head is replaced.

    Raises:
        OnnxgenError: the tensors do not fit the model.
    """
    from onnxgen.surgery.replacing import resize_head

    model = bare_model(origin)
    wanted = model.state_dict()
    state = without_prefix(state, wanted)
    tensors = {key: array for key, array in state.items() if key in wanted or not is_constant(key, wanted)}
    for names in tied(model):
        known = next((tensors[name] for name in names if name in tensors), None)
        tensors |= {} if known is None else {name: tensors.get(name, known) for name in names}
    shapes = {key: tuple(array.shape) for key, array in tensors.items()}
    if misfits({k: tuple(v.shape) for k, v in wanted.items()}, shapes):
        # Constants of the sidecar are never on the meta device, so that not every model runs there.
        resize_head(model := bare_model(origin, "cpu"), shapes)
        wanted = model.state_dict()
    refuse_misfits({k: tuple(v.shape) for k, v in wanted.items()}, shapes, shown)
    model.load_state_dict({key: tensors[key] for key in wanted}, assign=True)
    if callable(tie := getattr(model, "tie_weights", None)):
        tie()
    return model.eval()


def is_constant(key: str, wanted: Mapping[str, Any]) -> bool:
    """Return True if the key is a constant of the sidecar. It has a prefix that no member of the module has."""
    first = key.partition(".")[0]
    return first.lstrip("_") == "constants" and not any(k == first or k.startswith(first + ".") for k in wanted)


def tied(model: nn.Module) -> list[list[str]]:
    """Return the names of each parameter and buffer that has several names."""
    names: dict[int, list[str]] = {}
    members = model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    for name, tensor in chain(*members):
        names.setdefault(id(tensor), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def refuse_misfits(
    wanted: Mapping[str, tuple[int, ...]], current: Mapping[str, tuple[int, ...]], shown: Path | str
) -> None:
    """Raise `OnnxgenError` unless both have the same keys and shapes. The message names some that differ."""
    text = misfits(wanted, current)
    if text:
        what = f"{shown} does not fit the module: {text}"
        raise OnnxgenError(what, help="give the weights of this module, under its own keys")


def misfits(wanted: Mapping[str, tuple[int, ...]], current: Mapping[str, tuple[int, ...]]) -> str:
    """Describe the keys and shapes that differ. Returns "" if none do."""
    both = [key for key in wanted if key in current and tuple(wanted[key]) != tuple(current[key])]
    parts = [
        _listed("lacks", [key for key in wanted if key not in current]),
        _listed("has besides", [key for key in current if key not in wanted]),
        _listed("has other shapes:", [f"{key} {list(current[key])} instead of {list(wanted[key])}" for key in both]),
    ]
    return "; it ".join(part for part in parts if part).removeprefix("; ")


def _listed(verb: str, keys: list[str]) -> str:
    more = f" and {len(keys) - MAX_KEYS_SHOWN} more" if len(keys) > MAX_KEYS_SHOWN else ""
    return f"{verb} {', '.join(printable(key) for key in keys[:MAX_KEYS_SHOWN])}{more}" if keys else ""
