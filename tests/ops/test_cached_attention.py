"""GroupQueryAttention, whose cache has rows of several lengths, against onnxruntime.

In a prompt with padding, onnxruntime leaves scores of the padding as they lay in memory, and of queries that are
padding it computes one thing or another with a window: neither is compared.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from onnxgen.microsoft.helpers.cached_attention import group_query_attention, rotate_positions
from tests.ops.fuzz import floats
from tests.ops.harness import Ran, assert_same, node_model, refusal, run_model, run_node, run_onnxruntime

F, I32 = np.float32, np.int32
HEADS = {"num_heads": 4, "kv_num_heads": 2}


def run(inputs: list[Any], attrs: dict[str, Any] | None = None, outputs: int = 3, **kwargs: Any) -> Ran:
    kwargs = {"rtol": 1e-4, "atol": 1e-4, "domain": "com.microsoft", **kwargs}
    return run_node("GroupQueryAttention", inputs, HEADS | (attrs or {}), outputs=outputs, **kwargs)


def caches(length: int = 32, half: int = 8) -> list[Any]:
    angles = np.random.default_rng(1).uniform(0, 6, (length, half))
    return [np.cos(angles).astype(F), np.sin(angles).astype(F)]


def grouped(
    new: int, past: int, batch: int = 2, lengths: list[int] | None = None, packed: bool = False, size: int = 16
) -> list[Any]:
    """4 heads of queries, 2 of keys."""
    x = [floats(batch, new, heads * size, seed=s) for s, heads in enumerate((4, 2, 2))]
    query = [np.concatenate(x, -1), None, None] if packed else x
    cache = [floats(batch, 2, past, size, seed=s) for s in (3, 4)] if past else [None, None]
    counts = np.array(lengths or [new + past] * batch, I32) - 1
    return [*query, *cache, counts, np.array(new + past, I32)]


# ---- any of all that there is ----------------------------------------------------------------------------------------


def drawn_lengths(draw: random.Random) -> tuple[int, int, int, list[int]]:
    """New keys, the keys that the cache has room for (0 for none), the keys there are in all, and those of each row."""
    batch, kind = draw.choice([1, 2, 3]), draw.choice(["prompt", "step", "chunk", "prompt with room"])
    if kind == "step":
        past = draw.choice([3, 6])
        lengths = [draw.randint(2, past + 1) for _ in range(batch)]
        return 1, past + draw.choice([0, 3]), max(lengths), lengths
    new = draw.choice([2, 5])
    if kind == "chunk":  # onnxruntime takes one row only
        past = draw.choice([3, 6])
        return new, past + draw.choice([0, new, new + 3]), past + new, [past + new]
    room = 0 if kind == "prompt" else new + draw.choice([0, 3])
    return new, room, new, [draw.choice([new, draw.randint(1, new)]) for _ in range(batch)]


def drawn(draw: random.Random) -> tuple[list[Any], dict[str, Any], list[int]]:
    """Inputs and attributes, and the lengths of rows."""
    new, room, total, lengths = drawn_lengths(draw)
    batch, size, (heads, shared) = len(lengths), draw.choice([16, 32]), draw.choice([(4, 2), (4, 4), (4, 1)])
    rng = np.random.default_rng(draw.randrange(10**6))

    def some(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(F)

    query: list[Any] = [some(batch, new, n * size) for n in (heads, shared, shared)]
    query = draw.choice([query, [np.concatenate(query, -1), None, None]])
    cache = [some(batch, shared, room, size), some(batch, shared, room, size)] if room else [None, None]
    inputs = [*query, *cache, np.array(lengths, I32) - 1, np.array(total, I32).reshape(draw.choice([(), (1,)]))]
    attrs: dict[str, Any] = {"num_heads": heads, "kv_num_heads": shared}
    if draw.random() < 0.5:
        places = rng.integers(0, 24, (batch, new))
        inputs += [*caches(half=draw.choice([8, size // 2])), draw.choice([None, places])]
        attrs |= {"do_rotary": 1, "rotary_interleaved": draw.randint(0, 1)}
    inputs += [None] * (10 - len(inputs))
    inputs.append(some(draw.choice([1, batch]), draw.choice([1, heads]), new, total) if draw.random() < 0.3 else None)
    inputs.append(some(heads) if draw.random() < 0.2 else None)
    options = {"softcap": 2.0, "scale": 0.3, "smooth_softmax": draw.choice([0, 1])}
    attrs |= {name: value for name, value in options.items() if draw.random() < 0.3}
    if draw.random() < 0.3:
        attrs |= draw.choice([{"causal": 0}, {"local_window_size": 1}, {"local_window_size": 3}])
    return inputs, attrs | ({"qk_output": draw.choice([1, 2])} if draw.random() < 0.2 else {}), lengths


@pytest.mark.parametrize("seed", range(80))
def test_drawn(seed: int) -> None:
    inputs, attrs, lengths = drawn(random.Random(seed))
    count = 4 if "qk_output" in attrs else 3
    model = node_model("GroupQueryAttention", inputs, attrs, outputs=count, domain="com.microsoft")
    feeds = {f"i{n}": v for n, v in enumerate(inputs) if v is not None}
    expected = run_onnxruntime(model, feeds)
    made = run_model(model, feeds).outputs
    new = inputs[0].shape[1]
    for row, length in enumerate(lengths):
        real = min(new, length)
        assert_same(made[0][row, :real], expected[0][row, :real], 1e-4, 1e-4)
        if count == 4:
            assert_same(made[3][row, :, :real, :length], expected[3][row, :, :real, :length], 1e-4, 1e-4)
    for a, e in zip(made[1:3], expected[1:3]):
        assert_same(a, e, 1e-5, 1e-5)


# ---- chunks whose ends are padding -----------------------------------------------------------------------------------


def some_cache(rng: np.random.Generator, shape: tuple[int, ...], bits: int) -> list[Any]:
    """Keys and values: floats (0 bits), or integers of so many bits."""
    if not bits:
        return [rng.standard_normal(shape).astype(F) for _ in "kv"]
    shape = (*shape[:-1], shape[-1] * bits // 8)
    return [rng.integers(0, 256, shape).astype(np.uint8).view("int8" if bits == 8 else "uint8") for _ in "kv"]


def drawn_counts(draw: random.Random) -> tuple[int, int, int, list[tuple[int, int]], dict[str, Any]]:
    """New tokens, padding included; room; a bound of the keys in all; of each row its keys before, and its new ones."""
    new, is_sliding = draw.choice([1, 2, 4, 5]), draw.random() < 0.4
    rows = []
    for _ in range(draw.choice([1, 2, 3])):
        before = draw.choice([0, draw.randint(0, 12)])
        rows.append((before, draw.choice([new, draw.randint(0 if before else 1, new)])))
    attrs: dict[str, Any] = {}
    if draw.random() < 0.6 or is_sliding:
        attrs = {"local_window_size": draw.choice([1, 2, 3, 5])}
    most = max(new, max(map(sum, rows)))
    if is_sliding:
        room = attrs["local_window_size"] + draw.choice([0, 1, 4])
        return new, room, most + draw.choice([0, 3]), rows, attrs | {"sliding_window_cache": 1}
    needed = new + max(before for before, _ in rows)
    if draw.random() < 0.5:  # a cache that has the room, or grows
        return new, needed + draw.choice([0, 3]), most, rows, attrs
    return new, max(1, needed - new) + draw.choice([0, 1]), needed + draw.choice([0, 2]), rows, attrs


def drawn_chunk(draw: random.Random) -> tuple[list[Any], dict[str, Any], list[tuple[int, int]]]:
    """Inputs, whose padding means nothing, attributes, and of each row the keys before and the new ones."""
    new, room, total, rows, attrs = drawn_counts(draw)
    batch, size, (heads, shared) = len(rows), draw.choice([16, 32]), draw.choice([(4, 2), (4, 4), (4, 1)])
    rng, bits = np.random.default_rng(draw.randrange(10**6)), draw.choice([0, 0, 0, 8, 4])
    size = 32 if bits == 4 else size  # that a cache of the last keys asks for
    query: list[Any] = [rng.standard_normal((batch, new, n * size)).astype(F) for n in (heads, shared, shared)]
    for row, (_, count) in enumerate(rows):
        for x in query:
            x[row, count:] = np.nan
    query = draw.choice([query, [np.concatenate(query, -1), None, None]])
    lengths = [sum(row) for row in rows]
    inputs = [*query, *some_cache(rng, (batch, shared, room, size), bits), np.array(lengths, I32) - 1]
    inputs.append(np.array(total, I32).reshape(draw.choice([(), (1,)])))
    attrs |= {"num_heads": heads, "kv_num_heads": shared}
    if not bits and draw.random() < 0.6:  # angles that differ in the last place would round to another integer
        places = rng.integers(0, total, (batch, new))
        for row, (_, count) in enumerate(rows):
            places[row, count:] = draw.choice([0, -1, 99])
        inputs += [*caches(total, draw.choice([8, size // 2])), draw.choice([None, places])]
        attrs |= {"do_rotary": 1, "rotary_interleaved": draw.randint(0, 1)}
    inputs += [None] * (10 - len(inputs))
    bias = rng.standard_normal((draw.choice([1, batch]), draw.choice([1, heads]), new, total)).astype(F)
    inputs += [bias if draw.random() < 0.3 else None, floats(heads) if draw.random() < 0.2 else None]
    if bits:
        kind = draw.choice(["PER_TENSOR", "PER_CHANNEL"])
        shape = (1, shared, 1, size) if kind == "PER_CHANNEL" else (1,)
        inputs += [rng.uniform(0.1, 0.4, shape).astype(F) for _ in "kv"]
        attrs |= {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": bits}
    options = {"softcap": 2.0, "scale": 0.3, "smooth_softmax": 1}
    attrs |= {name: value for name, value in options.items() if draw.random() < 0.3}
    if "sliding_window_cache" not in attrs and not bits and draw.random() < 0.2:
        attrs["qk_output"] = draw.choice([1, 2])
    return [*inputs, *[None] * (16 - len(inputs)), np.array([count for _, count in rows], I32)], attrs, rows


@pytest.mark.parametrize("seed", range(120))
def test_padded_chunks(seed: int) -> None:
    """Of each row what is specified: results of its own queries, and the keys that there are."""
    inputs, attrs, rows = drawn_chunk(random.Random(seed))
    count = 4 if "qk_output" in attrs else 3
    model = node_model("GroupQueryAttention", inputs, attrs, outputs=count, domain="com.microsoft")
    feeds = {f"i{n}": v for n, v in enumerate(inputs) if v is not None}
    expected, made = run_onnxruntime(model, feeds), run_model(model, feeds).outputs
    room, window = inputs[3].shape[2], attrs.get("local_window_size", 0)
    for a, e in zip(made, expected):
        assert a.shape == e.shape
    for row, (before, new) in enumerate(rows):
        kept = length = before + new
        if "sliding_window_cache" in attrs and length > room:
            kept -= (room - window + 1) * -(-(length - room) // (room - window + 1))
        assert_same(made[0][row, :new], expected[0][row, :new], 1e-4, 1e-4)
        for a, e in zip(made[1:3], expected[1:3]):
            assert_same(a[row, :, :kept], e[row, :, :kept], *((0, 0) if a.dtype != F else (1e-5, 1e-5)))
        if count == 4:
            assert_same(made[3][row, :, :new, :length], expected[3][row, :, :new, :length], 1e-4, 1e-4)


# ---- one at a time ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("new, past", [(5, 0), (1, 6)])
@pytest.mark.parametrize("rotary", [0, 1])
def test_nothing_is_trained(new: int, past: int, rotary: int) -> None:
    inputs = [*grouped(new, past), *(caches() if rotary else [])]
    ran = run(inputs, {"do_rotary": rotary}, initializers={7, 8} if rotary else set())
    assert list(ran.model.parameters()) == []


def test_a_stored_sink() -> None:
    ran = run([*grouped(5, 0), None, None, None, None, floats(4, seed=9)], initializers={11})
    assert [p.shape for p in ran.model.parameters()] == [(4,)]


def test_keys_of_another_layer() -> None:
    """No new keys: all are in the cache."""
    inputs = grouped(3, 0, batch=1)
    inputs[1:5] = [np.zeros((1, 0, 32), F)] * 2 + [floats(1, 2, 8, 16, seed=s) for s in (3, 4)]
    inputs[5], inputs[6] = np.array([7], I32), np.array(8, I32)
    run(inputs)
    run([*inputs, *caches()], {"do_rotary": 1, "local_window_size": 2})


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize("new, past, lengths", [(1, 6, [7, 4]), (3, 4, [7])])
def test_a_quantised_cache(bits: int, kind: str, new: int, past: int, lengths: list[int]) -> None:
    """Integers are equal."""
    rng = np.random.default_rng(0)
    inputs = grouped(new, 0, len(lengths), lengths)
    shape = (len(lengths), 2, past, 16 if bits == 8 else 8)
    inputs[3:5] = [rng.integers(0, 256, shape).astype(np.uint8).view("int8" if bits == 8 else "uint8")] * 2
    inputs[6] = np.array(new + past, I32)
    scales = [rng.uniform(0.1, 0.4, (1, 2, 1, 16) if kind == "PER_CHANNEL" else 1).astype(F) for _ in "kv"]
    attrs = {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": bits}
    ran = run([*inputs, *[None] * 5, *scales], attrs)
    assert ran.outputs[1].dtype == inputs[3].dtype
    text = refusal("GroupQueryAttention", inputs, HEADS | attrs, domain="com.microsoft")
    assert "has no scale" in text


@pytest.mark.parametrize("window, room", [(3, 3), (3, 5), (4, 7)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_cache_of_the_last_keys(window: int, room: int, biased: bool) -> None:
    """Step by step, rows of two lengths: the cache of a step is that of the next; a prompt that is longer than it."""
    attrs = {"local_window_size": window, "sliding_window_cache": 1}
    past = [np.zeros((2, 2, room, 16), F)] * 2
    for step, lengths in enumerate([[9, 9], [4, 2], [5, 3], [6, 4], [7, 5], [8, 6]]):
        inputs = grouped(1 if step else 9, 0, lengths=lengths)
        inputs[3:5], inputs[6] = past, np.array(max(lengths), I32)
        if biased:
            inputs += [None, None, None, floats(1, 4, inputs[0].shape[1], max(lengths))]
        ran = run_node("GroupQueryAttention", inputs, HEADS | attrs, outputs=3, domain="com.microsoft", compare=False)
        model = node_model("GroupQueryAttention", inputs, HEADS | attrs, outputs=3, domain="com.microsoft")
        expected = run_onnxruntime(model, {f"i{n}": v for n, v in enumerate(inputs) if v is not None})
        for row, length in enumerate(lengths):
            assert_same(ran.outputs[0][row, :length], expected[0][row, :length], 1e-4, 1e-4)
        past, group = expected[1:], room - window + 1
        for row, length in enumerate(lengths):
            kept = length if length <= room else length - group * -(-(length - room) // group)
            for made, wanted in zip(ran.outputs[1:], past):  # what lies behind those is unspecified
                assert_same(made[row, :, :kept], wanted[row, :, :kept], 0, 0)


EPSILONS = [
    ({"qk_norm_epsilon": 1e-3}, (1e-3, 1e-3)),
    ({"qk_norm_epsilon": 1e-3, "q_norm_epsilon": 0.1}, (0.1, 1e-3)),
    ({"qk_norm_epsilon": 1e-3, "k_norm_epsilon": 0.1}, (1e-3, 0.1)),
    ({"k_norm_epsilon": 0.1}, (1e-6, 0.1)),
    ({"q_norm_epsilon": 0.1, "k_norm_epsilon": 0.2}, (0.1, 0.2)),
]


@pytest.mark.parametrize("said, meant", EPSILONS)
def test_norms_of_heads(said: dict[str, float], meant: tuple[float, float]) -> None:
    """The CPU kernel has none: SimplifiedLayerNormalization before it, of each head, is the oracle."""
    inputs, weights = grouped(5, 0), [floats(16, seed=5), floats(16, seed=6)]
    normed = []
    for x, weight, epsilon in zip(inputs, weights, meant):
        heads = x.reshape(2, 5, -1, 16)
        attrs = {"epsilon": epsilon, "axis": -1}
        ran = run_node("SimplifiedLayerNormalization", [heads, weight], attrs, rtol=1e-4, atol=1e-5)
        normed.append(ran.expected[0].reshape(x.shape))
    rotary = {"do_rotary": 1}
    expected = run([*normed, *inputs[2:], *caches()], rotary).expected
    whole = [*inputs, *caches(), *[None] * 5, *weights]
    ran = run(whole, rotary | said, expected=expected, initializers={14, 15})
    assert len(list(ran.model.parameters())) == 2


def test_nonsense_is_refused() -> None:
    def refused(**attrs: Any) -> str:
        return refusal("GroupQueryAttention", grouped(5, 0), HEADS | attrs, outputs=3, domain="com.microsoft")

    assert "kv_num_heads 0" in refused(kv_num_heads=0)
    assert "local_window_size is 0" in refused(local_window_size=0)
    assert "cos_cache" in refused(do_rotary=1)
    assert "sliding_window_cache needs past_key" in refused(sliding_window_cache=1)
    norms = [*grouped(5, 0), *[None] * 7, floats(16), floats(16)]
    for epsilon in (-1.0, float("inf"), float("nan")):
        text = refusal("GroupQueryAttention", norms, HEADS | {"k_norm_epsilon": epsilon}, domain="com.microsoft")
        assert f"norm of k must be finite and not negative, but is {epsilon}" in text


def test_padding_that_cannot_be() -> None:
    """onnxruntime refuses these, too, when it runs them."""

    def refused(inputs: list[Any], **attrs: Any) -> str:
        whole = [*inputs, *[None] * 9, np.array([2, 1], I32)]
        return refusal("GroupQueryAttention", whole, HEADS | attrs, outputs=3, domain="com.microsoft")

    assert "causal=1, a cache" in refused(grouped(2, 5), causal=0)
    assert "causal=1, a cache" in refused(grouped(2, 0))
    inputs = grouped(2, 5)
    inputs[1:3] = [x[:, :1] for x in inputs[1:3]]
    assert "as many new keys as queries" in refused(inputs)


def test_gradients() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, h, 3, 4, dtype=torch.float64, requires_grad=True) for h in (4, 2, 2))
    cos, sin = (torch.randn(4, 2, dtype=torch.float64) for _ in range(2))
    lengths, sink = torch.tensor([3]), torch.randn(4, dtype=torch.float64, requires_grad=True)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        turned = rotate_positions(q, cos, sin, torch.arange(3)[None], False)
        return group_query_attention(turned, k, v, lengths, softcap=3.0, sink=sink)

    assert torch.autograd.gradcheck(attend, (q, k, v, sink))
