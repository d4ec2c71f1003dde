"""Attention as onnxruntime fuses it, against onnxruntime: projections, heads, masks, caches, rotary embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.fuzz import floats
from tests.ops.harness import Ran, assert_same, node_model, refusal, run_model, run_node, run_onnxruntime

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
    assert "the number of heads must be at least 1, not 0" in refusal(
        "Attention", packed(), {"num_heads": 0}, domain="com.microsoft"
    )
    sizes = {"num_heads": 2, "qkv_hidden_sizes": [8, 16]}
    assert "must have 3 elements, not 2" in refusal("Attention", packed(), sizes, domain="com.microsoft")
    sizes = {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 12]}
    assert "one cache" in refusal("Attention", packed(8, 28), sizes, outputs=2, domain="com.microsoft")
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


# ---- any of all that there is ----------------------------------------------------------------------------------------


def some_mask(rng: np.random.Generator, batch: int, queries: int, keys: int) -> Any:
    """One of the forms of masks; every query sees a key, since scores of -10000 have few digits."""
    raw = (rng.random((batch, queries, keys)) < 0.7) | (np.arange(keys) == keys // 2)
    ends, starts = rng.integers(keys // 2 + 1, keys + 1, batch), np.arange(batch + 1) * keys
    forms = [raw, raw[:, 0], ends, np.concatenate([ends, starts, starts]), None]
    form: Any = forms[rng.integers(len(forms))]
    return None if form is None else form.astype(I32)


def some_options(rng: np.random.Generator) -> dict[str, Any]:
    options = {"scale": 0.3, "unidirectional": 1, "mask_filter_value": -3.0}
    return {name: value for name, value in options.items() if rng.random() < 0.4}


@pytest.mark.parametrize("seed", range(30))
def test_any_multi_head_attention(seed: int) -> None:
    """Causal attention to more or fewer keys, too: onnxruntime lets the last query see all of them."""
    rng = np.random.default_rng(seed)
    batch, heads, size = (int(rng.choice(c)) for c in ([1, 2], [1, 2, 4], [4, 8]))
    queries, past = int(rng.choice([1, 3, 5])), int(rng.choice([0, 4]))
    keys = queries if past or rng.random() < 0.5 else int(rng.choice([2, 4, 6]))
    inputs: list[Any] = [
        floats(batch, queries, heads * size, seed=1),
        *[floats(batch, keys, heads * size, seed=s) for s in (2, 3)],
    ]
    is_split = not past and rng.random() < 0.3
    if is_split:
        inputs[1:] = [floats(batch, heads, keys, size, seed=s) for s in (2, 3)]
    inputs.append(floats(3 * heads * size, seed=4) if not is_split and rng.random() < 0.4 else None)
    shape = (int(rng.choice([1, batch])), int(rng.choice([1, heads])), queries, past + keys)
    inputs += [some_mask(rng, batch, queries, past + keys), floats(*shape, seed=5) if rng.random() < 0.3 else None]
    inputs += [floats(batch, heads, past, size, seed=s) for s in (6, 7)] if past else []
    run("MultiHeadAttention", inputs, {"num_heads": heads} | some_options(rng), outputs=3)


@pytest.mark.parametrize("seed", range(20))
def test_any_attention(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch, heads, size, past = (int(rng.choice(c)) for c in ([1, 2], [1, 2, 4], [4, 8], [0, 3]))
    queries, values = int(rng.choice([1, 3, 5])), size + (4 if not past and rng.random() < 0.3 else 0)
    columns = heads * (2 * size + values)
    inputs: list[Any] = [floats(batch, queries, 8), floats(8, columns, seed=1) * 0.5, floats(columns, seed=2)]
    inputs.append(some_mask(rng, batch, queries, past + queries))
    shape = (int(rng.choice([1, batch])), int(rng.choice([1, heads])), queries, queries)
    inputs.append(floats(2, batch, heads, past, size, seed=3) if past else None)
    inputs.append(floats(*shape, seed=4) if not past and rng.random() < 0.4 else None)
    sizes = [heads * size, heads * size, heads * values]
    attrs = {"num_heads": heads} | some_options(rng) | ({"qkv_hidden_sizes": sizes} if values != size else {})
    run("Attention", inputs, attrs, outputs=2 if past else 1, initializers={1, 2})


@pytest.mark.parametrize("queries", [1, 3])
def test_scores_as_an_output(queries: int) -> None:
    """Of the kind that Whisper's alignment needs: its type is not inferred, so the file states it."""
    operands = [floats(2, n, 8, seed=s) for s, n in enumerate((queries, 5, 5))]
    mask, bias = some_mask(np.random.default_rng(3), 2, queries, 5), floats(1, 2, queries, 5, seed=4)
    for inputs in ([*operands], [*operands, None, mask, bias]):
        for causal in (0, 1):
            attrs = {"num_heads": 2, "unidirectional": causal}
            model = node_model("MultiHeadAttention", inputs, attrs, outputs=4, domain="com.microsoft")
            model.graph.output[3].type.tensor_type.elem_type = 1
            feeds = {f"i{n}": v for n, v in enumerate(inputs) if v is not None}
            for made, expected in zip(run_model(model, feeds).outputs, run_onnxruntime(model, feeds), strict=True):
                assert_same(made, expected, 1e-4, 1e-4)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("new", [1, 2])
def test_a_cache_that_has_room(masked: bool, new: int) -> None:
    """It keeps its length, and what lies behind; `past_sequence_length` says how much of it is used."""
    operands, past = [floats(2, new, 8, seed=s) for s in range(3)], [floats(2, 2, 8, 4, seed=s) for s in (3, 4)]
    mask = np.array([[1, 0, 1, 1, 1], [1, 1, 1, 1, 0]], I32)[:, : 3 + new] if masked else None
    bias, length = floats(24, seed=5), np.array([3], I32)
    attrs = {"num_heads": 2, "scale": 0.4}
    inputs = [*operands, bias, mask, None, *past, length]
    run("MultiHeadAttention", inputs, attrs | {"unidirectional": 1}, outputs=3)
    if new == 1:
        inputs = [*operands, mask, None, *past, length, None, None, bias]
        run("DecoderMaskedMultiHeadAttention", inputs, attrs | {"past_present_share_buffer": 1}, outputs=3)
        run("DecoderMaskedMultiHeadAttention", [operands[0], *past], attrs)


def test_searches_are_refused() -> None:
    inputs = [*[floats(2, 1, 8)] * 3, None, None, *[floats(2, 2, 8, 4)] * 2, np.array([3], I32), np.array([1], I32)]
    attrs = {"num_heads": 2, "past_present_share_buffer": 1}
    text = refusal(
        "DecoderMaskedMultiHeadAttention", [*inputs, np.zeros((2, 1, 8), I32)], attrs, domain="com.microsoft"
    )
    assert "without the search" in text
    assert "packed" in refusal("DecoderMaskedMultiHeadAttention", inputs[:1], attrs, domain="com.microsoft")


def test_projections_without_padding() -> None:
    """There is no CPU kernel: Attention of each sequence by itself is the oracle."""
    starts = np.array([0, 4, 5, 8], I32)
    x, weights, bias = floats(8, 8), floats(8, 28, seed=1) * 0.5, floats(28, seed=2)
    attrs = {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 12], "scale": 0.4}
    rows = [run("Attention", [x[None, a:b], weights, bias], attrs).expected[0][0] for a, b in zip(starts, starts[1:])]
    inputs = [x, weights, bias, np.zeros((3, 4), I32), starts]
    ran = run("PackedAttention", inputs, attrs, expected=[np.concatenate(rows)], initializers={1, 2})
    assert "nn.Linear(8, 28)" in ran.source


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
    if not part:  # read by onnxruntime, to no effect
        run("RotaryEmbedding", [x, places, *caches], attrs | {"scale": 2.0, "is_packed_batching": 1})


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("rank, part", [(3, 0), (4, 0), (4, 8), (3, 8)])
def test_three_positions(interleaved: int, layout: int, rank: int, part: int) -> None:
    angles = np.random.default_rng(2).uniform(0, 6, (16, part // 2 or 8))
    caches = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
    x = floats(2, 5, 48) if rank == 3 else floats(2, 3, 5, 16)
    places = np.random.default_rng(3).integers(0, 16, (3, 2, 5))
    sections = [2, 1, 1] if part else [4, 2, 2]
    attrs = {"mrope_section": sections, "mrope_layout": layout, "interleaved": interleaved, "num_heads": 3}
    run("MRotaryEmbedding", [x, places, *caches], attrs | ({"rotary_embedding_dim": part} if part else {}))
