"""The folder of a run: what lies in it by which one tells that a run was there. Imports no torch."""

from __future__ import annotations

from pathlib import Path

LAST, BEST = "last.safetensors", "best.safetensors"
CHECKPOINTS = "checkpoints"


def holds_a_run(out: Path) -> bool:
    """Whether a run has left weights or checkpoints in a folder."""
    return any(path.exists() for path in (out / BEST, out / LAST, *(out / CHECKPOINTS).glob("*")))
