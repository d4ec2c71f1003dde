"""The rows of a run as files: all of them as CSV, and the page that people read."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields

import onnxruntime

from benchmarks.exporters.judging import FINE, Row
from onnxgen import __version__
from onnxgen.cli.say import aligned

HEAD = """# Files of other tools

Written by `python -m benchmarks.exporters judge DIR --write`: files that other tools make of small networks with random
weights, and what onnxgen {version} makes of each. [`exporters.csv`](exporters/exporters.csv) has every file.

- **right**: generated, and `onnxgen verify` finds outputs, dtypes and gradients equal.
- **refused by both**: onnxruntime {onnxruntime} does not load it either. **unjudged**: the module is there, but no
  oracle runs the file. **untold**: nothing differs, but the outputs tell too little.
- **fails**: all others, by their reason below.

"""
COLUMNS = ("tool", "files", "right", "refused by both", "unjudged", "untold", "fails")


def overview(rows: Sequence[Row]) -> str:
    """The table of tools for a terminal."""
    return "\n".join(aligned(_totals(rows)))


def as_csv(rows: Sequence[Row]) -> str:
    """A line for each file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(Row)])
    writer.writerows(["" if value is None else value for value in astuple(row)] for row in rows)
    return text.getvalue()


def as_page(rows: Sequence[Row], refusals: Mapping[str, Mapping[str, str]]) -> str:
    """EXPORTERS.md."""
    text = HEAD.format(version=__version__, onnxruntime=onnxruntime.__version__) + _table(_totals(rows))
    failing = [[r.tool, r.file, r.verdict, r.why] for r in rows if r.verdict not in FINE]
    if failing:
        text += "\n## What fails\n\n" + _table([["tool", "file", "verdict", "why"], *failing])
    others = [[r.tool, r.file, r.verdict, r.why or r.loads] for r in rows if r.verdict in FINE[1:]]
    if others:
        text += "\n## Refused by both, unjudged, untold\n\n" + _table([["tool", "file", "verdict", "why"], *others])
    refused = [[tool, name, why] for tool, those in refusals.items() for name, why in those.items()]
    if refused:
        text += "\n## What the tools themselves could not make\n\n" + _table([["tool", "file", "why"], *refused])
    return text


def _totals(rows: Sequence[Row]) -> list[list[str]]:
    lines = []
    for tool in [*dict.fromkeys(row.tool for row in rows), ""]:
        those = [row for row in rows if not tool or row.tool == tool]
        counts = Counter(row.verdict for row in those)
        fails = sum(count for verdict, count in counts.items() if verdict not in FINE)
        lines.append([tool or "all", str(len(those)), *(str(counts[v]) for v in FINE), str(fails)])
    return [list(COLUMNS), *lines]


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(_cell(cell) for cell in cells) + " |\n" for cells in rows]
    return "".join([lines[0], "|---" * len(rows[0]) + "|\n", *lines[1:]])


def _cell(text: str) -> str:
    text = text.replace("|", "/").replace("`", "'").replace("<", "&lt;")
    return text if len(text) <= 200 else text[:197] + "..."
