"""What a build does when something is to do: generate in place, or elsewhere, never half a pair.

Builds of one project wait for each other, and look again when it is their turn.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from onnxgen import pipeline
from onnxgen.atomic import locked, replacing
from onnxgen.errors import OnnxgenError, Problem
from onnxgen.generated import Build, Generated
from onnxgen.output import Output
from onnxgen.weights import write_pair

from .build import is_adopted, outputs
from .cache import Cache
from .freshness import (
    HALF,
    Content,
    content_of,
    has_weights,
    is_fresh,
    read,
    recorded,
    settle,
)
from .settings import Entry

Progress = Callable[[str], None]
Made = tuple[str, Entry, str]  # status, the entry with the files as they are, a note for a person
TRIES = 3  # a source that changes while it is read is read again


def make(entry: Entry, cache: Cache, force: bool, progress: Progress | None) -> Made:
    """Generate an entry in place; where that can't be written to, in a build folder."""
    if not _writable(entry.output.parent):
        return _fall_back(entry, cache, force, progress)
    with _project(entry, cache):
        content = content_of(entry, cache)
        if not force and (status := _stands(entry, content, cache)):
            return status, entry, ""
        entry.output.parent.mkdir(parents=True, exist_ok=True)
        return _generate(entry, content, cache, force, progress), entry, ""


def make_elsewhere(
    entry: Entry, to: Path, base: Path | None, cache: Cache, force: bool, progress: Progress | None
) -> Made:
    """Generate an entry into another folder, or copy it there if a person edited it or it is fresh."""
    moved = _moved(entry, to, base)
    with _project(entry, cache):
        content = content_of(entry, cache)
        if not force and _stands(entry, content, cache):
            return _copy(entry, moved, content), moved, ""
        text = read(entry.output)
        if not force and text.strip() and _is_edited(entry):
            return _carry(entry, moved, content, cache, progress), moved, ""
        if not force and is_fresh(moved, content, cache):
            return "fresh", moved, ""
        _make_folders(moved)
        return _generate(moved, content, cache, True, progress), moved, ""


def look(entry: Entry, content: Content, cache: Cache) -> str:
    """How a module that is not fresh stands: "kept" or "stale"; raises `EditedError` if it is stale and edited."""
    if status := _stands(entry, content, cache):
        return status
    if not _is_edited(entry):
        return "stale"
    output, generated = _in_memory(entry, content, None)
    status = output.standing(generated)
    if status == "edited":
        raise output.refusal(generated)
    if status == "kept":
        settle(entry.output, content.key, cache)
    return "stale" if status == "lost" else status


def _stands(entry: Entry, content: Content, cache: Cache) -> str:
    """ "fresh" or "kept" if nothing is to do for the files in place, by what they say of themselves; else ""."""
    if is_adopted(entry):
        return "kept"
    if is_fresh(entry, content, cache):
        return "fresh"
    unchanged = recorded(read(entry.output))[:HALF] == content.key[:HALF]
    if unchanged and has_weights(entry, content) and _is_edited(entry):
        settle(entry.output, content.key, cache)
        return "kept"
    return ""


def _is_edited(entry: Entry) -> bool:
    output = Output(entry.output, entry.options)
    text = output.text()
    return text is not None and output.is_edited(text)


def _in_memory(entry: Entry, content: Content, progress: Progress | None) -> tuple[Output, Generated]:
    build = Build(content.key, content.data)
    generated = pipeline.build(entry.source, entry.options, entry.output, progress, build)
    return Output(entry.output, entry.options), generated


def _generate(entry: Entry, content: Content, cache: Cache, force: bool, progress: Progress | None) -> str:
    """Write an entry; again if its source changed meanwhile, so that no module says that it is of another."""
    for _ in range(TRIES):
        record = Build(content.key, content.data)
        generated = pipeline.generate(
            entry.source, entry.output, entry.options, force=force, progress=progress, record=record
        )
        before, content = content, content_of(entry, cache)
        if before.key == content.key:
            if generated.report.status == "kept":
                settle(entry.output, content.key, cache)
            return generated.report.status
    what = f"{entry.at('source')}: {entry.shown(entry.source)} changes while it is read"
    raise OnnxgenError(Problem(what, help="build again when it is complete"))


# ---- elsewhere -------------------------------------------------------------------------------------------------------


def _moved(entry: Entry, to: Path, base: Path | None) -> Entry:
    """The entry with its files in `to`, where they are what they are in `base`."""
    base = Path(os.path.abspath(base or entry.root))
    moved: dict[str, Path] = {}
    for name, path in (("output", entry.output), ("weights", entry.options.weights)):
        if path is None:
            continue
        if not path.is_relative_to(base):
            what = f"{entry.at(name)}: {entry.shown(path)} lies outside {entry.shown(base)}, which is what is built"
            raise OnnxgenError(Problem(what, help="put module and weights into the package"))
        moved[name] = Path(os.path.abspath(to)) / path.relative_to(base)
    options = replace(entry.options, weights=moved.get("weights"))
    return replace(entry, output=moved["output"], options=options)


def _copy(entry: Entry, moved: Entry, content: Content) -> str:
    """Copy module and sidecar as they are, unless they are there."""
    same = moved.output.is_file() and filecmp.cmp(entry.output, moved.output, shallow=False)
    if same and has_weights(moved, content):
        return "fresh"
    pairs = [(entry.output, moved.output)]
    if entry.weights is not None and moved.weights is not None:
        sidecar = [path for path in outputs(entry)[1:] if path.exists()]
        pairs = [(path, moved.weights.with_name(path.name)) for path in sidecar] + pairs
    _make_folders(moved)
    targets = [target for _, target in pairs]
    with replacing(target.parent for target in targets) as files:
        for path, target in pairs:
            with open(path, "rb") as there, files.file(target) as file:
                shutil.copyfileobj(there, file, 1 << 20)
        for stale in outputs(moved):
            if stale not in targets:
                files.remove(stale)
    return "written"


def _carry(entry: Entry, moved: Entry, content: Content, cache: Cache, progress: Progress | None) -> str:
    """An edited module that does not say what it was made of: compare it with what would be generated."""
    output, generated = _in_memory(entry, content, progress)
    status = output.standing(generated)
    if status == "edited":
        raise output.refusal(generated)
    if status == "kept":
        settle(entry.output, content.key, cache)
        return _copy(entry, moved, content)
    _make_folders(moved)
    text = output.text()
    weights = moved.weights
    write_pair(moved.output, text, weights, generated.tensors, generated.metadata, entry.options.shard_size, True)
    return "written"


def _make_folders(entry: Entry) -> None:
    for path in (entry.output, *([entry.weights] if entry.weights else [])):
        path.parent.mkdir(parents=True, exist_ok=True)


# ---- the project -----------------------------------------------------------------------------------------------------


def _fall_back(entry: Entry, cache: Cache, force: bool, progress: Progress | None) -> Made:
    """Build into a folder beside, because the source tree can't be written to."""
    folder = entry.root / "build" / "onnxgen"
    if not _writable(folder):
        name = hashlib.sha256(os.fsencode(os.path.realpath(entry.root))).hexdigest()[:16]
        folder = cache.folder / "builds" / name
    status, moved, _ = make_elsewhere(entry, folder, None, cache, force, progress)
    note = f"{entry.shown(entry.output.parent)} can't be written to: the module is {entry.shown(moved.output)}"
    return status, moved, note


def _writable(folder: Path) -> bool:
    """Whether files can be made in a folder, or in what it would be made in."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@contextmanager
def _project(entry: Entry, cache: Cache) -> Iterator[None]:
    """Hold the project's lock; where there can be none, builds may do the same work twice."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(entry.root))).hexdigest()[:24]
    file = cache.folder / "locks" / name
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = locked(file)
        lock.__enter__()
    except OSError:
        yield
        return
    try:
        yield
    finally:
        lock.__exit__(None, None, None)
