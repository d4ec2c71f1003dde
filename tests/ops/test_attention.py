"""Attention and RotaryEmbedding as operators: what torch's function takes, and what is written out by the body."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.fuzz import floats
from tests.ops.harness import backend_cases, run_case, run_node

HALF = {"fp16": 2e-3, "bf16": 2e-2}  # relative tolerance: the reference rounds after every step


@pytest.mark.parametrize("case", backend_cases("Attention", "RotaryEmbedding"), ids=lambda c: c.name)
def test_onnx_cases(case: Any) -> None:
    tolerance = next((t for kind, t in HALF.items() if kind in case.name), None)
    run_case(case, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "kv_heads, attrs, text",
    [
        (4, {}, "F.scaled_dot_product_attention(i0, i1, i2)"),
        (4, {"is_causal": 1}, "F.scaled_dot_product_attention(i0, i1, i2, is_causal=True)"),
        (4, {"scale": 0.25}, "F.scaled_dot_product_attention(i0, i1, i2, scale=0.25)"),
        (2, {}, "i1.repeat_interleave(2, dim=1)"),
    ],
)
def test_heads_apart(kv_heads: int, attrs: dict[str, Any], text: str, dynamic: bool) -> None:
    if dynamic and kv_heads != 4:
        return
    inputs = [floats(2, 4, 5, 8), floats(2, kv_heads, 5, 8, seed=1), floats(2, kv_heads, 5, 8, seed=2)]
    assert text in run_node("Attention", inputs, attrs, 23).forward or dynamic


def test_heads_side_by_side() -> None:
    inputs = [floats(2, 5, 32), floats(2, 7, 16, seed=1), floats(2, 7, 16, seed=2)]
    ran = run_node("Attention", inputs, {"q_num_heads": 4, "kv_num_heads": 2}, 23, rtol=1e-4, atol=1e-5)
    assert ".unflatten(-1, (4, -1)).transpose(1, 2)" in ran.forward
    assert ".unflatten(-1, (2, -1)).transpose(1, 2).repeat_interleave(2, dim=1)" in ran.forward
    assert "transpose(1, 2).flatten(2)" in ran.forward


def test_a_cache_is_written_out() -> None:
    inputs = [
        floats(2, 4, 1, 8),
        *(floats(2, 4, 1, 8, seed=s) for s in (1, 2)),
        None,
        *(floats(2, 4, 3, 8, seed=s) for s in (3, 4)),
    ]
    ran = run_node("Attention", inputs, {}, 23, outputs=3, rtol=1e-4, atol=1e-5)
    assert [np.shape(o) for o in ran.outputs] == [(2, 4, 1, 8), (2, 4, 4, 8), (2, 4, 4, 8)]
