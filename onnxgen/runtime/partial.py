"""Loads weights that fit a module in part, or have other keys, by the module's own `from_pretrained`."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from onnxgen.errors import OnnxgenError, typed
from onnxgen.record.sidecar import INDEX, read_header, sidecar_files
from onnxgen.runtime.checkpoint import is_pickled, read_weights, without_prefix
from onnxgen.runtime.skip_init import SkipInit

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
        model, said = _called(module, shown, file)
    return model, f"{said} (of another shape: {other})"


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
    found = without_prefix(state, wanted)
    if found.keys().isdisjoint(wanted):
        raise OnnxgenError(f"{source} has no tensor of the module: it has {_shown(found)}")
    other = [key for key, value in found.items() if drop and value.shape != wanted.get(key, value.shape)]
    described = _shown(f"{key} {list(found[key].shape)} instead of {list(wanted[key])}" for key in other)
    if not is_pickled(source) and found.keys() == state.keys() and not other:
        yield source, ""
        return
    with tempfile.TemporaryDirectory(prefix="onnxgen-", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "weights.safetensors"
        kept = {key: value for key, value in found.items() if key not in other}
        try:  # safetensors refuses tensors that share memory
            save_file({key: value.clone(memory_format=torch.contiguous_format) for key, value in kept.items()}, file)
        except (OSError, SafetensorError) as error:
            raise OnnxgenError(f"{source} can't be written as safetensors to {folder}: {typed(error, 120)}") from None
        yield file, described


def _called(module: ModuleType, shown: Path, *weights: Path) -> tuple[nn.Module, str]:
    """Call `from_pretrained(strict=False)`. Returns the model, and what it said, shortened."""
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model: nn.Module = module.Model.from_pretrained(*weights, strict=False)
    except Exception as error:
        raise OnnxgenError(f"{shown}: what fits can't be loaded: {typed(error)}") from error
    parts = [part for each in said for part in str(each.message).split("; ") if not part.endswith(": ")]
    return model, "; ".join(_shown([part]) for part in parts)


def _shown(keys: Iterable[str]) -> str:
    return shorten(", ".join(keys), MAX_SHOWN, placeholder=" ...")
