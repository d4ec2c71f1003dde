"""Rows of lists of images and sounds that lack a value that is needed: each is a fault, and is skipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from onnxgen.common.names import legible
from onnxgen.errors import Problem
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.layout import SOUNDS, SUFFIXES
from onnxgen.training.data.source import Gaps, Held, Rows, target_called
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import card_of

Columns = Mapping[str, Any]


def without_gaps(
    parts: Mapping[str, Columns], root: Path, settings: Settings, labelled: bool
) -> tuple[dict[str, Columns], Faults]:
    """Return the columns of each part of a table without the rows that lack a file or the target, and these as faults.

    Only lists of files are changed. In a table of numbers a missing value may be filled in.

    Args:
        root: the folder of all parts, for messages.
        labelled: False if no target is needed.

    Raises:
        OnnxgenError: a part has no row left.
    """
    first = next(iter(parts.values()))
    images, sounds = ([n for n, values in first.items() if _are_names(values, ends)] for ends in (SUFFIXES, SOUNDS))
    named = images or (sounds if len(sounds) == 1 else [])
    faults = Faults(root, "image" if images else "sound")
    if not named:
        return dict(parts), faults
    needed = [*named, *(_wanted([name for name in first if name not in named], settings) if labelled else ())]
    made, left = {}, {}
    for part, columns in parts.items():
        made[part] = _complete(columns, [name for name in needed if name in columns], faults)
        left[part] = len(_values(made[part][named[0]])) if named[0] in columns else 1
    if not all(left.values()):
        faults.notes(left, settings.strict, 0)
    return made, faults


def _wanted(others: Sequence[str], settings: Settings) -> Sequence[str]:
    """Return the columns that settings name and the target; if nothing tells it, all others."""
    said = settings.target if isinstance(settings.target, str) else "+".join((settings.target or {}).values())
    usual = next((name for name in card_of(settings.task).columns if name in others), "")
    target = said or usual or target_called(others)
    asked = {name for text in (target, *settings.inputs.values()) for name in (text, *text.split("+"))}
    return [name for name in others if name in asked or not target]


def _complete(columns: Columns, needed: Sequence[str], faults: Faults) -> Columns:
    needed = [name for name in needed if isinstance(columns[name], Gaps) or not isinstance(columns[name], Problem)]
    gaps = {name: _missing(columns[name]) for name in needed}
    bare = np.logical_or.reduce([*gaps.values()])
    rows = np.flatnonzero(~bare)
    if len(rows) == len(bare):
        return columns
    for row in np.flatnonzero(bare).tolist():
        where = (
            f"{faults.place(columns.path)}, line {columns.lines[row]}" if isinstance(columns, Rows) else f"row {row}"
        )
        faults.add(where, f"column {legible(next(name for name in needed if gaps[name][row]))!r} has no value")
        faults.lost += 1
    left = {name: _rows(values, rows, name in needed) for name, values in columns.items()}
    if not isinstance(columns, Rows):
        return left
    made = Rows(left, columns.path, [columns.lines[row] for row in rows.tolist()])
    made.notes = columns.notes
    return made


def _values(column: Any) -> Any:
    return column.values if isinstance(column, Held) else column


def _are_names(column: Any, endings: tuple[str, ...]) -> bool:
    """Return True for a column of text that names files with these endings; some rows may have none."""
    values = _values(column)
    if isinstance(values, Problem) or values is None or np.asarray(values).dtype != object or np.ndim(values) != 1:
        return False
    there = [value for value in values if isinstance(value, str) and value]
    return bool(there) and all(value.lower().endswith(endings) for value in there)


def _missing(column: Any) -> Any:
    """Return True for each row [n] without a value."""
    values = _values(column)
    if values is None or isinstance(values, Problem):
        return np.False_
    if np.ndim(values) != 1:
        return np.zeros(len(values), bool)
    return np.array([value is None or value == "" or value != value for value in values], bool)


def _rows(column: Any, rows: Any, whole: bool) -> Any:
    """Return some rows of a column; if all of them have a value, in the type that it has without gaps."""
    if not isinstance(column, Problem):
        return np.asarray(column)[rows]
    if not isinstance(column, Held) or column.values is None:
        return column
    left = column.values[rows]
    return left.astype(column.stored) if whole and isinstance(column, Gaps) else replace(column, values=left)
