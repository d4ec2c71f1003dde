"""The files that a run is asked for and that can be read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnxgen.errors import OnnxgenError
from onnxgen.training.data.idx import is_idx
from onnxgen.training.data.layout import SOUNDS, SUFFIXES
from onnxgen.training.data.looking import looked
from onnxgen.training.data.opening import FILES
from onnxgen.training.data.sounds import look_at_sound

KNOWN = (*SUFFIXES, *SOUNDS, *FILES)  # what has one of these endings is data, and an error if it does not fit


def readable(paths: Sequence[Path], skipped: list[str]) -> list[Path]:
    """Return the files without those images and sounds that can't be read, for which a sentence is added to `skipped`.

    So are files beside images and sounds that are no data at all, as a pattern may find them.

    Raises:
        OnnxgenError: none is left.
    """
    images = [path for path in paths if path.suffix.lower() in SUFFIXES]
    sounds = [path for path in paths if path.suffix.lower() in SOUNDS]
    others = [path for path in paths if path.suffix.lower() not in KNOWN and not is_idx(path)]
    seen = looked(Path(), images) if images else {}
    seen |= looked(Path(), sounds, look_at_sound, "sounds") if sounds else {}
    bad: dict[Path, str] = dict.fromkeys(others if seen else (), "it is neither an image nor a sound")
    bad |= {path: why for path, why in seen.items() if isinstance(why, str)}
    found = [f"{path} can't be read: {why}" for path, why in bad.items()]
    if paths and not (left := [path for path in paths if path not in bad]):
        raise OnnxgenError(*found)
    skipped += found
    return left
