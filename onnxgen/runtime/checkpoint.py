"""Reads checkpoints: safetensors, and files of `torch.save` and Lightning. Nothing is unpickled."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Mapping
from itertools import accumulate
from os.path import commonprefix
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.record.sidecar import index_path, read_header, sidecar_files

SUFFIXES = (".pt", ".pth", ".ckpt")
WRAPPERS = ("state_dict", "model_state_dict", "model")  # where a checkpoint may have its state dict
PREFIXES = ("module.", "model.", "_orig_mod.")  # of DistributedDataParallel, LightningModules and torch.compile
CONVERT = "where you trust it, load it and write safetensors.torch.save_file(model.state_dict(), FILE)"
Value = TypeVar("Value")


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint on the CPU, by key. Raises `OnnxgenError` if they can't be read safely."""
    if not is_pickled(path):
        files = sidecar_files(path)
        for file in files:
            read_header(file)  # its faults are one line
        return {key: tensor for file in files for key, tensor in load_file(file).items()}
    need_safe_torch()
    try:
        found = load_checked(path)
    except Exception as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))  # torch's own text says how to read it unsafely
        why = one_line(error, 120) or type(error).__name__
        why = "torch.save did not write it" if "weights_only" in why else why
        with open(path, "rb") as raw:
            if (head := raw.read(1)) not in (b"P", b"\x80", b""):  # of a zip file, a pickle, an empty file
                way = "name a file of torch.save, Lightning or safetensors"
                raise OnnxgenError(f"{path} is no checkpoint: it begins with {head!r}", help=way) from None
        what = f"{path} has more than tensors ({named[1]})" if named else f"{path} is damaged: {why}"
        raise OnnxgenError(what, help=CONVERT) from None
    outer = found if isinstance(found, Mapping) else {}
    inner = next((outer[name] for name in WRAPPERS if isinstance(outer.get(name), Mapping)), outer)
    tensors = {key: value for key, value in inner.items() if isinstance(key, str) and isinstance(value, Tensor)}
    if not tensors:
        has = ", ".join(printable(str(key)) for key in [*outer][:5]) or f"a {type(found).__name__}"
        raise OnnxgenError(f"{path} has no tensors by key, but {has}", help="save model.state_dict()")
    for key, value in tensors.items():
        if value.is_meta or value.is_quantized or value.layout is not torch.strided:
            raise OnnxgenError(f"{path}: {printable(key)} is not a dense tensor with values", help=CONVERT)
    return tensors


def is_pickled(path: Path) -> bool:
    """Return True for a file of `torch.save`, by its name or first bytes. Raises `OnnxgenError` if there is none."""
    if not path.is_file():
        if index_path(path).is_file():
            return False
        raise OnnxgenError(f"there is no file {path}")
    with open(path, "rb") as file:
        head = file.read(9)
    # A safetensors file begins with the length of its header, which may look like any signature of two bytes.
    return path.suffix in SUFFIXES or (head[:2] in (b"PK", b"\x80\x02") and head[8:] != b"{")


def load_checked(path: Path) -> Any:
    """Return what `torch.save` wrote. Of a file that is damaged, or has more than tensors, torch raises any error."""
    if zipfile.is_zipfile(path):  # torch does not compare the checksums
        with zipfile.ZipFile(path) as archive:
            if (bad := archive.testzip()) is not None:
                raise ValueError(f"wrong checksum of {bad}")
    return torch.load(path, map_location="cpu", weights_only=True)


def need_safe_torch() -> None:
    """Refuse torch before 2.6: `torch.load` may run code of a file, even with `weights_only` (CVE-2025-32434)."""
    if tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) < (2, 6):
        what = f"torch {torch.__version__} may run code that a checkpoint contains"
        raise OnnxgenError(what, help="install torch 2.6 or newer")


def without_prefix(state: Mapping[str, Value], wanted: Collection[str]) -> dict[str, Value]:
    """Remove the prefixes that wrappers put before all keys, unless a key is one of the module's (`wanted`).

    Any other prefix of all keys is removed if each rest is a key of the module.
    """
    found = dict(state)
    while found and found.keys().isdisjoint(wanted):
        prefix = next((p for p in PREFIXES if all(key.startswith(p) for key in found)), None)
        if prefix is None:
            parts = commonprefix([*found]).split(".")[:-1]
            cuts = accumulate(len(part) + 1 for part in parts)
            rests = ({key[cut:]: value for key, value in found.items()} for cut in cuts)
            return next((rest for rest in rests if rest.keys() <= {*wanted}), dict(state))
        found = {key.removeprefix(prefix): value for key, value in found.items()}
    return found
