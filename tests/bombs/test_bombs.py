"""A few of the drawn files; `python -m tests.bombs --count 100` generates a hundred."""

from __future__ import annotations

import pytest

from tests.bombs.cost import cost_of
from tests.bombs.drawn import LARGEST, drawn

pytestmark = pytest.mark.skipif(not hasattr(__import__("os"), "wait4"), reason="a process is measured by wait4")


# of kinds 0 to 22: where views multiply, arrays grow, dims pass int64, pieces do not fit; the rest costs the same
@pytest.mark.parametrize("number", [0, 1, 3, 5, 7, 8, 9, 15, 18, 21, 22, 34, 36, 37])
def test_a_small_file_costs_little(number: int) -> None:
    kind, data = drawn(number)
    assert len(data) <= LARGEST
    assert not cost_of(data).fault(), kind
