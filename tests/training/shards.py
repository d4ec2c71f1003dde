"""Tar shards, written as Python's own tarfile does."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def png(image: np.ndarray) -> bytes:
    """Return uint8 [H, W] or [H, W, 3] as a file."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def shard(path: Path, samples: Iterable[dict[str, bytes]], first: int = 0) -> Path:
    """Write samples, with their files by ending; their names count from `first`."""
    path.parent.mkdir(exist_ok=True, parents=True)
    with tarfile.open(path, "w") as tar:
        for number, sample in enumerate(samples, first):
            for ending, content in sample.items():
                member = tarfile.TarInfo(f"s/{number:04}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path
