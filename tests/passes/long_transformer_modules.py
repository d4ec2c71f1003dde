"""The drawn tables of `test_transformer_modules.py`, wider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.exported import held
from tests.support.transformers import attention, hold_back, transformer


@pytest.mark.parametrize(("draw", "least"), [(attention, 20), (transformer, 24)])
def test_drawn(draw: Any, least: int) -> None:
    """Of 24 networks: all compute the same, and at least so many are torch's own layer, with its keys.

    Written out stay attention of the legacy exporter with free sizes whose masks hide these: 3 of the 24.
    """
    found = 0
    for seed in range(100, 124):
        drawn = draw(seed)
        ran = held(drawn.model, drawn.inputs, drawn.case, drawn.axes, keys=False)
        if drawn.wanted in ran.source:
            ran.model.load_state_dict(drawn.model.state_dict(), strict=True)
            found += 1
    assert found >= least


@pytest.mark.parametrize("draw", [attention, transformer])
@pytest.mark.parametrize("seed", range(200, 206))
def test_trained_values_go_back(draw: Any, seed: int, tmp_path: Path) -> None:
    hold_back(draw(seed), tmp_path)
