"""The drawn tables of `test_transformer_modules.py`, wider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.transformers import attention, hold, hold_back, transformer


@pytest.mark.parametrize("draw", [attention, transformer])
@pytest.mark.parametrize("seed", range(100, 124))
def test_drawn(draw: Any, seed: int) -> None:
    hold(draw(seed))


@pytest.mark.parametrize("draw", [attention, transformer])
@pytest.mark.parametrize("seed", range(200, 206))
def test_trained_values_go_back(draw: Any, seed: int, tmp_path: Path) -> None:
    hold_back(draw(seed), tmp_path)
