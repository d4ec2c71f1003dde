"""Killed at any step of writing, what is left is the old pair, the new pair, or one that refuses to load.

Old and new are of one network with other weights, as after training: the fingerprint is the same, so that it could not
tell a mixture of their shards. `long_killed.py` has the other layouts, and kills at system calls.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integrity.killing import STAGES, THIRDS, killing, stages


@killing
@pytest.mark.parametrize("how", THIRDS)
def test_killed_at_each_step(how: str, tmp_path: Path) -> None:
    change = "shards-shards"
    assert stages(tmp_path, how, change) == {change: STAGES[change]}
