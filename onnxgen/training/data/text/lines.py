"""Reads files of text: a JSON object in each line (`.jsonl`), and plain text (`.txt`)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxgen.common.json_text import json_object
from onnxgen.common.names import legible
from onnxgen.errors import OnnxgenError, Problem, Problems, one_line
from onnxgen.training.data.source import Lists, Rows
from onnxgen.training.data.table import TEXT, missing

_NAMED = 5  # lines that are named, of those that can't be read
_UTF8 = "save it in UTF-8"
_FORM = 'an object in each line: {"text": "...", "label": "..."}'


def read_txt(path: Path) -> Rows:
    """Return the lines of a file as the column "text".

    Raises:
        OnnxgenError: the file is not UTF-8, or has no text.
    """
    lines = lines_of(path)
    if not any(line.strip() for line in lines):
        raise OnnxgenError(f"{path} has no text", help="a sample in each line, or a whole text")
    return Rows({TEXT: np.array(lines, dtype=object)}, path, range(1, len(lines) + 1))


def read_jsonl(path: Path) -> Rows:
    """Return the entries of a file with an object in each line, by name, in the first object's order.

    An entry is a number, a text, true or false, or a list of numbers or texts. One that is null, or that an object
    lacks, is a missing value.

    Raises:
        OnnxgenError: the file is not UTF-8, a line is no object, or there are none.
    """
    rows, lines, problems = [], [], Problems()
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip():
            continue
        try:
            rows.append(json_object(line))
        except ValueError as error:
            problems.add(f"{path}, line {number} can't be read: {one_line(error, 200)}", help=_FORM)
            if len(problems.found) == _NAMED:
                break
        else:
            lines.append(number)
    problems.raise_if_any()
    if not rows or not (names := list(dict.fromkeys(name for row in rows for name in row))):
        raise OnnxgenError(f"{path} has no rows", help=_FORM)
    return Rows({name: _column(path, name, [row.get(name) for row in rows], lines) for name in names}, path, lines)


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


def _column(path: Path, name: str, values: list[Any], lines: list[int]) -> Any:
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
    found = " and ".join(f"{kind} (line {line})" for kind, line in sorted(first.items(), key=lambda pair: pair[1]))
    what = f"{path}: column {legible(name)!r} holds {found or 'nothing'}"
    return Problem(what, help="store one kind in a column: numbers, text, or lists of numbers or text")


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "an infinite number" if isinstance(value, float) and not math.isfinite(value) else "a number"
    return "text" if isinstance(value, str) else "a list" if isinstance(value, list) else "an object"


def _objects(values: list[Any]) -> NDArray[Any]:
    """Return an array [n] of objects, also of lists."""
    found = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        found[i] = value
    return found
