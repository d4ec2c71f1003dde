"""What the programs around known networks do before them, as settings of `onnxgen train` (`--preprocess NAME`).

`PRESETS` is data. A preset sets what the user leaves open. Of a file that says whose it is (`preset_of`), it is taken
without being asked for. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from onnxgen.record.labels import PREFIX, recorded_alphabet
from onnxgen.record.sidecar import TRAINED
from onnxgen.record.signature import recorded

if TYPE_CHECKING:
    from onnxgen.training.settings import Settings

AUTO, NONE = "auto", "none"
OPEN = (AUTO, None)  # values of settings that say nothing


@dataclass(frozen=True)
class Preset:
    """What a program does with a sample before its network.

    Attributes:
        name: what `--preprocess` calls it.
        author: the program.
        options: settings by name, for a network that it feeds so. What is the default for such networks is there, too.
        size: height and width of its images where the network takes any; a longer line of text gets more width.
        also: what `options` can't say.
    """

    name: str
    author: str
    options: Mapping[str, str | int]
    size: tuple[int, int] | None = None
    also: str = ""

    def left(self, settings: Settings) -> dict[str, Any]:
        """Return the settings that are open; without the gray beside images that are stretched."""
        open_ones = {name: value for name, value in self.options.items() if getattr(settings, name) in OPEN}
        if settings.resize == "stretch":
            open_ones.pop("beside", None)
        return open_ones

    def told(self, options: Mapping[str, Any], sign: str = "") -> str:
        """Return a note of the options that were taken. `sign`: how the file is known; "" if the user names it."""
        words = " ".join(arguments(options)) + self.also
        if not sign:
            return f"fed as {self.author} does, by --preprocess {self.name}: {words}"
        return f"{sign}: fed as {self.author} does, by {words}; for another way, --preprocess none"

    def advised(self, sign: str, settings: Settings) -> list[str]:
        """Return a note that advises this preset for a network that may be of its kind; none if it is fed so."""
        other = {n: v for n, v in self.options.items() if getattr(settings, n) in OPEN or n == "resize"}
        if settings.preprocess != AUTO or all(getattr(settings, name) == value for name, value in other.items()):
            return []
        words = " ".join(arguments({n: v for n, v in other.items() if getattr(settings, n) != v}))
        return [f"{sign}; {self.author} feeds images with {words}{self.also} -> --preprocess {self.name}"]


def arguments(options: Mapping[str, Any]) -> list[str]:
    """Return settings as arguments of `onnxgen train`."""
    return [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]


_IMAGENET = "0.485/0.456/0.406,0.229/0.224/0.225"
_PADDLE: Mapping[str, str | int] = {"channel_order": "bgr", "resize": "line", "beside": 127, "normalize": "0.5,0.5"}

# Where each was read: PaddleOCR `ppocr/data/imaug/rec_img_aug.py` (`resize_norm_img`) and `configs/det/`, which
# normalises BGR with the numbers of RGB; YOLOX `yolox/data/data_augment.py` (`preproc`); Ultralytics
# `data/augment.py` (`LetterBox`); ddddocr `core/ocr_engine.py`; torchvision `transforms/_presets.py`; silero_vad
# `utils_vad.py`.
PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("paddleocr-rec", "PaddleOCR's reader of lines", _PADDLE, (48, 320)),
        Preset("paddleocr-cls", "PaddleOCR's classifier of lines", _PADDLE, (48, 192)),
        Preset("paddleocr-det", "PaddleOCR's finder of lines", {"channel_order": "bgr", "normalize": _IMAGENET}),
        Preset(
            "yolox",
            "YOLOX",
            {"channel_order": "bgr", "resize": "corner", "normalize": "none"},
            (640, 640),
            ", and 114 beside them, the default",
        ),
        Preset(
            "yolov8",
            "Ultralytics",
            {"channel_order": "rgb", "resize": "letterbox", "beside": 114, "normalize": "0,1"},
            (640, 640),
        ),
        Preset("ddddocr", "ddddocr", {"resize": "line", "normalize": "0,1"}),
        Preset(
            "imagenet",
            "torchvision",
            {"channel_order": "rgb", "normalize": _IMAGENET},
            (224, 224),
            ", but images are stretched, and not cut to their middle",
        ),
        Preset("silero", "Silero", {"sample_rate": 16000}),
    )
}


@dataclass(frozen=True)
class Found:
    """A preset, and the sentence that says how the file is known to be of its kind."""

    preset: Preset
    sign: str

    def told(self) -> str:
        """Return a note for the one who generates the module."""
        return self.preset.told(self.preset.options, self.sign)


def preset_of(metadata: Mapping[str, str]) -> Found | None:
    """Return the preset of a network, by the metadata of its sidecar; None if nothing says for certain whose it is."""
    if (own := _own(metadata.get(TRAINED, ""))) is not None:
        return Found(own, f"the file's {PREFIX}{TRAINED} says how it is fed")
    signature, alphabet = recorded(metadata), recorded_alphabet(metadata)
    if signature is None or alphabet is None or alphabet.source != "character":
        return None
    if not any(len(port.dims or ()) == 4 for port in signature.inputs):
        return None
    return Found(PRESETS["paddleocr-rec"], "the file lists its characters as PaddleOCR's do")


def _own(contract: str) -> Preset | None:
    """Return the preset that an export wrote into a file; None if there is none, or the network takes no images."""
    if not contract:
        return None
    from onnxgen.training.runs.contract import fed_images, fed_size  # imported here: modules are generated without it

    scale, images = fed_images(contract)
    given = {**{name: value for name, value in images.items() if value is not None}, "normalize": scale}
    return Preset(AUTO, "its own training", given, fed_size(contract)) if scale else None


def with_rate(settings: Settings) -> Settings:
    """Return the settings with the rate of sounds of a preset that they name: sounds are read before a network is."""
    preset = PRESETS.get(settings.preprocess)
    rate = None if preset is None else preset.options.get("sample_rate")
    return settings if rate is None or settings.sample_rate else replace(settings, sample_rate=int(rate))


def taken(
    settings: Settings, metadata: Mapping[str, str], is_known: bool, has_images: bool, channels: Iterable[int | str]
) -> tuple[Preset | None, dict[str, Any], list[str]]:
    """Return the preset that counts, the settings that it makes of open ones, and a note.

    Args:
        is_known: the network was trained here, so it is fed as then, unless the settings name a preset.
        has_images: the data has images. A preset that is found is for these alone.
        channels: of the network's images.
    """
    if settings.preprocess == NONE:
        return None, {}, []
    preset, sign = PRESETS.get(settings.preprocess), ""
    if preset is None:
        found = None if is_known or not has_images else preset_of(metadata)
        if found is None:
            return None, {}, []
        preset, sign = found.preset, found.sign
    options = preset.left(settings)
    if {*channels} == {1}:
        options.pop("channel_order", None)
    return preset, options, [preset.told(options, sign)] if options else []
