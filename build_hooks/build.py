"""Build the models that `[tool.onnxgen]` lists: replace module and sidecar together if they are not fresh.

If everything is fresh, as in most builds, the generator is not imported.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from onnxgen.common.cache import Cache
from onnxgen.errors import EditedError, OnnxgenError

from .freshness import Content, content_of, is_adopted, lacks_weights, outputs, read, recorded, stands
from .settings import Entry, Progress, Project

__all__ = ["BuildError", "Built", "build", "build_project", "check_entry", "outputs"]


@dataclass(frozen=True)
class Built:
    """The result of building one entry.

    Attributes:
        status: "fresh" (nothing to do), "written", "merged" (written with the edits that were made by hand), "kept"
            (edited by hand, or adopted) or "stale" (only checked).
        files: the existing files of module and sidecar, with every shard and the index.
        key: the digest of what the module is made of (see `freshness`).
        seconds: the time that it took.
        entry: the entry; its `output` is the module's place in the project itself.
        note: a note for the user; mostly empty.
    """

    def need_in_place(self) -> None:
        """Check that the module is in the project itself, for an editable install. Raises `OnnxgenError`."""
        if self.files[0] != self.entry.output:
            what = f"{self.entry.at('output')}: {self.note}"
            raise OnnxgenError(what, help="an editable install imports it in place; install without -e")

    status: str
    files: tuple[Path, ...]
    key: str
    seconds: float
    entry: Entry
    note: str = ""


class BuildError(OnnxgenError):
    """Some entries of a project could not be built.

    Attributes:
        built: the other entries.
        exit_code: 3 if the only problems are modules that were edited by hand and are stale, else 2.
    """

    def __init__(self, errors: list[OnnxgenError], built: list[Built]) -> None:
        super().__init__(*(problem for error in errors for problem in error.problems))
        self.built = tuple(built)
        edited = all(isinstance(error, EditedError) for error in errors)
        self.exit_code = (EditedError if edited else OnnxgenError).exit_code


def build_project(
    project: Project,
    to: Path | None = None,
    check: bool = False,
    *,
    base: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> list[Built]:
    """Build every entry of a project. With `check` only report their state. See `build` for the other arguments.

    Raises:
        BuildError: some could not be built; all others were.
    """
    cache, built, errors = Cache(), [], []
    for entry in project.entries:
        try:
            if check:
                built.append(check_entry(entry, cache=cache))
            else:
                built.append(build(entry, to=to, base=base, force=force, progress=progress, cache=cache))
        except OnnxgenError as error:
            errors.append(error)
    if errors:
        raise BuildError(errors, built)
    return built


def build(
    entry: Entry,
    *,
    to: Path | None = None,
    base: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    cache: Cache | None = None,
) -> Built:
    """Update module and sidecar of an entry to match its source.

    Args:
        entry: of `read_project` or `entries_from`.
        to: write into this folder, and leave the project's own files unchanged. If they are fresh, or edited by hand,
            they are copied there. None: write in place.
        base: with `to`, the folder of the project that `to` corresponds to: with `src`, `src/pkg/mnist.py` becomes
            `pkg/mnist.py` in `to`. Default: the project's root.
        force: overwrite a module that was edited by hand (not one that is adopted).
        progress: called with each stage of a generation as it begins.
        cache: the cache of digests; default: the user's.

    Raises:
        OnnxgenError: the source is bad or a file can't be written; nothing was changed.
        EditedError: the module was edited by hand and its source changed too.
    """
    begun, cache = time.perf_counter(), cache or Cache()
    content = _content(entry, cache)
    if to is None and (not force or is_adopted(entry)) and (status := stands(entry, content, cache)):
        return _built(status, entry, content, begun)
    from .elsewhere import build_elsewhere, build_folder, moved_to

    why = ""
    if to is None and (to := build_folder(entry, cache)) is not None:
        why = f"{entry.shown(entry.output.parent)} can't be written to: the files are in {entry.shown(to)}"
    if to is None:
        from .making import build_in_place

        place = entry
        status, note = build_in_place(entry, content, cache, force, progress)
    else:
        place = moved_to(entry, to, base)
        status, note = build_elsewhere(entry, place, content, cache, force, progress)
    return _built(status, entry, content, begun, place, "; ".join(filter(None, (why, note))))


def check_entry(entry: Entry, *, cache: Cache | None = None) -> Built:
    """Return "fresh" or "kept" if `build` would leave the entry's files unchanged, else "stale". Writes nothing.

    Raises:
        OnnxgenError: the source can't be read.
        EditedError: the module was edited by hand and its source changed too.
    """
    begun, cache = time.perf_counter(), cache or Cache()
    content = _content(entry, cache)
    status = stands(entry, content, cache) or ("stale" if not read(entry.output).strip() else "")
    if not status:
        from .making import look

        status = look(entry, content, cache)
    return _built(status, entry, content, begun)


def _content(entry: Entry, cache: Cache) -> Content:
    """Return what the module is made of. For an adopted, complete module, parts that cannot be read are left out."""
    try:
        return content_of(entry, cache)
    except OnnxgenError:
        if not is_adopted(entry) or lacks_weights(entry):
            raise
        return Content("", "", "", ())


def _built(
    status: str, entry: Entry, content: Content, begun: float, place: Entry | None = None, note: str = ""
) -> Built:
    place = place or entry
    files = tuple(file for file in outputs(place) if file.exists())
    # the source may have changed after it was examined
    key = recorded(place.output) if status in ("written", "merged") else ""
    return Built(status, files, key or content.key, time.perf_counter() - begun, entry, note)
