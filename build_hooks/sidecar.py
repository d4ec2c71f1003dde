"""Read a sidecar's headers with nothing but the standard library, and check that they fit a module.

The format is described in `onnxgen/weights/streamed.py`, which writes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

INDEX = ".index.json"
MAX_HEADER_BYTES = 100_000_000  # limit of the safetensors library
BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)  # raised for broken files


def belongs(weights: Path, fingerprint: str, source: str, data: str) -> bool:
    """Return True if the sidecar at `weights` is complete, has the module's fingerprint, and was made of this content.

    Args:
        weights: the sidecar, whether it is one file or an index and its shards.
        fingerprint: the module's.
        source: SHA-256 of the ONNX file.
        data: digest of its external data, as a build recorded it; "" if there is none.
    """
    return any(_all_fit(weights, files, fingerprint, source, data) for files in (lambda path: [path], shards))


def _all_fit(weights: Path, files: Callable[[Path], list[Path]], *content: str) -> bool:
    try:
        headers = [_header(path) for path in files(weights)]
        return bool(headers) and all(_fits(header, *content) for header in headers)
    except BROKEN:
        return False


def files_of(weights: Path) -> tuple[Path, ...]:
    """Return the files of a sidecar, including its index; the single file if nothing exists yet."""
    try:
        return (weights,) if weights.exists() else (*shards(weights), weights.with_name(weights.name + INDEX))
    except BROKEN:
        return (weights,)


def shards(weights: Path) -> list[Path]:
    """Return the shards of a sidecar in the order of its index. Raises an error of `BROKEN` if it is broken."""
    index = weights.with_name(weights.name + INDEX)
    names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    if any(Path(name).name != name for name in names):
        raise ValueError("the index names files that are not its shards")
    return [weights.with_name(name) for name in names]


def _header(path: Path) -> Mapping[str, str]:
    """Return the metadata of a safetensors file. Raises `ValueError` if the file does not have the length that its
    header states.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if length > min(MAX_HEADER_BYTES, size):
            raise ValueError("the header is cut short")
        header: dict[str, Any] = json.loads(file.read(length))
    metadata: Mapping[str, str] = header.pop("__metadata__")
    if any(type(at) is not int for tensor in header.values() for at in tensor["data_offsets"]):
        raise ValueError("a tensor has no offsets")
    if size != 8 + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0):
        raise ValueError("the file is cut short")
    return metadata


def _fits(metadata: Mapping[str, str], fingerprint: str, source: str, data: str) -> bool:
    found = json.loads(metadata["signature"])["sha256"]
    return (metadata["fingerprint"], found, metadata.get("data", "")) == (fingerprint, source, data)
