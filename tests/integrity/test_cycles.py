"""Loading and letting go, over and over, holds on to nothing.

`python -m tests.integrity.cycles 10000` does it ten thousand times and prints memory and open files.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.integrity.cycles import hold_nothing, reads_proc


@reads_proc
def test_loading_again_and_again() -> None:
    hold_nothing(20, objects=70)
