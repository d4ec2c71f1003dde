"""Checkpoints on disk: the last and the one before it, either of them always whole."""

from __future__ import annotations

import errno
import os
import re
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO

from onnxgen.common.atomic import replacing
from onnxgen.errors import OnnxgenError, one_line

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
KEY = "onnxgen"  # of what is ours in a checkpoint


class Store(CheckpointIO):
    """Reads and writes the checkpoints of one run in `folder`; Lightning's plug-in for that.

    A checkpoint is written under another name, and only when it is on disk renamed to `last.ckpt`; the one before it is
    kept as `previous.ckpt`. Where there is no room for it the old ones stay, a line is said, and training goes on.

    Attributes:
        failed: why the latest checkpoint could not be written; None if it was.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder, self.say = folder, say
        self.failed: OSError | None = None
        self.found: Path | None = None  # the file of what `read` found
        self._read: dict[str, Any] | None = None

    @property
    def last(self) -> Path:
        return self.folder / LAST

    def read(self) -> dict[str, Any] | None:
        """The newest checkpoint that is whole; None if there is none. A damaged one is named.

        Raises:
            OnnxgenError: there are checkpoints, and all of them are damaged.
        """
        damaged = []
        if self.last.is_file():
            _need_safe_torch()
        for path in (self.last, self.folder / PREVIOUS):
            if not path.is_file():
                continue
            try:
                found = _load(path)
            except Exception as error:  # torch raises whatever the damage leads to
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
        """Remove what is there."""
        for name in (LAST, PREVIOUS):
            (self.folder / name).unlink(missing_ok=True)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write the checkpoint of Lightning's Trainer; called on rank 0 alone."""
        try:
            self._save(checkpoint)
            self.failed = None
        except OSError as error:
            self.failed = error
            self.say(f"no checkpoint was written: {reason(error)}; the one before it is kept")

    def _save(self, checkpoint: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing([self.folder]) as files:
            with files.file(self.last) as file:
                try:
                    torch.save(checkpoint, file)
                except RuntimeError as error:  # torch's writer, about a file that takes no more
                    raise error.__context__ if isinstance(error.__context__, OSError) else error from None
            if self.last.is_file():
                files.keep(self.last, self.folder / PREVIOUS)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """What `read` found, whatever the path; to the CPU."""
        found, self._read = self._read or self.read(), None
        if found is None:
            raise OnnxgenError(f"there is no checkpoint in {self.folder}")
        return found

    def remove_checkpoint(self, path: Any) -> None:
        """Nothing: there are two, and they are replaced."""


def ours(found: dict[str, Any]) -> dict[str, Any]:
    """What onnxgen puts into a checkpoint. Raises `OnnxgenError` where another program wrote it."""
    state = found.get(KEY)
    if not isinstance(state, dict) or not isinstance(state.get("identity"), dict):
        what = f"the checkpoint was not written by onnxgen: it has no {KEY!r}"
        raise OnnxgenError(what, help="start a new run without --resume")
    return state


def peek(folder: Path) -> dict[str, Any]:
    """What is ours in the last checkpoint, without reading its tensors; nothing if it can't be read."""
    with suppress(Exception):  # torch raises whatever the damage leads to
        _need_safe_torch()
        found: dict[str, Any] = torch.load(folder / LAST, map_location="cpu", weights_only=True, mmap=True)
        return ours(found)
    return {}


def reason(error: OSError) -> str:
    """What the system said, in one line."""
    text = os.strerror(error.errno) if error.errno else one_line(error)
    where = f": {error.filename}" if error.filename else ""
    return f"{text}{where}" + (" (make room)" if error.errno == errno.ENOSPC else "")


def _need_safe_torch() -> None:
    """torch.load runs what a file says before 2.6, weights_only or not (CVE-2025-32434)."""
    if tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) < (2, 6):
        what = f"torch {torch.__version__} may run code that a checkpoint contains"
        raise OnnxgenError(what, help="install torch 2.6 or newer, or start a new run without --resume")


def _load(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:  # torch's format; torch itself compares no checksums
        if (bad := archive.testzip()) is not None:
            raise ValueError(f"wrong checksum of {bad}")
    found: Any = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(found, dict):
        raise ValueError("the file is not a checkpoint")
    return found
