"""Reads tables: CSV, TSV and Parquet."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, Problem, counted, one_line
from onnxgen.training.data.source import Gaps, Held, Lists, Rows

MISSING = ("", "na", "n/a", "nan", "null", "none", "?")  # missing values in a column of numbers; of text only ""
TEXT = "text"  # a column of this name is text, also if all of it looks like numbers: 007
_NAMED = 5  # lines that are named, of those that are wrong in one way
_DELIMITERS = ",;\t|"
_COMMA = re.compile(r"[-+]?(\d+(,\d*)?|,\d+)([eE][-+]?\d+)?")
_DECIMAL = re.compile(r"[-+]?(0*,\d+|\d{4,},\d*|\d+,(\d{0,2}|\d{4,}))([eE][-+]?\d+)?")  # not thousands: 1,234


def read_csv(path: Path, texts: Collection[str] = ()) -> Rows:
    """Return the columns of a table by name: arrays of int64, float64, bool or text.

    A column with missing values is a `Gaps` instead. `texts`: columns that are text, whatever their cells look like.

    Raises:
        OnnxgenError: the file is not UTF-8 text, has no names or no rows, or its rows differ in length.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            file.seek(0)
            between = "\t" if path.suffix.lower() == ".tsv" else max(_DELIMITERS, key=header.count)
            reader = csv.reader(file, delimiter=between)
            rows = [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise OnnxgenError(f"{path} can't be read: {error}", help="save it as CSV in UTF-8") from None
    if len(rows) < 2:
        raise OnnxgenError(f"{path} has no rows" if rows else f"{path} is empty")
    names = [name.strip() for name in rows[0][1]]
    _check_names(path, names)
    wrong = [(line, row) for line, row in rows[1:] if len(row) != len(names)]
    said = [f"{path}, line {n}: {counted(len(row), 'value')}, but {counted(len(names), 'column')}" for n, row in wrong]
    if said:
        more = [f"{path}: so have {counted(len(said) - _NAMED, 'more line')}"] if len(said) > _NAMED else []
        raise OnnxgenError(*said[:_NAMED], *more)
    lines, texts = [line for line, _ in rows[1:]], {*texts, TEXT}
    cells = {name: [cell.strip() for cell in of] for name, of in zip(names, zip(*(row for _, row in rows[1:])))}
    commas = [name for name, of in cells.items() if name not in texts and _has_commas(of)]
    certain = any(_DECIMAL.fullmatch(cell) for name in commas for cell in cells[name])
    for name in commas if certain else ():
        cells[name] = [cell.replace(",", ".") for cell in cells[name]]
    columns = {name: _column(path, name, of, lines, name in texts) for name, of in cells.items()}
    for name in () if certain else commas:
        text = next(cell for cell in cells[name] if "," in cell)
        what = f"{path}: column {legible(name)!r} has {text!r}: is the comma that of decimals, or of thousands?"
        columns[name] = Problem(what, help="write decimals with a point, and thousands without a comma")
    found = Rows(columns, path, lines)
    if commas and certain:
        found.notes.append(f"decimal commas become points in {counted(len(commas), 'column')}: {listed(commas, 4)}")
    return found


def _has_commas(texts: Sequence[str]) -> bool:
    """Return True if a column holds numbers with a comma, such as 1,5 and 2; with one at least."""
    if not any("," in text for text in texts):
        return False
    return all(_COMMA.fullmatch(text) or text.lower() in MISSING for text in texts)


def _check_names(path: Path, names: Sequence[str]) -> None:
    if all(_is_number(name) for name in names):
        raise OnnxgenError(f"{path} has no line of column names", help="put a line of names at the top")
    before: set[str] = set()
    for i, name in enumerate(names):
        known = name in before
        before.add(name)
        if not name or known:
            what = f"has two columns called {legible(name)!r}" if name else f"has no name for column {i + 1}"
            raise OnnxgenError(f"{path} {what}", help="give each column a different name")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _column(path: Path, name: str, values: list[str], lines: Sequence[int], is_text: bool) -> Any:
    there = [v for v in values if v.lower() not in MISSING]
    numbers = not is_text and all(map(_is_number, there))
    bare = [i for i, v in enumerate(values) if (v.lower() in MISSING if numbers else not v)]
    if bare:
        kept = _typed(np.delete(np.array(values, dtype=object), bare).tolist(), numbers, is_text)
        return missing(f"{path}, line {lines[bare[0]]}", name, bare, kept)
    return _typed(values, numbers, is_text)


def _typed(values: list[str], numbers: bool, is_text: bool) -> NDArray[Any]:
    if not numbers:
        if not is_text and {v.lower() for v in values} <= {"true", "false"}:
            return np.array([v.lower() == "true" for v in values])
        return np.array(values, dtype=object)  # an array of text has room for the longest one in each place
    try:
        return np.array([int(v) for v in values], dtype=np.int64)
    except (ValueError, OverflowError):
        return np.array([float(v) for v in values])


def missing(where: str, name: str, gaps: Sequence[int], kept: NDArray[Any]) -> Gaps:
    """Return the problem that a column has no value in the rows `gaps`; `kept` has the values of the other rows."""
    values = None
    if kept.ndim == 1:
        values = np.full(len(gaps) + len(kept), math.nan, dtype=object if kept.dtype.kind in "UO" else np.float64)
        values[np.delete(np.arange(len(values)), gaps)] = kept
    others = f", and {len(gaps) - 1} more" if len(gaps) > 1 else ""
    way = "fill it in (--table auto), drop the row, or name only the columns to use: --inputs INPUT=COLUMN+COLUMN"
    return Gaps(f"{where}: column {legible(name)!r} has no value{others}", help=way, values=values, stored=kept.dtype)


def read_parquet(path: Path) -> dict[str, Any]:
    """Like `read_csv`. A column of lists, all of one length, has one more axis. Rows are counted from 0."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise OnnxgenError(f"{path}: Parquet needs pyarrow", help="pip install pyarrow") from None
    try:
        table = parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise OnnxgenError(f"{path} can't be read: {one_line(error, 200)}") from None
    if table.num_rows == 0:
        raise OnnxgenError(f"{path} has no rows")
    return {name: arrow_column(path, name, table.column(name)) for name in table.column_names}


def arrow_column(path: Path, name: str, column: Any) -> Any:
    """Return a column of pyarrow as an array; a `Problem` if it can't be used."""
    from pyarrow import types

    if column.null_count and not types.is_nested(column.type):
        gaps = np.flatnonzero(column.is_null().to_numpy()).tolist()
        kept = arrow_column(path, name, column.drop_null())
        return kept if isinstance(kept, Problem) else missing(f"{path}, row {gaps[0]}", name, gaps, kept)
    kind = column.type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return column.to_numpy()
    if types.is_decimal(kind):
        return np.array([float(v) for v in column.to_pylist()])
    values = column.to_pylist()
    if values and all(isinstance(v, str) for v in values):
        return np.array(values, dtype=object)
    try:
        found = np.array(values)
    except ValueError:
        found = np.array(None)
    if found.ndim > 1 and found.dtype.kind in "biuf":
        return found
    way, what = (
        "store numbers, text, or lists of numbers of one length",
        f"{path}: column {legible(name)!r} is of type {kind}",
    )
    return lists_of(values, what, way) or Problem(what, help=way)


def rows_of(column: Any, rows: Sequence[int]) -> Any:
    """Return some rows of a column as `read_csv` and others make it: an array, or the `Problem` of one."""
    if not isinstance(column, Problem):
        return np.asarray(column, dtype=object)[rows]
    if not isinstance(column, Held) or column.values is None:
        return column
    return replace(column, values=column.values[rows])


def lists_of(values: Any, what: str, way: str) -> Lists | None:
    """Return a column of lists; None if a value is something else. `what` and `way` are those of its problem."""
    if not any(isinstance(value, (list, tuple)) for value in values):
        return None
    if not all(value is None or isinstance(value, (list, tuple)) for value in values):
        return None
    found = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        found[i] = None if value is None else list(value)
    return Lists(what, help=way, values=found)
