"""The drawn tables of `test_transformer_modules.py`, wider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.exported import held
from tests.support.transformers import attention, hold, hold_back, transformer

BOTH = "['attn_mask', 'key_padding_mask']"


@pytest.mark.parametrize("draw", [attention, transformer])
@pytest.mark.parametrize("seed", range(100, 124))
def test_drawn(draw: Any, seed: int) -> None:
    drawn = draw(seed)
    if drawn.axes and drawn.case == "legacy-17" and "'bias': False" in drawn.told and BOTH in drawn.told:
        held(drawn.model, drawn.inputs, drawn.case, drawn.axes, keys=False)  # a known gap: this stays written out
    else:
        hold(drawn)


@pytest.mark.parametrize("draw", [attention, transformer])
@pytest.mark.parametrize("seed", range(200, 206))
def test_trained_values_go_back(draw: Any, seed: int, tmp_path: Path) -> None:
    hold_back(draw(seed), tmp_path)
