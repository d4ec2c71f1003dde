"""The files of an entry's plugins: for its key, for an sdist, and for watching. No plugin is run or imported here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from onnxgen.common.cache import Cache, digest
from onnxgen.errors import OnnxgenError
from onnxgen.graph.domains import imports_foreign
from onnxgen.plugins.finding import files_of, is_path, place_of

from .settings import Entry


def plugin_digests(entry: Entry, cache: Cache) -> list[list[object]]:
    """Return each plugin of an entry with the digests of its files, and those of installed packages if they may be
    used.

    Raises:
        OnnxgenError: a plugin is missing, can't be read, or contains the module that is to be written.
    """
    named = [_digests(entry, name, cache) for name in entry.options.plugins]
    if not imports_foreign(entry.source):
        return named
    from onnxgen.plugins.installed import found

    return [*named, *(["installed", e.name, *_digests(entry, e.module, cache)] for e in found())]


def _digests(entry: Entry, name: str, cache: Cache) -> list[object]:
    place = _place(entry, name)
    if place is None:
        return [name]
    files = files_of(place)
    if entry.output in files:
        held = entry.shown(entry.output)
        what = f"{entry.at('plugins')}: {_shown(entry, name)} holds {held}, which is generated with it"
        raise OnnxgenError(what, help="name only the file with the operators")
    try:
        found = [[file.relative_to(place.parent).as_posix(), digest(file, cache)] for file in files]
    except OSError as error:
        what = f"{entry.at('plugins')}: {_shown(entry, name)} can't be read: {error.strerror}"
        raise OnnxgenError(what) from None
    return [place.name if is_path(name) else name, found]


def own_files(entry: Entry) -> Iterator[Path]:
    """Yield the files of plugins that are named by path. Others are installed packages."""
    for name in entry.options.plugins:
        if is_path(name):
            yield from files_of(_place(entry, name) or Path(name))


def watched(entry: Entry) -> Iterator[Path]:
    """Yield the paths of such files, including missing ones, which may come back."""
    for name in entry.options.plugins:
        if is_path(name):
            yield Path(name)
            yield from files_of(Path(name)) if Path(name).exists() else ()


def _place(entry: Entry, name: str) -> Path | None:
    try:
        return place_of(name)
    except OnnxgenError as error:
        (problem,) = error.problems
        what = problem.what.removeprefix(f"--plugin {name}: ")
        raise OnnxgenError(f"{entry.at('plugins')}: {_shown(entry, name)}: {what}", help=problem.help) from None


def _shown(entry: Entry, name: str) -> str:
    return entry.shown(Path(name)) if is_path(name) else name
