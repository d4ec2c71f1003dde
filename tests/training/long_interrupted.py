"""Signals at drawn moments of a run in a terminal: what was trained is kept, and resumed bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals on Windows", allow_module_level=True)

from tests.training.interrupted import WAYS, Interrupted


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seed", range(6))
def test_a_signal_at_any_moment_keeps_what_was_trained(way: str, workers: int, seed: int, tmp_path: Path) -> None:
    Interrupted(tmp_path, workers).at_a_drawn_moment(way, seed)
