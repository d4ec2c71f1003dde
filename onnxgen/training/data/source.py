"""Data as it was read, before it is split and made to fit a model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, Problem
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.layout import SUFFIXES, root_of

if TYPE_CHECKING:
    from onnxgen.training.data.samples import Field, Samples

TARGETS = ("target", "targets", "label", "labels", "class", "classes", "y")  # names of a target; the first one counts


@dataclass
class DataSource:
    """The data that a reader returns.

    Attributes:
        parts: the samples by part ("train", "val", "test"); data without parts is all "train".
        name: the data's name in reports.
        target: the column to predict, if the kind of data says so.
        whites: the columns with images, and the value of white in each (255, 16, 1).
        glyphs: True if the images are characters, which must not be mirrored.
        table: True if columns are single numbers that may be joined into one input.
        text: the columns whose class indices stand for text.
        placed: the targets that lie on the image ("boxes", "mask"): they are moved and resized as it is.
        unfit: columns that can't be used, and why.
        raw: by part, the columns as they were read, in their order: text as text, and with missing values.
        joined: the columns that were joined, by the name of the column that they make.
        files: by part, the file and the line of each sample, if it is of a table or of text.
        running: True if the samples are the lines of one text.
        task: the task that data of this kind is for, if it is certain (see `Settings.task`).
        rate: of sounds, in Hz.
        enlarged: how many times larger than its input an image is that is a target.
        notes: facts for the user.
        sizes: channels, height and width of the files of images, if they were looked at.
        kinds: how many files of images have colours of each kind ("RGB", "gray", "alpha", "CMYK"), if it is known.
    """

    parts: dict[str, Samples]
    name: str
    target: str = ""
    whites: Mapping[str, float] = field(default_factory=dict)
    glyphs: bool = False
    table: bool = False
    text: frozenset[str] = frozenset()
    placed: frozenset[str] = frozenset()
    unfit: Mapping[str, Problem] = field(default_factory=dict)
    raw: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    joined: dict[str, list[str]] = field(default_factory=dict)
    files: Mapping[str, Rows] = field(default_factory=dict)
    running: bool = False
    task: str = ""
    rate: int = 0
    enlarged: int = 1
    notes: list[str] = field(default_factory=list)
    sizes: frozenset[tuple[int, ...]] = frozenset()
    kinds: Mapping[str, int] = field(default_factory=dict)

    @property
    def first(self) -> Samples:
        """The samples of the first part."""
        return next(iter(self.parts.values()))

    @property
    def fields(self) -> Mapping[str, Field]:
        """The types of the columns, which are those of the first part."""
        return self.first.fields

    def paths(self, part: str, column: str, folder: Path, faults: Faults) -> list[tuple[Path, str]]:
        """Return the file that each row of a column names, as it is seen from a folder, and its line for messages."""
        rows, texts = self.files.get(part), list(self.raw[part][column])
        where = faults.place(rows.path) if rows is not None else ""
        lines = [f"{where}, line {line}: " for line in rows.lines] if rows is not None else [""] * len(texts)
        root = root_of(folder, texts)
        return [(root / text, line) for text, line in zip(texts, lines)]


class Rows(dict[str, Any]):
    """Columns by name, with the file and the line of each row."""

    def __init__(self, columns: Mapping[str, Any], path: Path, lines: Sequence[int]) -> None:
        super().__init__(columns)
        self.path, self.lines = path, lines
        self.notes: list[str] = []  # what was converted when they were read


@dataclass(frozen=True)
class Held(Problem):
    """The problem that a column is not made of numbers or text alone; and its values."""

    values: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Gaps(Held):
    """The problem that a column has missing values; and the column with NaN in their place.

    Attributes:
        stored: the dtype of the values that are there.
    """

    stored: Any = field(default=None, compare=False, repr=False)

    def of_target(self) -> Gaps:
        """Return the problem of a target, which nothing fills in."""
        return replace(self, help="give it one, or drop the row")


@dataclass(frozen=True)
class Lists(Held):
    """The problem that a column holds lists, such as words; and the column: objects [n], None for missing ones."""


def target_called(names: Iterable[str]) -> str:
    """Return the column with the name of a target, in any case; "" if there is none."""
    by_name = {name.lower(): name for name in names}
    return next((by_name[name] for name in TARGETS if name in by_name), "")


def aim_of(target: str | Mapping[str, str] | None, known: str, usual: Iterable[str], columns: Collection[str]) -> str:
    """Return the column of the target: what `Settings.target` names, what the data tells (`known`), else one with a
    `usual` name, or with that of a target; "" if there is none.
    """
    asked = next(iter(target.values()), "") if isinstance(target, Mapping) else target
    return asked or known or next((name for name in usual if name in columns), "") or target_called(columns)


def one_table(parts: Mapping[str, Samples], what: str) -> None:
    """Raise `OnnxgenError` unless all parts have the same columns."""
    columns = {part: set(samples.fields) for part, samples in parts.items()}
    first = next(iter(columns))
    for part, names in columns.items():
        if names != columns[first]:
            has, other = listed(sorted(names)), listed(sorted(columns[first]))
            raise OnnxgenError(f"{what}: part {part} has columns {has}, but part {first} has {other}")


def text_input(column: str, texts: Sequence[str] = ()) -> Problem:
    """Return the problem that an input takes numbers, but its column holds text. `texts`: some of it, if known."""
    if texts and all(text.lower().endswith(SUFFIXES) for text in texts):
        what = f"column {legible(column)!r} names images, which a table can't hold"
        return Problem(what, help="sort the images into a folder for each class, or save pixels and targets as an .npz")
    return Problem(
        f"column {legible(column)!r} holds text, but an input takes numbers",
        help=f"encode it: --table auto, or --table {legible(column)}=onehot or ordinal; "
        "or name the columns to use: --inputs INPUT=COLUMN+COLUMN",
    )
