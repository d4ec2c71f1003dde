"""ONNX's own backend tests, as the installed `onnx` has them, by ONNX's own runner.

Its comparison is strict on shape and dtype, and on values to what each test says. A test is left out only if
onnxruntime and ONNX's reference both differ from what it states; `exclusions.py` has the list.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.conformance.page import from_csv
from tests.backend.exclusions import EXCLUDED
from tests.backend.road import cases_on

found = cases_on("cpu", EXCLUDED, __name__)
globals().update(found)

TABLES = Path(__file__).parents[2] / "benchmarks" / "conformance"


def test_docs_conformance_has_these_tests() -> None:
    """The page says of each test what this file asserts: it is right, or it is left out."""
    rows = from_csv((TABLES / "onnx.csv").read_text())
    here = {name.removesuffix("_cpu") for cases in found.values() for name in vars(cases) if name.endswith("_cpu")}
    left_out = {name for name in here if any(pattern in name for pattern in EXCLUDED)}
    assert {row.name for row in rows if row.verdict == "right"} == here - left_out, AGAIN
    assert {row.name for row in rows if row.verdict == "left out"} == left_out, AGAIN


AGAIN = "write the page again: python -m benchmarks.conformance --write"
