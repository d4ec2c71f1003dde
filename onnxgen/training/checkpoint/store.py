"""Checkpoints: the last one and the one before it, each of them always complete.

A checkpoint is a file or, of a sharded run, a folder (`onnxgen.training.sharded.folder`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO

from onnxgen.common.atomic import replacing
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.runtime.checkpoint import load_checked, need_safe_torch
from onnxgen.training.runs.folder import CHECKPOINT_FILES
from onnxgen.training.sharded.folder import read_rest, remove

LAST, PREVIOUS = CHECKPOINT_FILES


class Store(CheckpointIO):
    """Reads and writes the checkpoints of one run in `folder`, as a plug-in of Lightning.

    A checkpoint is written under another name. When it is on disk, it is renamed to `last.ckpt`, and the former one is
    kept as `previous.ckpt`. If it can't be written, the old ones stay, `say` gets a message, and training goes on.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder, self.say = folder, say
        self.found: Path | None = None  # the file that `read` returned
        self._read: dict[str, Any] | None = None

    @property
    def last(self) -> Path:
        return self.folder / LAST

    def read(self) -> dict[str, Any] | None:
        """Return the newest checkpoint that is not damaged; None if there are no checkpoints.

        Raises:
            OnnxgenError: all checkpoints are damaged.
        """
        damaged = []
        if self.last.exists():
            need_safe_torch()
        for path in (self.last, self.folder / PREVIOUS):
            if not path.exists():
                continue
            try:
                found = _load(path)
            except Exception as error:  # for a damaged file torch raises any exception
                damaged.append(f"{path} is damaged ({one_line(error, 120)})")
                continue
            if damaged:
                self.say(f"{damaged[0]}; continuing from {path.name}")
            self._read, self.found = found, path
            return found
        if damaged:
            raise OnnxgenError("; ".join(damaged), help="start a new run without --resume")
        return None

    def clear(self) -> None:
        """Remove all checkpoints."""
        for name in (LAST, PREVIOUS):
            remove(self.folder / name)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write the checkpoint of Lightning's Trainer. It is called on rank 0 only."""
        try:
            self._save(checkpoint)
        except OSError as error:
            self.say(f"no checkpoint was written: {reason(error)}; the one before it is kept")

    def _save(self, checkpoint: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing([self.folder]) as files:
            with files.file(self.last) as file:
                try:
                    torch.save(checkpoint, file)
                except RuntimeError as error:  # torch's writer hides the OSError of a full disk
                    raise error.__context__ if isinstance(error.__context__, OSError) else error from None
            if self.last.is_file():
                files.keep(self.last, self.folder / PREVIOUS)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Return the checkpoint of `read`, on the CPU. The path is ignored."""
        found, self._read = self._read or self.read(), None
        if found is None:
            raise OnnxgenError(f"there is no checkpoint in {self.folder}")
        return found

    def remove_checkpoint(self, path: Any) -> None:
        """Do nothing: `save_checkpoint` replaces the two files."""


def reason(error: OSError) -> str:
    """Return the system's message in one line."""
    text = os.strerror(error.errno) if error.errno else one_line(error)
    where = f": {error.filename}" if error.filename else ""
    return f"{text}{where}" + (" (make room)" if error.errno == errno.ENOSPC else "")


def _load(path: Path) -> dict[str, Any]:
    """Return a checkpoint; of a folder what is not sharded."""
    if path.is_dir():
        return read_rest(path)
    found = load_checked(path)
    if not isinstance(found, dict):
        raise ValueError("the file is not a checkpoint")
    return found
