"""The files in a run's folder, by which a run is recognised. This module does not import torch."""

from __future__ import annotations

from pathlib import Path

from onnxgen.errors import OnnxgenError

LAST, BEST = "last.safetensors", "best.safetensors"
CHECKPOINTS, CONFIG = "checkpoints", "config.toml"


def holds_a_run(out: Path) -> bool:
    """Return True if the folder has the weights or checkpoints of a run."""
    return any(path.exists() for path in (out / BEST, out / LAST, *(out / CHECKPOINTS).glob("*")))


def need_run(out: Path) -> None:
    """Raise `OnnxgenError` if the folder has no run to resume, not even one without weights yet."""
    if not (out / CONFIG).is_file() and not holds_a_run(out):
        way_out = "name the run's folder with --out, or start a run without --resume"
        raise OnnxgenError(f"there is no run to resume in {out}", help=way_out)
