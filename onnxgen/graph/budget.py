"""Limit on the bytes that a generation writes. Without it, nodes that copy tensors could make a small file huge."""

from __future__ import annotations

import os
from pathlib import Path

import onnx_ir as ir

from onnxgen.graph.annotations import BYTES_READ, DATA_FILES
from onnxgen.options import Options

WRITTEN_PER_STORED_BYTE = 4  # bytes written for each stored byte: it may become a float32
WRITTEN_PER_UNPACKED_BYTE = 16  # the same where quantised weights of two bits become float32


def note_read(model: ir.Model, path: Path) -> None:
    """Record the sizes of the file and of its data files, in bytes."""
    files = {path, *DATA_FILES.get(model)}
    BYTES_READ.set(model, sum(os.path.getsize(file) for file in files if os.path.isfile(file)))


def writable(model: ir.Model, options: Options) -> int:
    """Return how many bytes may be written."""
    times = WRITTEN_PER_STORED_BYTE if options.quantized == "keep" else WRITTEN_PER_UNPACKED_BYTE
    return times * BYTES_READ.get(model) + options.limits.written


def past(size: int, most: int, what: str) -> str | None:
    """Return a message if `size` bytes are more than `most`, else None. `what` names the thing of that size."""
    if size <= most:
        return None
    return f"{what} {size:,} bytes; the size of the file allows {most:,} (raise it with --limit written={size})"
