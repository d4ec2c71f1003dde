"""The words of `--augment`. Nothing here imports torch."""

from __future__ import annotations

from onnxgen.errors import OnnxgenError

RECIPES = {
    "flip": "mirrored left to right, every second",
    "vflip": "upside down, every second",
    "rotate": "turned by up to 10 degrees",
    "shift": "moved by up to a tenth of its size",
    "crop": "a cut-out of 70 to 100 % of its sides, enlarged",
    "light": "contrast and brightness changed by up to a fifth",
    "noise": "normal noise of 2 % of white on each pixel",
    "erase": "a gray rectangle of up to a third of its sides, every second",
}
FOR_GLYPHS, FOR_PHOTOS = ("rotate", "shift"), ("flip", "crop", "light")  # what "auto" means
MOVING = {"flip", "vflip", "rotate", "shift", "crop"}


def recipes(text: str, glyphs: bool) -> tuple[str, ...]:
    """Return the recipes that `--augment` names. Raises `OnnxgenError` for an unknown one."""
    if text in ("none", ""):
        return ()
    if text == "auto":
        return FOR_GLYPHS if glyphs else FOR_PHOTOS
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in RECIPES:
            raise OnnxgenError(
                f"there is no augmentation {name!r}", help=f"use none, auto, or some of {', '.join(RECIPES)}"
            )
    return names
