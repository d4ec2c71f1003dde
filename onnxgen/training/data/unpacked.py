"""The folder that an archive was unpacked into, and the data in it. Nothing here imports torch."""

from __future__ import annotations

from pathlib import Path

from onnxgen.training.data.boxes.there import is_boxes
from onnxgen.training.data.layout import SOUNDS, SUFFIXES, files_below, folders, nested, part_called

_BESIDE = ("", ".db", ".ini", ".md", ".pdf")  # what lies beside data and says nothing of it: README.md, Thumbs.db


def unpacked(path: Path) -> Path:
    """Return the folder inside that is meant by one that has nothing else; `path` if that is not certain.

    It has the folders of at least two classes, or labels of boxes. What is hidden does not count, as `__MACOSX`.
    """
    if not path.is_dir() or (inner := nested(path, (*SUFFIXES, *SOUNDS))) == path:
        return path
    way = [path, *(above for above in inner.parents if above != path and above.is_relative_to(path))]
    if part_called(inner.relative_to(path).parts[0]) or any(map(_says_something, way)):
        return path
    classes = [one for one in folders(inner) if any(files_below(one, *SUFFIXES, *SOUNDS))]
    return inner if classes[1:] or is_boxes(inner) else path


def _says_something(folder: Path) -> bool:
    files = (file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    return any(file.suffix.lower() not in _BESIDE for file in files)
