"""Elements of uint16, uint32 and uint64 are moved as any others, though torch has hardly a kernel for these types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.harness import run_node

RNG = np.random.default_rng(0)
UNSIGNED = pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64], ids=lambda dtype: dtype.__name__)
STORED = pytest.mark.parametrize("stored", [set(), {1, 2, 3, 4}], ids=["computed", "stored"])


def drawn(dtype: Any) -> Any:
    """Numbers of the whole range: the upper half is negative where they are taken for signed."""
    return RNG.integers(0, np.iinfo(dtype).max, (2, 3, 4), dtype, endpoint=True)


@UNSIGNED
@STORED
@pytest.mark.parametrize("steps", [(-1, -1), (-2, 1), (2, -3)])
def test_slice_backwards(dtype: Any, stored: set[int], steps: tuple[int, int]) -> None:
    first = [-1 if step < 0 else 0 for step in steps]
    last = [-(2**62) if step < 0 else 2**62 for step in steps]
    given = [np.array(numbers, np.int64) for numbers in (first, last, (1, 2), steps)]
    run_node("Slice", [drawn(dtype), *given], initializers=stored)


@UNSIGNED
@STORED
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad(dtype: Any, stored: set[int], mode: str) -> None:
    """onnxruntime has no kernel for most of these; numpy names its modes as ONNX does."""
    x = drawn(dtype)
    pads = np.array([0, 1, 1, 0, 0, 2], np.int64)
    expected = np.pad(x, [(0, 0), (1, 0), (1, 2)], mode=mode)  # type: ignore[call-overload]
    run_node("Pad", [x, pads], {"mode": mode}, initializers=stored & {1}, expected=[expected])
