"""What onnxgen notes in a checkpoint, read without Lightning."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from onnxgen.errors import OnnxgenError
from onnxgen.runtime.checkpoint import need_safe_torch
from onnxgen.training.runs.folder import CHECKPOINT_FILES

LAST = CHECKPOINT_FILES[0]
KEY = "onnxgen"  # the key of onnxgen's part in a checkpoint


def own_part(found: dict[str, Any]) -> dict[str, Any]:
    """Return onnxgen's part of a checkpoint. Raise `OnnxgenError` if another program wrote it."""
    state = found.get(KEY)
    if not isinstance(state, dict) or not isinstance(state.get("identity"), dict):
        what = f"the checkpoint was not written by onnxgen: it has no {KEY!r}"
        raise OnnxgenError(what, help="start a new run without --resume")
    return state


def peek(folder: Path) -> dict[str, Any]:
    """Return onnxgen's part of the last checkpoint, without reading its tensors; {} if it can't be read."""
    with suppress(Exception):  # for a damaged file torch raises any exception
        need_safe_torch()
        last = folder / LAST
        if last.is_dir():
            from onnxgen.training.sharded.folder import REST  # it loads torch's distributed checkpoints

            last = last / REST
        found: dict[str, Any] = torch.load(last, map_location="cpu", weights_only=True, mmap=True)
        return own_part(found)
    return {}
