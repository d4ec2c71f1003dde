"""Attention as onnxruntime fuses it, against onnxruntime: projections, heads, masks, caches, rotary embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.fuzz import floats
from tests.ops.harness import Ran, refusal, run_node

I32 = np.int32
MASKS: dict[str, Any] = {
    "none": None,
    "lengths": np.array([4, 2], I32),
    "ends and starts": np.array([5, 4, 0, 2], I32),
    "raw": np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], I32),
    "square": np.tril(np.ones((2, 5, 5), I32), 1),
}


def run(op_type: str, inputs: list[Any], attrs: dict[str, Any], **kwargs: Any) -> Ran:
    return run_node(op_type, inputs, attrs, domain="com.microsoft", rtol=1e-4, atol=1e-4, **kwargs)


# ---- Attention -------------------------------------------------------------------------------------------------------


def packed(size: int = 8, columns: int = 24) -> list[Any]:
    return [floats(2, 5, size), floats(size, columns, seed=1) * 0.5, floats(columns, seed=2)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("stored", [{1, 2}, set()])
def test_attention(mask: str, causal: int, stored: set[int]) -> None:
    attrs = {"num_heads": 2, "unidirectional": causal}
    ran = run("Attention", [*packed(), MASKS[mask]], attrs, initializers=stored)
    assert ran.source.count("nn.Linear(8, 24)") == (1 if stored else 0)
    assert "nn.Parameter(" not in ran.source, "what a mask is made of is not trained"
    assert "F.scaled_dot_product_attention(" in ran.source
    if mask == "none":
        assert ("is_causal=True" in ran.source) == bool(causal)


@pytest.mark.parametrize("mask", MASKS)
def test_attention_of_any_length(mask: str) -> None:
    """Of a batch and a length that are not known before it runs."""
    run("Attention", [*packed(), MASKS[mask]], {"num_heads": 2}, initializers={1, 2}, dynamic=True)


def test_attention_options() -> None:
    attrs = {"num_heads": 4, "scale": 0.3}
    expected = run("Attention", [*packed()[:2], np.zeros(24, np.float32)], attrs).expected
    run("Attention", packed()[:2], attrs, initializers={1}, expected=expected)  # onnxruntime 1.31.1 ends in a crash
    run("Attention", packed(8, 28), {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 12]}, initializers={1, 2})
    run("Attention", [*packed(), MASKS["raw"]], {"num_heads": 2, "mask_filter_value": -1.5}, initializers={1, 2})
    for shape in ((2, 2, 5, 5), (1, 1, 5, 5), (1, 2, 5, 5)):
        bias = floats(*shape, seed=4)
        run("Attention", [*packed(), MASKS["raw"], None, bias], {"num_heads": 2, "unidirectional": 1})


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", [False, True])
def test_attention_with_a_cache(causal: int, mask: bool) -> None:
    keys = np.array([[1] * 8, [0, 0, 1, 1, 1, 1, 1, 1]], I32) if mask else None
    inputs = [*packed(), keys, floats(2, 2, 2, 3, 4, seed=5)]
    run("Attention", inputs, {"num_heads": 2, "unidirectional": causal}, outputs=2, initializers={1, 2})
    run("Attention", packed(), {"num_heads": 2, "unidirectional": causal}, outputs=2, initializers={1, 2})


def test_attention_on_gpus_only_is_refused() -> None:
    text = refusal("Attention", packed(), {"num_heads": 2, "do_rotary": 1}, domain="com.microsoft")
    assert "GPUs only" in text
    assert "0 heads" in refusal("Attention", packed(), {"num_heads": 0}, domain="com.microsoft")
    sizes = {"num_heads": 2, "qkv_hidden_sizes": [8, 16]}
    assert "not three" in refusal("Attention", packed(), sizes, domain="com.microsoft")
    mask = np.ones((2, 1, 5, 5), I32)
    assert "rank 4" in refusal("Attention", [*packed(), mask], {"num_heads": 2}, domain="com.microsoft")


# ---- MultiHeadAttention ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["none", "raw", "square", "lengths"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_attention(mask: str, causal: int, bias: bool) -> None:
    operands = [floats(2, 5, 8, seed=s) for s in range(3)]
    inputs = [*operands, floats(24, seed=3) if bias else None, MASKS[mask]]
    run("MultiHeadAttention", inputs, {"num_heads": 2, "unidirectional": causal}, initializers={3} if bias else set())


def test_cross_attention() -> None:
    q, k, v = floats(2, 3, 8), floats(2, 5, 8, seed=1), floats(2, 5, 12, seed=2)
    run("MultiHeadAttention", [q, k, v, floats(28, seed=3)], {"num_heads": 2, "scale": 0.7}, initializers={3})
    run("MultiHeadAttention", [q, k, v], {"num_heads": 2}, outputs=3)
    k, v = floats(2, 2, 5, 4, seed=1), floats(2, 2, 5, 4, seed=2)
    run("MultiHeadAttention", [q, k, v], {"num_heads": 2})


def test_multi_head_attention_with_biases_and_a_cache() -> None:
    operands = [floats(2, 3, 8, seed=s) for s in range(3)]
    past = [floats(2, 2, 4, 4, seed=s) for s in (5, 6)]
    bias = floats(1, 2, 3, 7, seed=7)
    for causal in (0, 1):
        inputs = [*operands, None, None, bias, *past]
        run("MultiHeadAttention", inputs, {"num_heads": 2, "unidirectional": causal}, outputs=3)


@pytest.mark.parametrize("count", [2, 3])
def test_packed_heads(count: int) -> None:
    """onnxruntime's CPU provider takes them apart only: what it computes of the parts is the oracle."""
    both = floats(2, 5, 2, count, 4)
    parts = [both[:, :, :, i].reshape(2, 5, 8) for i in range(count)]
    query = [floats(2, 5, 8, seed=1)] if count == 2 else []
    expected = run("MultiHeadAttention", [*query, *parts], {"num_heads": 2}).expected
    run("MultiHeadAttention", [*query, both], {"num_heads": 2}, expected=expected)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_tokens_without_padding(together: bool, bias: bool) -> None:
    """There is no CPU kernel: MultiHeadAttention of each sequence by itself is the oracle."""
    lengths = [4, 1, 3]
    starts = np.cumsum([0, *lengths]).astype(I32)
    operands = [floats(8, 8, seed=s) for s in range(3)]
    biases = floats(24, seed=3) if bias else None
    rows = []
    for start, end in zip(starts, starts[1:]):
        one = [x[None, start:end] for x in operands]
        rows.append(run("MultiHeadAttention", [*one, biases], {"num_heads": 2}).expected[0][0])
    offsets = np.zeros((3, 4), I32)  # where the tokens stood, which the result does not depend on
    query = [np.stack([x.reshape(8, 2, 4) for x in operands], 2), None, None] if together else operands
    inputs = [*query, biases, offsets, starts]
    run("PackedMultiHeadAttention", inputs, {"num_heads": 2}, expected=[np.concatenate(rows)])


# ---- RotaryEmbedding -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("part", [0, 4])
@pytest.mark.parametrize("rank", [3, 4])
def test_rotary_embedding(interleaved: int, offset: bool, part: int, rank: int) -> None:
    size = part or 8
    angles = np.random.default_rng(2).uniform(0, 6, (16, size // 2))
    caches = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
    places = np.array([3]) if offset else np.random.default_rng(3).integers(0, 16, (2, 5))
    x = floats(2, 5, 24) if rank == 3 else floats(2, 3, 5, 8)
    attrs = {"interleaved": interleaved} | ({"rotary_embedding_dim": part, "num_heads": 3} if part else {})
    ran = run("RotaryEmbedding", [x, places, *caches], attrs, initializers={2, 3})
    assert ("rotate_half" in ran.source) != bool(interleaved)
    assert list(ran.model.parameters()) == [], "tables of sines are not trained"
    run("RotaryEmbedding", [x, places, *caches], attrs | {"num_heads": 3}, dynamic=True)
