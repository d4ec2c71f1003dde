"""Tables packed as GGML packs them, against the kernel of onnxruntime (1.32 or newer), bit for bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ops.fuzz import floats
from tests.ops.harness import refusal, run_node
from tests.ops.kernels import needs

MICROSOFT = "com.microsoft"
INDICES = np.array([[0, 6, 3], [-1, 7, 100]])
PLAIN = {0: np.float32, 1: np.float16, 30: ml_dtypes.bfloat16}
# by GGML's number: how many numbers are a block, of how many bytes, and where its scales in half precision begin
BLOCKS: dict[int, tuple[int, int, list[int]]] = {
    2: (32, 18, [0]), 6: (32, 22, [0]), 8: (32, 34, [0]), 13: (256, 176, [0, 2]), 14: (256, 210, [208]),
    20: (32, 18, [0]), 23: (256, 136, [0]), 42: (64, 18, [0]),
}  # fmt: skip


def table(packed_type: int, blocks: int) -> tuple[Any, int]:
    """Seven rows of any bytes whose scales are numbers, and how many numbers a row is."""
    if packed_type in PLAIN:
        return floats(7, blocks).astype(PLAIN[packed_type]).view(np.uint8), blocks
    size, count, scales = BLOCKS[packed_type]
    data = np.random.default_rng(packed_type).integers(0, 256, (7, blocks, count)).astype(np.uint8)
    for start in scales:
        halves = floats(7, blocks, 1, seed=start).astype(np.float16)
        data[..., start : start + 2] = halves.view(np.uint8)
    return data.reshape(7, -1), blocks * size


@needs("GatherPacked")
@pytest.mark.parametrize("packed_type", [*PLAIN, *BLOCKS])
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("dtype", [1, 10])
@pytest.mark.parametrize("stored", [False, True])
def test_gather_packed(packed_type: int, blocks: int, dtype: int, stored: bool) -> None:
    """Indices outside are the first row's."""
    data, size = table(packed_type, blocks)
    attrs = {"packed_type": packed_type, "K": size, "output_dtype": dtype}
    kwargs: dict[str, Any] = {"domain": MICROSOFT, "rtol": 0, "atol": 0, "initializers": {0} if stored else set()}
    for indices in (INDICES, INDICES.astype(np.int32), np.array(2), np.zeros((0, 3), np.int64)):
        run_node("GatherPacked", [data, indices], attrs, **kwargs)


@needs("GatherPacked")
def test_named_sizes() -> None:
    data, size = table(6, 2)
    attrs = {"packed_type": 6, "K": size, "output_dtype": 1}
    run_node("GatherPacked", [data, INDICES], attrs, domain=MICROSOFT, dynamic=True)


@pytest.mark.parametrize("packed_type, size, dtype, why", [
    (16, 256, 1, "packed as IQ2_XXS"), (3, 32, 1, "packed_type 3 has no CPU kernel"),
    (2, 32, 7, "output_dtype must be float"),
    (2, 33, 1, "do not hold 33 numbers"),
    (2, 64, 1, "rows of 18 bytes do not hold 64 numbers"), (2, 0, 1, "do not hold 0 numbers"),
])  # fmt: skip
def test_what_is_refused(packed_type: int, size: int, dtype: int, why: str) -> None:
    attrs = {"packed_type": packed_type, "K": size, "output_dtype": dtype}
    assert why in refusal("GatherPacked", [table(2, 1)[0], INDICES], attrs, domain=MICROSOFT)
