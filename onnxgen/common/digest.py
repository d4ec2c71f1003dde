"""Digests of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from onnxgen.common.timing import WEIGHTS, stage


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of one file."""
    digest = hashlib.sha256()
    with stage(WEIGHTS), open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
