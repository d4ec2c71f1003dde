"""The files that a run is asked for and that can be read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnxgen.errors import OnnxgenError
from onnxgen.training.data.folder import looked
from onnxgen.training.data.layout import SOUNDS, SUFFIXES
from onnxgen.training.data.sounds import look_at_sound


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
