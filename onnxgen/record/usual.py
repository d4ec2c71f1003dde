"""How the authors of known networks feed images. Their files do not say it, and a training is worse without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onnxgen.record.labels import recorded_alphabet
from onnxgen.record.signature import recorded


def train_line(module: Path) -> list[str]:
    """Return the command that trains a module."""
    return ["onnxgen", "train", str(module), "--data", "DATA"]


@dataclass(frozen=True)
class Usual:
    """What an author's program does with images, as `onnxgen train` takes it.

    Attributes:
        sign: how a file is known to be of this kind.
        author: the program.
        options: by name of the setting; what is the default for such networks is left out.
        also: what a note says behind them.
    """

    sign: str
    author: str
    options: Mapping[str, str | int]
    also: str = ""

    def arguments(self) -> list[str]:
        """Return the arguments of `onnxgen train`."""
        return _arguments(self.options)

    def line(self, module: Path) -> list[str]:
        """Return the whole command that trains a module so."""
        return [*train_line(module), *self.arguments()]

    def told(self) -> str:
        """Return a note."""
        return self._told(self.options)

    def left(self, settings: object) -> list[str]:
        """Return a note of what settings leave open, or place in another way; none if they say all of it."""
        given = {name: getattr(settings, name) for name in self.options}
        is_left = {n: v in ("auto", None) or n == "resize" and v != self.options[n] for n, v in given.items()}
        found = {name: value for name, value in self.options.items() if is_left[name]}
        return [self._told(found)] if found else []

    def _told(self, options: Mapping[str, str | int]) -> str:
        return f"{self.sign}; {self.author} feeds images with {' '.join(_arguments(options))}{self.also}"


def _arguments(options: Mapping[str, str | int]) -> list[str]:
    return [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]


PADDLE = Usual(
    "the file lists its characters as PaddleOCR's do",
    "PaddleOCR",
    {"channel_order": "bgr", "beside": 127, "normalize": "0.5,0.5"},
)

YOLOX = Usual(
    "its boxes are offsets as YOLOX's",
    "YOLOX",
    {"channel_order": "bgr", "resize": "corner", "normalize": "none"},
    ", and 114 beside them, the default",
)


def usual_of(metadata: Mapping[str, str]) -> Usual | None:
    """Return how images are fed to a network, by the metadata of its sidecar; None if nothing tells an author."""
    signature, alphabet = recorded(metadata), recorded_alphabet(metadata)
    if signature is None or alphabet is None or alphabet.source != "character":
        return None
    return PADDLE if any(len(port.dims or ()) == 4 for port in signature.inputs) else None
