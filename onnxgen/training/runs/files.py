"""The files that are meant by what a run is asked for, and those of them that can be read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnxgen.errors import OnnxgenError
from onnxgen.training.data.folder import SUFFIXES, looked
from onnxgen.training.data.sounds import SUFFIXES as SOUNDS
from onnxgen.training.data.sounds import look_at_sound


def paths_of(item: Path | str) -> list[Path]:
    """Return the files that are meant by a path, a folder (its images) or a pattern, in sorted order.

    Raises:
        OnnxgenError: there are none.
    """
    path = Path(item)
    if path.is_dir():
        known = (*SUFFIXES, *SOUNDS)
        found = sorted(p for p in path.rglob("*") if p.suffix.lower() in known and not p.name.startswith("."))
        if not found:
            raise OnnxgenError(
                f"the folder {path} has no images or sounds", help=f"their names end in {', '.join(known)}"
            )
        return found
    if path.exists():
        return [path]
    root = Path(path.anchor or ".")
    found = sorted(p for p in root.glob(str(path.relative_to(path.anchor))) if p.is_file()) if "*" in str(path) else []
    if not found:
        raise OnnxgenError(f"there is no file {path}", help="name image files, tables, arrays (.npz), or a folder")
    return found


def readable(paths: Sequence[Path], skipped: list[str]) -> list[Path]:
    """Return the files without those images and sounds that can't be read, for which a sentence is added to `skipped`.

    Raises:
        OnnxgenError: none is left.
    """
    images = [path for path in paths if path.suffix.lower() in SUFFIXES]
    sounds = [path for path in paths if path.suffix.lower() in SOUNDS]
    seen = looked(Path(), images) if images else {}
    seen |= looked(Path(), sounds, look_at_sound, "sounds") if sounds else {}
    bad = {path: why for path, why in seen.items() if isinstance(why, str)}
    found = [f"{path} can't be read: {why}" for path, why in bad.items()]
    if paths and not (left := [path for path in paths if path not in bad]):
        raise OnnxgenError(*found)
    skipped += found
    return left
