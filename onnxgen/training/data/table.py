"""Reads files of named columns: CSV, TSV, Parquet, JSON lines, plain text, and arrays of numpy.

The result is `Rows` or named arrays. It says nothing yet of inputs and targets. Nothing here
imports torch.
"""

from __future__ import annotations

import csv
import math
import re
import zipfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxgen.common.built import json_object
from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, Problem, Problems, counted, one_line
from onnxgen.training.data.layout import part_called
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
    Raises `OnnxgenError` if the file is not UTF-8 text, has no names or no rows, or its rows differ in length.
    """
    names, rows = _read_rows(path)
    lines, texts = [line for line, _ in rows], {*texts, TEXT}
    cells = {name: [cell.strip() for cell in column] for name, column in zip(names, zip(*(row for _, row in rows)))}
    open_columns, notes = _with_points(path, cells, texts)
    columns = {name: _column(path, name, column, lines, name in texts) for name, column in cells.items()}
    table = Rows(columns | open_columns, path, lines)
    table.notes += notes
    return table


def _with_points(
    path: Path, cells: dict[str, list[str]], texts: Collection[str]
) -> tuple[dict[str, Problem], list[str]]:
    """Write decimal commas as points. Return the columns whose commas may be of thousands instead, and a note."""
    commas = [name for name, column in cells.items() if name not in texts and _has_commas(column)]
    if any(_DECIMAL.fullmatch(cell) for name in commas for cell in cells[name]):
        for name in commas:
            cells[name] = [cell.replace(",", ".") for cell in cells[name]]
        return {}, [f"decimal commas become points in {counted(len(commas), 'column')}: {listed(commas, 4)}"]
    problems = {}
    for name in commas:
        text = next(cell for cell in cells[name] if "," in cell)
        what = f"{path}: column {legible(name)!r} has {text!r}: is the comma that of decimals, or of thousands?"
        problems[name] = Problem(what, help="write decimals with a point, and thousands without a comma")
    return problems, []


def _read_rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the names of the columns, and the cells of each row with the number of its line."""
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
    columns = counted(len(names), "column")
    uneven = [(line, counted(len(row), "value")) for line, row in rows[1:] if len(row) != len(names)]
    if uneven:
        more = [f"{path}: so have {counted(len(uneven) - _NAMED, 'more line')}"] if len(uneven) > _NAMED else []
        raise OnnxgenError(*(f"{path}, line {n}: {values}, but {columns}" for n, values in uneven[:_NAMED]), *more)
    return names, rows[1:]


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
    with suppress(ValueError):  # lists of several lengths
        array = np.array(values)
        if array.ndim > 1 and array.dtype.kind in "biuf":
            return array
    what = f"{path}: column {legible(name)!r} is of type {kind}"
    way = "store numbers, text, or lists of numbers of one length"
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
    kinds = {type(value) for value in values if value is not None}
    if not kinds or not all(issubclass(kind, (list, tuple)) for kind in kinds):
        return None
    return Lists(what, help=way, values=_objects([None if value is None else list(value) for value in values]))


_UTF8 = "save it in UTF-8"
_FORM = 'an object in each line: {"text": "...", "label": "..."}'


def read_txt(path: Path) -> Rows:
    """Return the lines of a file as the column "text".

    Raises `OnnxgenError` if the file is not UTF-8, or has no text.
    """
    lines = lines_of(path)
    if not any(line.strip() for line in lines):
        raise OnnxgenError(f"{path} has no text", help="a sample in each line, or a whole text")
    return Rows({TEXT: np.array(lines, dtype=object)}, path, range(1, len(lines) + 1))


def read_jsonl(path: Path) -> Rows:
    """Return the entries of a file with an object in each line, by name, in the first object's order.

    An entry is a number, a text, true or false, or a list of numbers or texts. One that is null, or that an object
    lacks, is a missing value. Raises `OnnxgenError` if the file is not UTF-8, a line is no object, or there are none.
    """
    rows, lines, problems = [], [], Problems()
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip():
            continue
        try:
            rows.append(json_object(line))
            lines.append(number)
        except ValueError as error:
            problems.add(f"{path}, line {number} can't be read: {one_line(error, 200)}", help=_FORM)
            if len(problems.found) == _NAMED:
                break
    problems.raise_if_any()
    names = dict.fromkeys(name for row in rows for name in row)
    if not names:
        raise OnnxgenError(f"{path} has no rows", help=_FORM)
    columns = {name: _column_of_objects(path, name, [row.get(name) for row in rows], lines) for name in names}
    return Rows(columns, path, lines)


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file in UTF-8. Raises `OnnxgenError` for any other file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise OnnxgenError(f"{path} can't be read: {error}", help=_UTF8) from None
    except OSError as error:
        raise OnnxgenError(f"{path} can't be read: {error.strerror}") from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise OnnxgenError(f"{path}, line {line} has a zero byte: it is no text, or not in UTF-8", help=_UTF8)
    return text.split("\n")[: -1 if text.endswith("\n") else None]


def _column_of_objects(path: Path, name: str, values: list[Any], lines: list[int]) -> Any:
    gaps = [i for i, value in enumerate(values) if value is None]
    there = [value for value in values if value is not None]
    kinds = {_kind(value) for value in there}
    if kinds == {"a list"}:
        problem = f"{path}: column {legible(name)!r} holds lists"
        return Lists(problem, help="an input takes numbers of one shape", values=_objects(values))
    if len(kinds) == 1 or kinds == {"a number", "true or false"}:
        kept = _objects(there) if kinds == {"text"} else np.array(there)
        return missing(f"{path}, line {lines[gaps[0]]}", name, gaps, kept) if gaps else kept
    first = {_kind(value): line for value, line in reversed(list(zip(values, lines))) if value is not None}
    shown = " and ".join(f"{kind} (line {line})" for kind, line in sorted(first.items(), key=lambda pair: pair[1]))
    what = f"{path}: column {legible(name)!r} holds {shown or 'nothing'}"
    return Problem(what, help="store one kind in a column: numbers, text, or lists of numbers or text")


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "an infinite number" if isinstance(value, float) and not math.isfinite(value) else "a number"
    return "text" if isinstance(value, str) else "a list" if isinstance(value, list) else "an object"


def _objects(values: list[Any]) -> NDArray[Any]:
    """Return an array [n] of objects, also of lists."""
    array = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def read_npz(path: Path) -> dict[str, Any]:
    """Return the arrays of an `.npz` by name, or the array of an `.npy` as column "x". Nothing is unpickled.

    Raises `OnnxgenError` if the file is damaged or holds Python objects.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
        return {"x": loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        pickled = "pickle" in str(error).lower()
        way = "save arrays of numbers: reading pickled objects would run code" if pickled else "save it again"
        raise OnnxgenError(f"{path} can't be read: {one_line(error, 200)}", help=way) from None


def divided(arrays: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the columns of each part, which names like `x_train` or `test_images` make; else all are "train"."""
    places = {key: _divided(key) for key in arrays}
    if not all(places.values()) or not any(place and place[0] == "train" for place in places.values()):
        return {"train": arrays}
    parts: dict[str, dict[str, Any]] = {}
    for key, array in arrays.items():
        part, column = places[key] or ("", "")
        parts.setdefault(part, {})[column] = array
    return {**parts}


def _divided(key: str) -> tuple[str, str] | None:
    """Return the part and the column in a key like `x_train` or `test_images`."""
    for before, after in (key.split("_", 1), key.rsplit("_", 1)) if "_" in key else ():
        if part := part_called(before):
            return part, after
        if part := part_called(after):
            return part, before
    return None


def decoded(name: str, column: str, values: Any) -> Any:
    """Return an array of bytes as one of text; anything else as it is. Raises `OnnxgenError` if it is not UTF-8."""
    if not isinstance(values, np.ndarray) or values.dtype.kind != "S":
        return values
    try:
        return np.char.decode(values, "utf-8")
    except UnicodeDecodeError as error:
        what = f"{name}: column {legible(column)!r} holds bytes that are no text: {error}"
        raise OnnxgenError(what, help="store text, or numbers") from None


def array_of(values: Any, what: str) -> NDArray[Any]:
    """Return an array of numbers that torch has, or of text as objects. Raises `OnnxgenError` for anything else."""
    try:
        array = np.asarray(values)
    except ValueError:  # nested lists of different length
        raise OnnxgenError(f"{what} has rows of different shapes", help="give numbers of one shape") from None
    if array.dtype.kind in "US" or (array.dtype == object and all(isinstance(v, str) for v in array.flat)):
        if array.ndim != 1:
            raise OnnxgenError(f"{what} is text of rank {array.ndim}; text must be one class name for each sample")
        return array.astype(object)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:  # torch has no longdouble
        raise OnnxgenError(f"{what} has dtype {array.dtype}", help="give numbers or text, all of one shape")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype in (np.uint16, np.uint32, np.uint64):  # torch can't index these
        if array.size and int(array.max()) >= 1 << 63:
            raise OnnxgenError(f"{what} has {array.max()}, and torch's whole numbers end below 2**63")
        array = array.astype(np.int64)
    need_axis(array, what)
    return array


def need_axis(values: Any, what: str) -> None:
    """Raise `OnnxgenError` if a column is a single number."""
    if values.ndim == 0:
        raise OnnxgenError(f"{what} is a single number; its first axis must be the samples")


def need_one_length(columns: Mapping[str, Any], name: str) -> None:
    """Raise `OnnxgenError` if columns differ in their number of samples."""
    lengths = {column: len(values) for column, values in columns.items()}
    if len(set(lengths.values())) > 1:
        what = f"{name}: columns are of different length: " + listed(f"{c} {n:,}" for c, n in lengths.items())
        raise OnnxgenError(what, help="the first axis of each must be the samples")
