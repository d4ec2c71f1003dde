"""The rows of a run as files: all of them as CSV, and the page that people read."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

import onnx
import onnxruntime

from benchmarks.conformance.tests import VERDICTS, Row
from onnxgen import __version__

HEAD = """# Conformance

A command writes this page. `--check` says what a new run would change:

    python -m benchmarks.conformance --write

onnxgen {version} runs the tests of ONNX {onnx} by ONNX's own runner, through `onnxgen.backend`. Each test is a model
with inputs and expected outputs. It is right if shapes and dtypes are equal and the values are within the test's
tolerance. [`onnx.csv`](../benchmarks/conformance/onnx.csv) has every test.

| tests | {verdicts} |
|---|{rules}|
| {total} | {counts} |
"""
CONTRIB = """# onnxruntime's own operators

A command writes this page. `--check` says what a new run would change:

    python -m benchmarks.conformance --contrib --write

Every node of the domain `com.microsoft` that `tests/ops` compares with onnxruntime {onnxruntime}, optimisations off,
once for each operator, set of attributes, types and sizes. It is right if shapes and dtypes are equal and the values
are within the test's tolerance. [`contrib.csv`](../benchmarks/conformance/contrib.csv) has every case. If the processor
has no kernel (MatMulFpQ4 needs AVX512), cases keep the result of the last run with a kernel, and the table notes it.
Operators that run only on GPUs are not here. `tests/ops/test_documented*.py` compares them with their documentation.

| cases | {verdicts} |
|---|{rules}|
| {total} | {counts} |
"""
TABLE = """
## By operator

**Tests**: tests with this operator alone. `several` are tests with more operators, `network` those of whole networks.
**Exact**: every element equals the expected one. **ULP**: the largest difference in units in the last place. A
difference of at most the type's epsilon counts as 0, since the units are tiny near zero. The expected values of many
tests were computed by numpy in single precision, with rounding errors of their own.

| operator | tests | right | exact | largest ULP | in test |
|---|---|---|---|---|---|
"""


def as_csv(rows: Iterable[Row]) -> str:
    """A line for each test."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["test", "operator", "verdict", "ulp", "note"])
    for row in rows:
        writer.writerow([row.name, row.operator, row.verdict, "" if row.ulp is None else row.ulp, row.note])
    return text.getvalue()


def from_csv(text: str) -> list[Row]:
    """What `as_csv` wrote."""
    return [
        Row(
            entry["test"],
            entry["operator"],
            entry["verdict"],
            int(entry["ulp"]) if entry["ulp"] else None,
            entry["note"],
        )
        for entry in csv.DictReader(io.StringIO(text))
    ]


def as_page(rows: Sequence[Row], *, is_contrib: bool = False) -> str:
    """The page."""
    kinds = [v for v in VERDICTS if any(row.verdict == v for row in rows)]
    counts = [f"{sum(row.verdict == v for row in rows):,}" for v in kinds]
    text = (CONTRIB if is_contrib else HEAD).format(
        version=__version__, onnx=onnx.__version__, onnxruntime=onnxruntime.__version__,
        total=f"{len(rows):,}", verdicts=" | ".join(kinds),
        rules="|".join(["---"] * len(kinds)), counts=" | ".join(counts),
    )  # fmt: skip
    others = [row for row in rows if row.verdict != "right"]
    if others:
        text += "\n## Not right, and left out\n\n| test | verdict | why |\n|---|---|---|\n"
        text += "".join(f"| {row.name} | {row.verdict} | {row.note.replace('|', '/')} |\n" for row in others)
    return text + TABLE + "".join(_line(operator, those) for operator, those in sorted(_by_operator(rows).items()))


def _by_operator(rows: Iterable[Row]) -> Mapping[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.operator, []).append(row)
    return found


def _line(operator: str, rows: Sequence[Row]) -> str:
    right = sum(row.verdict == "right" for row in rows)
    exact = sum(row.verdict == "right" and not row.ulp for row in rows)
    worst = max(rows, key=lambda row: row.ulp or 0)
    ulp, where = (f"{worst.ulp:,}", worst.name) if worst.ulp else ("0", "")
    return f"| {operator} | {len(rows)} | {right} | {exact} | {ulp} | {where} |\n"


def drift(before: Sequence[Row], now: Sequence[Row]) -> tuple[list[str], list[str]]:
    """What a new run found otherwise: verdicts and tests; and differences of rounding, which depend on the CPU."""
    old, new = ({row.name: row for row in rows} for rows in (before, now))
    verdicts = [f"{name}: no longer there" for name in old if name not in new]
    verdicts += [f"{name}: is new: {row.verdict}" for name, row in new.items() if name not in old]
    both = [(old[name], row) for name, row in new.items() if name in old]
    verdicts += [f"{b.name}: {a.verdict} -> {b.verdict} {b.note}" for a, b in both if a.verdict != b.verdict]
    return verdicts, [f"{b.name}: {a.ulp} -> {b.ulp} ULP" for a, b in both if a.ulp != b.ulp]
