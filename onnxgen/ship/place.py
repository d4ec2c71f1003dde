"""Where a shipped file goes: what is never overwritten, and how all that was written is put in place at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from onnxgen.common.atomic import is_same_file, own_folder, replacing
from onnxgen.errors import OnnxgenError
from onnxgen.ship.target import Target

WORKSHOP_PREFIX = ".onnxgen-ship-"  # of the folder beside the file in which it is written and run
BUNDLE = "Manifest.json"  # a folder without it is not one that Core ML's tools wrote


def refuse_place(path: Path, target: Target, kept: Iterable[Path], force: bool) -> None:
    """Refuse a path that a file of the target can't have, or whose content must stay.

    Args:
        kept: files that stay, also with `force`: those that the run was made of.

    Raises:
        OnnxgenError: see above.
    """
    if path.suffix != target.suffix:
        what = f"cannot write {path}: the name of a file of --to {target.name} ends in {target.suffix}"
        name = path.with_suffix(target.suffix).name if path.name else f"FILE{target.suffix}"
        raise OnnxgenError(what, help=f"-o {path.with_name(name) if path.name else path / name}")
    if path.is_dir() and not (target.folder and (path / BUNDLE).is_file()):
        raise OnnxgenError(f"cannot write {path}: it is a folder", help="name a file with -o")
    if any(is_same_file(path, other) for other in kept):
        what = f"cannot write {path}: the run was made of this file"
        raise OnnxgenError(what, help="name another file with -o")
    if os.path.lexists(path) and not force:
        raise OnnxgenError(f"{path} exists", help="--force overwrites it, -o names another file")


@contextmanager
def workshop(folder: Path) -> Iterator[Path]:
    """Make a folder for trials in another one, which is made too. Both are gone after an error, if they are new.

    Raises:
        OnnxgenError: it can't be made.
    """
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            workplace = own_folder(folder, WORKSHOP_PREFIX)
            trial = workplace.__enter__() / "files"  # that folder is locked, and who writes locks the one it writes in
            trial.mkdir()
        except OSError as error:
            what = f"cannot write in {folder}: {error.strerror or error}"
            raise OnnxgenError(what, help="name another place with -o") from error
        try:
            yield trial
        finally:
            workplace.__exit__(None, None, None)
    except BaseException:
        for place in new:
            with suppress(OSError):  # it has files of others by now
                place.rmdir()
        raise


def put_in_place(trial: Path, first: Path, own: Sequence[Path], force: bool) -> list[Path]:
    """Move all that is in a folder beside `first`: all of it or, after an error, nothing. Returns the paths.

    Args:
        first: the first path that is returned.
        own: what may be overwritten without `force`.

    Raises:
        OnnxgenError: without `force`, one of them exists; or the system refuses.
    """
    pairs = [(part, first.with_name(part.name)) for part in sorted(trial.iterdir())]
    pairs.sort(key=lambda pair: pair[1] != first)
    there = next((place for _, place in pairs if os.path.lexists(place) and place not in own), None)
    if there is not None and not force:
        raise OnnxgenError(f"{there} exists", help="--force overwrites it, -o names another file")
    moved: list[tuple[Path, Path | None]] = []  # folders, and where the old ones are
    try:
        with replacing([first.absolute().parent]) as files:
            for part, place in pairs:
                if part.is_dir():
                    _move_folder(part, place, moved)
                else:
                    files.take(part, place)
    except BaseException as error:
        _move_back(moved, trial)
        if isinstance(error, OSError):
            raise OnnxgenError(f"cannot write {first}: {error.strerror or error}") from error
        raise
    return [place for _, place in pairs]


def _move_folder(part: Path, place: Path, moved: list[tuple[Path, Path | None]]) -> None:
    """Move a folder to its place, and the one that is there aside; note both in `moved`."""
    old = part.with_name(f"{part.name}.old") if place.exists() else None
    if old is not None:
        os.replace(place, old)
    moved.append((place, old))
    os.replace(part, place)


def _move_back(moved: Sequence[tuple[Path, Path | None]], trial: Path) -> None:
    for place, old in moved:
        with suppress(OSError):
            os.replace(place, trial / f"{place.name}.new")
        if old is not None:
            os.replace(old, place)
