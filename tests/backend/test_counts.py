"""The counts that docs/OPERATORS.md shows are those of the installed onnx."""

from __future__ import annotations

from pathlib import Path

from tests.backend.counts import lines


def test_the_counts_are_those_of_the_tests_there_are() -> None:
    written = Path(__file__).with_name("counts.txt").read_text()
    assert written == lines(), "print them again: python -m tests.backend.counts > tests/backend/counts.txt"
