"""What a plugin that fails says, in one line."""

from __future__ import annotations

import os
import traceback
from pathlib import Path


def why(error: BaseException) -> str:
    """An error of a plugin: its kind, what it says, and the last line outside onnxgen that led to it."""
    said = "".join(c if c.isprintable() else " " for c in f"{type(error).__name__}: {error}")
    places = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((_HERE, "<"))]
    where = f" ({places[-1].filename}, line {places[-1].lineno})" if places else ""
    return " ".join(said.split())[:300] + where


_HERE = str(Path(__file__).resolve().parents[1]) + os.sep
