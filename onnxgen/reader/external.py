"""Check external tensor data: it must be a plain file in the model's own folder, and long enough.

A model may come from anywhere, and its tensors name files. A location outside of the folder (an absolute path, `..`, a
symbolic link, a hard link to somewhere else) would let the model's author copy any file into the output. So it is
refused here, before anything is opened. `onnx_ir` memory-maps the data later, and checks containment again.
Source: https://onnx.ai/onnx/repo-docs/ExternalData.html
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import onnx

from onnxgen.common.names import printable


class ExternalData:
    """Checks the external tensors of the model in `folder`. Each file is examined once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, int | str] = {}  # by location: the file's size in bytes, or what is wrong with it

    def problem(self, tensor: onnx.TensorProto, nbytes: int) -> str | None:
        """Describe what is wrong with the data of `tensor`, which must be `nbytes` long. Returns None if nothing is."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if any(isinstance(text, bytes) for text in entries.values()):
            return "the external data is described in text that is not valid UTF-8"
        location = entries.get("location", "")
        found = self._size(location)
        if isinstance(found, str):
            return found
        numbers: dict[str, int] = {}
        for key, default in (("offset", 0), ("length", nbytes)):
            text = entries.get(key, str(default))
            if not re.fullmatch(r"[0-9]{1,18}", text):
                return f"the external data has the {key} {printable(text)}, which is not a size"
            numbers[key] = int(text)
        if numbers["length"] != nbytes:
            return f"the external data has {numbers['length']} bytes, but its dtype and dims need {nbytes}"
        if numbers["offset"] + nbytes > found:
            end = numbers["offset"] + nbytes
            return f"the external data ends at byte {end} of {printable(location)}, which has only {found}"
        return None

    def file_problem(self, location: str) -> str | None:
        """Describe what is wrong with a data file, given the `location` of a tensor. Returns None if nothing is."""
        found = self._size(location)
        return found if isinstance(found, str) else None

    def _size(self, location: str) -> int | str:
        if location not in self._files:
            self._files[location] = self._look(location)
        return self._files[location]

    def _look(self, location: str) -> int | str:
        """Return the size of the data file in bytes, or the reason why it is refused."""
        shown = printable(location, 200)
        if not location or "\0" in location:
            return "the external data names no file"
        parts = re.split(r"[/\\]", location) if os.sep == "\\" else location.split("/")
        # Windows paths are refused on every system, so that a model means the same everywhere.
        if location[0] in "/\\" or re.match(r"[A-Za-z]:", location):
            return f"the external data is at an absolute path ({shown})"
        if ".." in re.split(r"[/\\]", location):
            return f"the external data leaves the model folder by .. ({shown})"
        try:
            return self._look_inside([p for p in parts if p not in ("", ".")], shown)
        except (FileNotFoundError, NotADirectoryError):
            return f"the external data file {shown} is missing; put it beside the .onnx file"
        except (OSError, ValueError) as error:
            return f"the external data file {shown} cannot be read: {printable(str(getattr(error, 'strerror', error)))}"

    def _look_inside(self, parts: list[str], shown: str) -> int | str:
        if not parts:
            return "the external data names no file"
        real = self._folder.resolve()
        folder = self._folder
        for part in parts[:-1]:
            folder = folder / part
            if folder.is_symlink() and not folder.resolve().is_relative_to(real):
                return f"the external data leaves the model folder by a symbolic link ({shown})"
        file = folder / parts[-1]
        facts = file.lstat()
        if stat.S_ISLNK(facts.st_mode):
            return f"the external data file {shown} is a symbolic link; copy the data there instead"
        if not stat.S_ISREG(facts.st_mode):
            return f"the external data file {shown} is not a regular file"
        if facts.st_nlink > 1:
            return f"the external data file {shown} is a hard link to another file; copy the data there instead"
        if not os.access(file, os.R_OK):
            return f"the external data file {shown} cannot be read"
        return facts.st_size
