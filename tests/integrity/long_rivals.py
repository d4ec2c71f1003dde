"""Several processes write to one place, or to one folder, in the layouts and numbers that the suite leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integrity.rivals import generations_side_by_side, two_writers_and_a_reader


@pytest.mark.parametrize("layout", ["one", "shards"])
def test_two_writers_and_a_reader(tmp_path: Path, layout: str) -> None:
    two_writers_and_a_reader(tmp_path, layout, layout)


def test_generations_side_by_side() -> None:
    generations_side_by_side(12)
