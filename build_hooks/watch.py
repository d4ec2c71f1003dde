"""Rebuild whenever a file that a project's models are made of is saved.

The files themselves are compared. A wake-up from `watchfiles` (or half a second without one) only triggers a look. So
changes during a build are not lost, and changes are seen even without notifications, as on some network file systems.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from onnxgen.common.paths import installing
from onnxgen.errors import OnnxgenError

from .build import BuildError, Built, build_project
from .freshness import source_files, watched
from .settings import Entry, Project

QUIET_SECONDS = 0.3  # seconds without a change before a build starts: exporters write for seconds
PATIENCE_SECONDS = 2.0  # further seconds before the error of a file that may be incomplete is reported
TICK_MILLISECONDS = 500  # milliseconds between two checks without a wake-up
# suffixes of new files that count: a glob may match them, or a template may override onnxgen's
WATCHED_SUFFIXES = (".onnx", ".jinja")

Stamps = Mapping[Path, object]


@dataclass(frozen=True)
class Round:
    """The result of one check of a project.

    Attributes:
        project: its settings; the last good ones if the current ones can't be read.
        built: the models that could be built.
        error: the problems of the settings or of the other models.
        watched: the files that are watched.
    """

    project: Project
    built: tuple[Built, ...]
    error: OnnxgenError | None
    watched: tuple[Path, ...]


def rounds(root: Path, read: Callable[[Path], Project], *, force: bool = False) -> Iterator[Round]:
    """Build now and again after each save, forever. Yields after each build.

    A build starts when the files have not changed for `QUIET_SECONDS`. Its error is reported when they stay unchanged
    for `PATIENCE_SECONDS` more, since a file may be written slowly. A model that can't be built keeps its last good
    module. While the settings can't be read, the last good ones are used.

    Args:
        root: the project's folder.
        read: reads its settings.
        force: the first build overwrites modules that were edited by hand.

    Raises:
        OnnxgenError: at the start: `watchfiles` is missing, or the settings can't be read.
    """
    watchfiles, project = _watchfiles(), read(root)
    before, wrong, first = _stamps(project), None, True
    while True:
        built, failed = _build(project, force and first)
        wrong = wrong or failed
        unfinished = wrong is not None and not first and _changed(watchfiles, before, PATIENCE_SECONDS)
        files = tuple(path for path in before if not path.is_dir())
        yield Round(project, built, None if unfinished else wrong, files)
        if not unfinished:
            _changed(watchfiles, before, None)
        _settle(before)
        before, first = {project.file: _stamp(project.file)}, False
        project, wrong = _read_again(root, read, project)
        before = {**_stamps(project), **before}


def _watchfiles() -> ModuleType:
    try:
        import watchfiles
    except ImportError as error:
        what = f"--watch needs watchfiles ({error})"
        raise OnnxgenError(what, help=installing("watch")) from None
    return watchfiles


def _read_again(root: Path, read: Callable[[Path], Project], project: Project) -> tuple[Project, OnnxgenError | None]:
    try:
        return read(root), None
    except OnnxgenError as error:
        return project, error


def _build(project: Project, force: bool) -> tuple[tuple[Built, ...], OnnxgenError | None]:
    try:
        return tuple(build_project(project, force=force)), None
    except BuildError as error:
        return error.built, error


# ---- what is watched -------------------------------------------------------------------------------------------------


def _stamps(project: Project) -> dict[Path, object]:
    """Return a stamp of each file that the models are made of, and of each folder in which files may be added."""
    paths = {project.file: None}
    for entry in project.entries:
        paths |= dict.fromkeys(_files(entry))
    return {path: _stamp(path) for path in paths}


def _files(entry: Entry) -> Iterator[Path]:
    yield entry.source.parent
    try:
        yield from source_files(entry)
    except OnnxgenError:  # data files are known only from a complete file
        yield entry.source
    if entry.options.templates is not None:
        yield entry.options.templates
        yield from entry.options.templates.rglob("*")
    yield from watched(entry)


def _stamp(path: Path) -> object:
    """Return a value that changes with the path: size and times of a file, relevant names of a folder."""
    try:
        if path.is_dir():
            return sorted(name for name in os.listdir(path) if name.endswith(WATCHED_SUFFIXES))
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _changed(watchfiles: ModuleType, before: Stamps, limit: float | None) -> bool:
    """Wait until a stamp changes. Returns False if none does within `limit` seconds."""
    end = None if limit is None else time.monotonic() + limit
    for _ in _wake_ups(watchfiles, before):
        if {path: _stamp(path) for path in before} != before:
            return True
        if end is not None and time.monotonic() > end:
            break
    return False


def _wake_ups(watchfiles: ModuleType, paths: Iterable[Path]) -> Iterator[object]:
    """Yield when something changes in the folders of these paths, and from time to time without a change."""
    ticks = {"debounce": TICK_MILLISECONDS, "rust_timeout": TICK_MILLISECONDS, "yield_on_timeout": True}
    while True:
        folders = {folder for path in paths for folder in (path, path.parent) if folder.is_dir()}
        try:
            yield from watchfiles.watch(*folders, watch_filter=None, recursive=False, **ticks)
        except FileNotFoundError:  # one of the files was just removed
            time.sleep(TICK_MILLISECONDS / 1000)
            yield None


def _settle(before: Stamps) -> None:
    """Wait until no stamp changes any more."""
    seen = None
    while seen != (seen := {path: _stamp(path) for path in before}):
        time.sleep(QUIET_SECONDS)
