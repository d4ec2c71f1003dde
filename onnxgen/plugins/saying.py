"""Describe the error of a plugin in one line."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

from onnxgen.errors import typed

_HERE = str(Path(__file__).resolve().parents[1]) + os.sep


def why(error: BaseException) -> str:
    """Return an error's type and text, and the last line of code outside onnxgen that led to it."""
    places = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((_HERE, "<"))]
    where = f" ({places[-1].filename}, line {places[-1].lineno})" if places else ""
    return typed(error) + where
