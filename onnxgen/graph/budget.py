"""Limit on the bytes that a generation writes: nodes that copy tensors can make a small file ask for any number."""

from __future__ import annotations

import os
from pathlib import Path

import onnx_ir as ir

from onnxgen.graph.annotations import BYTES_READ, DATA_FILES
from onnxgen.options import Options

TIMES = 4  # a byte that is stored becomes a float
UNPACKED_TIMES = 16  # and two bits do, where quantised weights are made floats


def note_read(model: ir.Model, path: Path) -> None:
    """Note how large the file and its data files are."""
    files = {path, *DATA_FILES.get(model)}
    BYTES_READ.set(model, sum(os.path.getsize(file) for file in files if os.path.isfile(file)))


def writable(model: ir.Model, options: Options) -> int:
    """Bytes that may be written."""
    times = TIMES if options.quantized == "keep" else UNPACKED_TIMES
    return times * BYTES_READ.get(model) + options.limits.written


def past(size: int, most: int, what: str) -> str | None:
    """The message if `size` bytes are more than may be written, else None; `what` names what has them."""
    if size <= most:
        return None
    return f"{what} {size:,} bytes; the size of the file allows {most:,} (raise it with --limit written={size})"
