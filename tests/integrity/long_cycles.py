"""Loading and letting go, over and over, holds on to nothing: more often than in the suite."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.integrity.cycles import hold_nothing, reads_proc


@reads_proc
def test_loading_again_and_again() -> None:
    hold_nothing(60, objects=200)
