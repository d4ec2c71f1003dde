"""The folder of a run: what lies in it by which one tells that a run was there. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from onnxgen.errors import OnnxgenError

LAST, BEST = "last.safetensors", "best.safetensors"
CHECKPOINTS, CONFIG = "checkpoints", "config.toml"


def holds_a_run(out: Path) -> bool:
    """Whether a run has left weights or checkpoints in a folder."""
    return any(path.exists() for path in (out / BEST, out / LAST, *(out / CHECKPOINTS).glob("*")))


def refuse_nothing(out: Path) -> None:
    """Raises `OnnxgenError` where there is no run to go on with, not even one without weights yet."""
    if not (out / CONFIG).is_file() and not holds_a_run(out):
        way_out = "name its folder with --out, or begin one without --resume"
        raise OnnxgenError(f"there is no run to go on with in {out}", help=way_out)
