"""Build into a folder outside the project: `build_lib` of setuptools, or if the source tree is read-only.

The project's files stay unchanged. If they are fresh, or were edited, they are copied; else module and sidecar are
generated there.
"""

from __future__ import annotations

import errno
import filecmp
import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onnxgen.common.atomic import replacing
from onnxgen.common.cache import Cache
from onnxgen.errors import OnnxgenError

from .freshness import Content, files_of, has_weights, is_adopted, is_edited, is_fresh, outputs, stands
from .settings import Entry, Progress

READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


def moved_to(entry: Entry, to: Path, base: Path | None = None) -> Entry:
    """Return the entry with its files in `to`, at the same places as in `base` (default: the project's folder).

    Raises:
        OnnxgenError: the module or its sidecar does not lie in `base`.
    """
    base = Path(os.path.abspath(base or entry.root))
    moved: dict[str, Path] = {}
    for name, path in (("output", entry.output), ("weights", entry.options.weights)):
        if path is None:
            continue
        if not path.is_relative_to(base):
            what = f"{entry.at(name)}: {entry.shown(path)} lies outside {entry.shown(base)}, the folder that is built"
            raise OnnxgenError(what, help="put module and weights into the package")
        moved[name] = Path(os.path.abspath(to)) / path.relative_to(base)
    return replace(entry, output=moved["output"], options=replace(entry.options, weights=moved.get("weights")))


def build_elsewhere(
    entry: Entry, moved: Entry, content: Content, cache: Cache, force: bool, progress: Progress | None
) -> tuple[str, str]:
    """Build the files of `moved` as those of `entry` would be. Returns "fresh" or "written", and a note."""
    with cache.locked(entry.root):
        adopted = is_adopted(entry)
        if (adopted or not force) and stands(entry, content, cache):
            return _copy(entry, moved, content), ""
        edited = not force and is_edited(entry)
        if not force and not edited and not adopted and is_fresh(moved, content, cache):
            return "fresh", ""
        from . import making

        if adopted:
            return _copy(entry, moved, content), making.restore_weights(entry, moved, content, progress)
        if edited:
            return making.carry(entry, moved, content, cache, progress, lambda: _copy(entry, moved, content)), ""
        return making.generate(moved, content, cache, True, progress), ""


def _copy(entry: Entry, moved: Entry, content: Content) -> str:
    """Copy module and sidecar, unless the target already has them."""
    same = moved.output.is_file() and filecmp.cmp(entry.output, moved.output, shallow=False)
    if same and has_weights(moved, content):
        return "fresh"
    pairs = [(entry.output, moved.output)]
    if entry.weights is not None and moved.weights is not None:
        sidecar = [path for path in files_of(entry.weights) if path.exists()]
        pairs = [(path, moved.weights.with_name(path.name)) for path in sidecar] + pairs
    try:
        _copy_all(pairs, outputs(moved))
    except OSError as error:
        what = f"{entry.at('output')}: {moved.output} can't be written: {error.strerror or error}"
        raise OnnxgenError(what) from error
    return "written"


def _copy_all(pairs: Sequence[tuple[Path, Path]], before: Sequence[Path]) -> None:
    """Copy all files or none, in order. Files of `before` that are no longer needed are removed."""
    targets = [target for _, target in pairs]
    for target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target.parent for target in targets) as files:
        for path, target in pairs:
            with open(path, "rb") as there, files.file(target) as file:
                shutil.copyfileobj(there, file, 1 << 20)
        for stale in set(before) - set(targets):
            files.remove(stale)


def build_folder(entry: Entry, cache: Cache) -> Path | None:
    """Return where to build an entry if its folders are read-only; None if they are not, or outside the project."""
    files = [path for path in (entry.output, entry.weights) if path is not None]
    if all(_is_writable(folder) for folder in {path.parent for path in files}):
        return None
    if not all(path.is_relative_to(entry.root) for path in files):
        return None
    folder = entry.root / "build" / "onnxgen"
    if _is_writable(folder):
        return folder
    name = hashlib.sha256(os.fsencode(os.path.realpath(entry.root))).hexdigest()[:16]
    return cache.folder / "builds" / name


def _is_writable(folder: Path) -> bool:
    """Return True if files can be created in a folder, or in the nearest existing parent."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        return not folder.is_dir() or error.errno not in READ_ONLY
