"""What is wrong with single samples of a data set: everything is counted, the first five are named."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from pathlib import Path

from onnxgen.common.names import legible
from onnxgen.errors import OnnxgenError, counted

NAMED = 5
_WAY = "repair or remove them; training without --strict skips these {}s"


class LeftOut(str):
    """A note of what is wrong with samples, and that they are left out.

    Attributes:
        samples: how many, in all parts; 0 if what is wrong is no sample, as a file beside them.
    """

    samples: int

    def __new__(cls, text: str, samples: int = 0) -> LeftOut:
        note = super().__new__(cls, text)
        note.samples = samples
        return note


class Faults:
    """Collects faults of a data set, each with its place: a file, and the line or entry in it.

    Attributes:
        folder: paths in places are relative to it.
        thing: what a sample is ("image").
        found: the faults.
        why: what several of them have in common. It is told before them, and is none itself.
        lost: the rows that were left out before the files were looked at.
    """

    def __init__(self, folder: Path, thing: str = "image") -> None:
        self.folder, self.thing = folder, thing
        self.found: list[str] = []
        self.why: list[str] = []
        self.lost = 0

    def add(self, where: str, what: str) -> None:
        self.found.append(f"{where}: {what}")

    def place(self, path: Path) -> str:
        """Return a path for a message."""
        if path == self.folder:
            return str(path)
        return path.relative_to(self.folder).as_posix() if path.is_relative_to(self.folder) else str(path)

    def __str__(self) -> str:
        named = "; ".join(legible(fault, 240) for fault in (*self.why, *self.found[:NAMED]))
        more = f"; ... ({len(self.found):,} in all)" if len(self.found) > NAMED else ""
        return f"{counted(len(self.found), 'fault')} in {self.folder}: {named}{more}"

    def notes(self, left: Mapping[str, Sized], strict: bool, skipped: int) -> list[str]:
        """Return the note that so many samples are skipped, if there are faults.

        Args:
            left: the samples without a fault in each part.

        Raises:
            OnnxgenError: a part has no sample left; or there are faults, and `strict` is set.
        """
        for part, samples in left.items():
            if not len(samples):
                why = str(self) if self.found else f"{self.folder} has none"
                raise OnnxgenError(f"no {self.thing} of the {part} part can be used: {why}", help="repair the data")
        if self.found and strict:
            raise OnnxgenError(str(self), help=_WAY.format(self.thing))
        skipped += self.lost
        more = f"; {counted(skipped, self.thing)} skipped" if skipped else ""
        return [LeftOut(f"{self}{more}", skipped)] if self.found else []
