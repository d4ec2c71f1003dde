"""The rows of `metrics.csv`, one for each epoch, and their numbers as text. Nothing here imports torch."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from onnxgen.common.atomic import replacing
from onnxgen.errors import OnnxgenError
from onnxgen.training.best import goodness

Row = dict[str, float]
FIRST_COLUMNS = ("epoch", "step")  # epochs from 1; optimizer steps


def write_rows(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Replace a CSV file atomically. Columns are in the order of their first use. Raises `OSError`."""
    columns = list(dict.fromkeys([*FIRST_COLUMNS, *(name for row in rows for name in row)]))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with replacing([path.parent]) as files, files.file(path) as file:
        file.write(text.getvalue().encode())


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a `metrics.csv`, without keys for missing values; [] if there is no such file.

    Raises:
        OnnxgenError: it is damaged.
    """
    if not path.is_file():
        return []
    rows: list[Row] = []
    try:
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file, strict=True):
                if None in row or None in row.values():
                    raise ValueError("it has more or fewer values than columns")
                rows.append({name: float(text) for name, text in row.items() if text})
                counts = [rows[-1].get(name, math.nan) for name in FIRST_COLUMNS] + [rows[-1].get("seconds", 0.0)]
                if not all(0 <= count < math.inf for count in counts):
                    raise ValueError("epoch, step and seconds must be numbers from 0")
    except OSError as error:
        raise OnnxgenError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, csv.Error) as error:
        raise OnnxgenError(f"{path} can't be read, row {len(rows)}: {error}") from None
    return rows


def best_row(rows: Sequence[Row], monitor: str) -> Row | None:
    """Return the first row that is best by a metric (see `goodness`); None if no row has a finite value of it."""
    found = [(good, row) for row in rows if (good := goodness(row, monitor)) is not None]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def number(name: str, value: float) -> str:
    """Return a metric's value as text; accuracies are in percent."""
    return f"{value:.2%}" if "accuracy" in name else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return `0.4 s`, `12 s`, `3:05 min` or `2:03:05 h`; `?` for NaN."""
    if seconds != seconds:
        return "?"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02} h"
