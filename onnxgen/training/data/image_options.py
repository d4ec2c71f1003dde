"""The texts of the settings for images: `--normalize`, `--size` and `--augment`.

Nothing here imports torch, since the options are checked before it is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from onnxgen.errors import OnnxgenError

Scale = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel, of values 0 to 1


def parse_scale(text: str, channels: int) -> Scale:
    """Parse mean and deviation: "0.1307,0.3081", or for each channel "0.485/0.456/0.406,0.229/0.224/0.225".

    Raises:
        OnnxgenError: the text has another form, the wrong number of channels, or a deviation that is not positive.
    """
    way = "--normalize takes auto, none, or mean,std such as 0.1307,0.3081 (a channel each: 0.5/0.5/0.5,0.2/0.2/0.2)"
    try:
        mean, std = (tuple(float(n) for n in part.split("/")) for part in text.split(","))
    except ValueError:
        raise OnnxgenError(f"normalize {text!r} is not a pair of numbers", help=way) from None
    if not all(len(p) in (1, channels) for p in (mean, std)):
        raise OnnxgenError(f"normalize {text!r} does not fit {channels} channels", help=way)
    if not all(s > 0 for s in std) or not all(map(math.isfinite, mean + std)):
        raise OnnxgenError(f"normalize {text!r}: a standard deviation must be positive", help=way)
    return (mean * channels)[:channels], (std * channels)[:channels]


def scale_text(scale: Scale) -> str:
    """Write a scale as `parse_scale` reads it."""
    return ",".join("/".join(repr(n).removesuffix(".0") for n in part) for part in scale)


def by_input(text: str, inputs: Sequence[str]) -> dict[str, str]:
    """Parse `Settings.normalize` or `.size` to a text for each input: "left=0.1,0.3;right=none", or one text for all.

    Raises `OnnxgenError` if it names an unknown input.
    """
    if "=" not in text:
        return dict.fromkeys(inputs, text)
    by_name = {name.strip(): how.strip() for name, _, how in (part.rpartition("=") for part in text.split(";"))}
    for name in by_name:
        if name not in inputs:
            what = f"{text!r}: the model has no input {name!r}"
            raise OnnxgenError(what, help=f"there are {', '.join(inputs)}")
    return {name: by_name.get(name, "auto") for name in inputs}


def of_inputs(scales: Mapping[str, str], inputs: Sequence[str]) -> str:
    """Write scales as `by_input` reads them: one text if all inputs have the same; empty without any."""
    if scales.keys() == {*inputs} and len(set(scales.values())) == 1:
        return scales[inputs[0]]
    return ";".join(f"{name}={how}" for name, how in scales.items())


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
            way = f"use none, auto, or some of {', '.join(RECIPES)}"
            raise OnnxgenError(f"there is no augmentation {name!r}", help=way)
    return names
