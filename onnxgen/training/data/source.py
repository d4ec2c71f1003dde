"""Data as it is read, before it is split and made to fit a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, Problem
from onnxgen.training.data.samples import Samples

PARTS = ("train", "val", "test")
_SPELLED = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val"}
_SPELLED |= {"test": "test", "testing": "test", "t10k": "test"}
TARGETS = ("target", "targets", "label", "labels", "class", "classes", "y")  # what a target is called, in this order


@dataclass
class DataSource:
    """What one kind of data gives.

    Attributes:
        parts: the samples by part ("train", "val", "test"); what has no parts is all "train".
        name: what it is called in reports.
        target: the column that is to be predicted, where the kind of data says so.
        whites: the columns that hold images, and the value of white in each (255, 16, 1).
        glyphs: the images are characters: a mirrored one means something else.
        table: columns are single numbers, which together may be one input.
        text: the columns whose indices stand for text.
        unfit: columns that can't be used, and why.
        notes: what a person should know.
    """

    parts: dict[str, Samples]
    name: str
    target: str = ""
    whites: Mapping[str, float] = field(default_factory=dict)
    glyphs: bool = False
    table: bool = False
    text: frozenset[str] = frozenset()
    unfit: Mapping[str, Problem] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def part_called(name: str) -> str | None:
    """The part that a folder, file or key is called after; None if it is no such name."""
    return _SPELLED.get(name.lower())


def target_called(names: Iterable[str]) -> str:
    """The column that is called like a target, whatever its case; "" if there is none."""
    by_name = {name.lower(): name for name in names}
    return next((by_name[name] for name in TARGETS if name in by_name), "")


def listed(names: Iterable[str], most: int = 12) -> str:
    """Names in one line, cut short where there are many."""
    found = [printable(str(n)) for n in names]
    return ", ".join(found[:most]) + (f", ... ({len(found)} in all)" if len(found) > most else "")


def one_table(parts: Mapping[str, Samples], what: str) -> None:
    """Raises `OnnxgenError` unless all parts have the same columns."""
    columns = {part: set(samples.fields) for part, samples in parts.items()}
    first = next(iter(columns))
    for part, names in columns.items():
        if names != columns[first]:
            raise OnnxgenError(
                f"{what}: part {part} has columns {listed(sorted(names))}, "
                f"but part {first} has {listed(sorted(columns[first]))}"
            )
