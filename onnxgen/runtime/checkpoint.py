"""Reads checkpoints, and loads weights that fit a module in part.

Checkpoints are safetensors, and files of `torch.save` and Lightning. Nothing is unpickled. Weights
with other keys, or that fit in part, are loaded by the module's own `from_pretrained`. `SkipInit`
skips the initialisation of embeddings that are built on the meta device and then get weights.
"""

from __future__ import annotations

import re
import tempfile
import warnings
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from os.path import commonprefix
from pathlib import Path
from textwrap import shorten
from types import ModuleType
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, one_line, typed
from onnxgen.record.sidecar import INDEX, index_path, read_header, sidecar_files

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
        content = load_checked(path)
    except Exception as error:
        raise _unreadable(path, error) from None
    return _tensors(content, path)


def _tensors(content: Any, path: Path) -> dict[str, Tensor]:
    """Return the tensors of what a checkpoint holds: a state dict, or one in a wrapper."""
    outer = content if isinstance(content, Mapping) else {}
    inner = next((outer[name] for name in WRAPPERS if isinstance(outer.get(name), Mapping)), outer)
    tensors = {key: value for key, value in inner.items() if isinstance(key, str) and isinstance(value, Tensor)}
    if not tensors:
        has = ", ".join(printable(str(key)) for key in [*outer][:5]) or f"a {type(content).__name__}"
        raise OnnxgenError(f"{path} has no tensors by key, but {has}", help="save model.state_dict()")
    for key, value in tensors.items():
        if value.is_meta or value.is_quantized or value.layout is not torch.strided:
            raise OnnxgenError(f"{path}: {printable(key)} is not a dense tensor with values", help=CONVERT)
    return tensors


def _unreadable(path: Path, error: Exception) -> OnnxgenError:
    """Return the error for a file that torch can't read safely."""
    named = re.search(r"GLOBAL ([\w.]+)", str(error))  # torch's own text says how to read it unsafely
    why = one_line(error, 120) or type(error).__name__
    why = "torch.save did not write it" if "weights_only" in why else why
    with open(path, "rb") as raw:
        if (head := raw.read(1)) not in (b"P", b"\x80", b""):  # of a zip file, a pickle, an empty file
            way = "name a file of torch.save, Lightning or safetensors"
            return OnnxgenError(f"{path} is no checkpoint: it begins with {head!r}", help=way)
    what = f"{path} has more than tensors ({named[1]})" if named else f"{path} is damaged: {why}"
    return OnnxgenError(what, help=CONVERT)


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
    stripped = dict(state)
    while stripped and stripped.keys().isdisjoint(wanted):
        prefix = next((p for p in PREFIXES if all(key.startswith(p) for key in stripped)), None)
        if prefix is None:
            parts = commonprefix([*stripped]).split(".")[:-1]
            cuts = accumulate(len(part) + 1 for part in parts)
            rests = ({key[cut:]: value for key, value in stripped.items()} for cut in cuts)
            return next((rest for rest in rests if rest.keys() <= {*wanted}), dict(state))
        stripped = {key.removeprefix(prefix): value for key, value in stripped.items()}
    return stripped


MAX_SHOWN = 240  # characters of a list of keys


def load_partly(
    module: ModuleType, shown: Path, weights: Path | None = None, *, ignore_mismatched_sizes: bool
) -> tuple[nn.Module, str]:
    """Return the model of a generated file with what fits of its own weights, or of a checkpoint (`weights`).

    The note names what is newly initialised and what is not used; it is "" if all fits.

    Raises:
        OnnxgenError: nothing fits, a tensor has another shape or dtype, or the weights can't be read.
    """
    own: Any = getattr(module, "WEIGHTS", None)  # text if the module embeds them
    source = weights or (own.with_name(own.name.removesuffix(INDEX)) if isinstance(own, Path) else None)
    if source is None:
        return _called(module, shown)
    with under_own_keys(source, module, drop=True) as (file, other):
        if not other:
            return _called(module, shown, *([file] if weights else []))
        if not ignore_mismatched_sizes:
            way_out = "leave these out with --partial, or ignore_mismatched_sizes=True in Python"
            raise OnnxgenError(f"{source} does not fit {shown}: {other}", help=way_out)
        if not weights and any(module.FINGERPRINT not in read_header(f)[0].values() for f in sidecar_files(source)):
            raise OnnxgenError(f"{source} does not belong to {shown}", help="generate both again")
        model, note = _called(module, shown, file)
    return model, f"{note} (of another shape: {other})"


@contextmanager
def under_own_keys(source: Path, module: ModuleType, *, drop: bool = False) -> Iterator[tuple[Path, str]]:
    """Yield a safetensors file with the tensors of a checkpoint under the keys of the module's model.

    That is the checkpoint itself if it is one, else a temporary file. With `drop`, tensors of another shape are left
    out, and the second result names them.

    Raises:
        OnnxgenError: the checkpoint can't be read, or has no key of the model.
    """
    with torch.device("meta"), SkipInit():
        wanted = {key: value.shape for key, value in module.Model().state_dict().items()}
    state = read_weights(source)
    tensors = without_prefix(state, wanted)
    if tensors.keys().isdisjoint(wanted):
        raise OnnxgenError(f"{source} has no tensor of the module: it has {_shown(tensors)}")
    other = [key for key, value in tensors.items() if drop and value.shape != wanted.get(key, value.shape)]
    described = _shown(f"{key} {list(tensors[key].shape)} instead of {list(wanted[key])}" for key in other)
    if not is_pickled(source) and tensors.keys() == state.keys() and not other:
        yield source, ""
        return
    with tempfile.TemporaryDirectory(prefix="onnxgen-", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "weights.safetensors"
        kept = {key: value for key, value in tensors.items() if key not in other}
        try:  # safetensors refuses tensors that share memory
            save_file({key: value.clone(memory_format=torch.contiguous_format) for key, value in kept.items()}, file)
        except (OSError, SafetensorError) as error:
            raise OnnxgenError(f"{source} can't be written as safetensors to {folder}: {typed(error, 120)}") from None
        yield file, described


def _called(module: ModuleType, shown: Path, *weights: Path) -> tuple[nn.Module, str]:
    """Call `from_pretrained(strict=False)`. Returns the model, and what it said, shortened."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model: nn.Module = module.Model.from_pretrained(*weights, strict=False)
    except Exception as error:
        raise OnnxgenError(f"{shown}: what fits can't be loaded: {typed(error)}") from error
    parts = [part for each in caught for part in str(each.message).split("; ") if not part.endswith(": ")]
    return model, "; ".join(_shown([part]) for part in parts)


def _shown(keys: Iterable[str]) -> str:
    return shorten(", ".join(keys), MAX_SHOWN, placeholder=" ...")


class SkipInit(TorchFunctionMode):
    """Leaves tensors on the meta device as they are: for them, `normal_` imports torch's compiler, which takes 1 s."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, but for `normal_` on the meta device."""
        if func is nn.init.normal_ and kwargs["tensor"].is_meta:
            return kwargs["tensor"]
        return func(*args, **(kwargs or {}))
