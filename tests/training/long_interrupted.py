"""Signals at drawn moments of a run in a terminal: what was trained is kept, and resumed bit for bit.

`ONNXGEN_KILLS=20` draws as many moments for each way to end a run, with and without workers: of the start of Python and
its imports, and of the run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals on Windows", allow_module_level=True)

from tests.training.interrupted import WAYS, Interrupted

MOMENTS = int(os.environ.get("ONNXGEN_KILLS", "6"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("fresh", [False, True], ids=["training", "starting"])
def test_a_signal_at_any_moment_keeps_what_was_trained(way: str, workers: int, fresh: bool, tmp_path: Path) -> None:
    Interrupted(tmp_path, workers).at_drawn_moments(way, range(MOMENTS), fresh)
