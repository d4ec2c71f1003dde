"""Paths of `[tool.onnxgen]`: relative to the project, inside it, and without conflicts between models."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxgen.common.names import identifier
from onnxgen.common.values import shown
from onnxgen.plugins.finding import is_path

if TYPE_CHECKING:
    from .settings import Entry

STEM = "{stem}"
# bytes of a path and of a file name; systems allow little more, and suffixes are added to names
MAX_PATH_BYTES, MAX_NAME_BYTES = 1000, 240
_GLOB = re.compile(r"[*?\[]")


class Paths:
    """Makes paths as written in the settings absolute. Each method raises `ValueError` with what is wrong."""

    def __init__(self, root: Path, inside: bool) -> None:
        self.root, self.inside = root, inside

    def _absolute(self, text: object) -> str:
        """Return the absolute form of a path written with `/`. If `inside` is set, it must lie in the project."""
        if not isinstance(text, str) or not text:
            raise ValueError(f"must be a path, not {shown(text)}")
        if not text.isprintable():
            raise ValueError(f"{shown(text)} has a character that no path should have")
        if len(os.fsencode(text)) > MAX_PATH_BYTES or any(
            len(os.fsencode(part)) > MAX_NAME_BYTES for part in text.split("/")
        ):
            raise ValueError(f"{shown(text)} is too long for a path")
        if "\\" in text and (self.inside or os.sep == "/"):
            raise ValueError(f"{shown(text)}: paths are written with / on every system")
        found = os.path.normpath(os.path.join(self.root, text))
        if self.inside:
            if text.startswith("/") or re.match(r"[A-Za-z]:", text):
                raise ValueError(f"{shown(text)} is absolute, but must be relative to the project")
            if not Path(found).is_relative_to(self.root):
                raise ValueError(f"{shown(text)} lies outside the project ({self.root})")
        return found

    def sources(self, text: object) -> tuple[list[Path], bool]:
        """Return the ONNX files, and whether a glob found them."""
        path = self._absolute(text)
        if not _GLOB.search(path[len(str(self.root)) :]) or os.path.isfile(path):
            if not os.path.isfile(path):
                raise ValueError(f"{shown(text)} is {'a folder' if os.path.isdir(path) else 'missing'}")
            return [Path(path)], False
        import glob

        pattern = os.path.relpath(path, self.root)
        found = sorted(name for name in glob.glob(pattern, root_dir=self.root, recursive=True))
        files = [self.root / name for name in found if os.path.isfile(self.root / name)]
        if odd := [name for name in found if not name.isprintable()]:
            raise ValueError(f"{shown(odd[0])} has a character that no path should have")
        if not files:
            raise ValueError(f"no file matches {shown(text)}")
        return files, True

    def output(self, text: object, source: Path, is_glob: bool) -> Path:
        """Return the module of a source: beside it by default, in a folder if the text ends in `/`, or as named."""
        name = f"{identifier(source.stem, 'model')}.py"
        if text is None:
            return source.with_name(name)
        path = self._absolute(_filled(text, source))
        assert isinstance(text, str)
        if text.endswith("/"):
            return Path(path) / name
        if not path.endswith(".py") or Path(path).name == ".py":
            raise ValueError(f"{shown(text)} must be the name of a .py file, or of a folder with / at the end")
        if is_glob and STEM not in text:
            raise ValueError(f"{shown(text)} is one file, but source may match several: write {STEM} in it")
        return Path(path)

    def weights(self, text: object, source: Path) -> Path:
        """Return the sidecar of a source."""
        if isinstance(text, str) and text.endswith("/"):
            raise ValueError(f"{shown(text)} is a folder, but the weights need the name of a file")
        return Path(self._absolute(_filled(text, source)))

    def folder(self, text: object, source: Path) -> Path:
        """Return an existing folder."""
        path = self._absolute(text)
        if not os.path.isdir(path):
            raise ValueError(f"{shown(text)} is not a folder")
        return Path(path)

    def plugins(self, names: Sequence[str], source: Path) -> tuple[str, ...]:
        """Return plugins: paths made absolute, dotted names unchanged. They need not exist yet."""
        return tuple(self._absolute(name) if is_path(name) else name for name in names)


def _filled(text: object, source: Path) -> object:
    return text.replace(STEM, identifier(source.stem, "model")) if isinstance(text, str) else text


class _Real:
    """Resolves paths. Most files share their folders, so mainly links among the files themselves are checked."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}

    def __call__(self, path: Path) -> str:
        folder, name = os.path.split(path)
        if os.path.islink(path):
            return os.path.realpath(path)
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder)
        return os.path.join(self._folders[folder], name)


def check_places(entries: Sequence[Entry], inside: bool, wrong: Callable[[str, str], None]) -> None:
    """Report to `wrong` every file that would be written outside the project, over a source, or by two models."""
    real_path = _Real()
    sources = {real_path(entry.source): entry for entry in entries}
    taken: dict[str, tuple[Entry, str]] = {}
    for entry in entries:
        root = real_path(entry.root) if inside else ""
        for name, path in (("output", entry.output), ("weights", entry.weights)):
            if path is None:
                continue
            real = real_path(path)
            if problem := _problem(entry, path, real, sources, taken, root):
                wrong(f"{entry.key}.{name}", f"{entry.shown(path)} {problem}")
                break  # the sidecar lies beside the module and would have the same problem
            taken[real.casefold()] = (entry, name)
        templates = entry.options.templates
        if templates is not None and _is_in(real_path(entry.output), os.path.realpath(templates)):
            wrong(f"{entry.key}.templates", f"the folder {entry.shown(templates)} holds the output, too")


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))


def _problem(
    entry: Entry,
    path: Path,
    real: str,
    sources: Mapping[str, Entry],
    taken: Mapping[str, tuple[Entry, str]],
    root: str,
) -> str:
    """Describe what is wrong with a file that an entry writes; empty if nothing is. `real`: its resolved path."""
    if root and not _is_in(real, root):
        return f"lies outside the project: a link leads to {real}"
    if real in sources:
        return f"is the source of {sources[real].key}"
    if real.casefold() in taken:  # on every system: a wheel may be installed on one that ignores case
        other, what = taken[real.casefold()]
        same = "this model" if other is entry else other.key
        which = f" for {other.shown(other.source)}" if other is not entry and other.key == entry.key else ""
        case = "" if getattr(other, what).name == path.name else ", where case does not count"
        return f"is the {what} of {same}{which}, too{case}"
    return "is a folder" if os.path.isdir(path) else ""
