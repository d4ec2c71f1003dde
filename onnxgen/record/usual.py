"""How the authors of known networks feed images. Their files do not say it, and a training is worse without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    """

    sign: str
    author: str
    options: Mapping[str, str | int]

    def arguments(self, names: Iterable[str] | None = None) -> list[str]:
        """Return the arguments of `onnxgen train`, of these settings or of all."""
        given = self.options if names is None else {name: self.options[name] for name in names}
        return [text for name, value in given.items() for text in (f"--{name.replace('_', '-')}", str(value))]

    def line(self, module: Path) -> list[str]:
        """Return the whole command that trains a module so."""
        return [*train_line(module), *self.arguments()]

    def told(self, arguments: list[str]) -> str:
        """Return a note."""
        return f"{self.sign}; {self.author} feeds images with {' '.join(arguments)}"


PADDLE = Usual(
    "the file lists its characters as PaddleOCR's do",
    "PaddleOCR",
    {"channel_order": "bgr", "beside": 127, "normalize": "0.5,0.5"},
)


def usual_of(metadata: Mapping[str, str]) -> Usual | None:
    """Return how images are fed to a network, by the metadata of its sidecar; None if nothing tells an author."""
    signature, alphabet = recorded(metadata), recorded_alphabet(metadata)
    if signature is None or alphabet is None or alphabet.source != "character":
        return None
    return PADDLE if any(len(port.dims or ()) == 4 for port in signature.inputs) else None
