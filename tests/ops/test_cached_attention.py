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

from onnxgen.helpers.cached_attention import group_query_attention, rotate_positions
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


def test_norms_of_heads() -> None:
    """The CPU kernel has none: SimplifiedLayerNormalization before it, of each head, is the oracle."""
    inputs, weights = grouped(5, 0), [floats(16, seed=5), floats(16, seed=6)]
    normed = []
    for x, weight in zip(inputs, weights):
        heads = x.reshape(2, 5, -1, 16)
        attrs = {"epsilon": 1e-3, "axis": -1}
        ran = run_node("SimplifiedLayerNormalization", [heads, weight], attrs, rtol=1e-4, atol=1e-5)
        normed.append(ran.expected[0].reshape(x.shape))
    rotary = {"do_rotary": 1}
    expected = run([*normed, *inputs[2:], *caches()], rotary).expected
    whole = [*inputs, *caches(), *[None] * 5, *weights]
    ran = run(whole, rotary | {"qk_norm_epsilon": 1e-3}, expected=expected, initializers={14, 15})
    assert len(list(ran.model.parameters())) == 2


def test_nonsense_is_refused() -> None:
    def refused(**attrs: Any) -> str:
        return refusal("GroupQueryAttention", grouped(5, 0), HEADS | attrs, outputs=3, domain="com.microsoft")

    assert "kv_num_heads 0" in refused(kv_num_heads=0)
    assert "local_window_size 0 is 0" in refused(local_window_size=0)
    assert "cos_cache" in refused(do_rotary=1)
    assert "sliding_window_cache needs past_key" in refused(sliding_window_cache=1)


def test_gradients() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, h, 3, 4, dtype=torch.float64, requires_grad=True) for h in (4, 2, 2))
    cos, sin = (torch.randn(4, 2, dtype=torch.float64) for _ in range(2))
    lengths, sink = torch.tensor([3]), torch.randn(4, dtype=torch.float64, requires_grad=True)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        turned = rotate_positions(q, cos, sin, torch.arange(3)[None], False)
        return group_query_attention(turned, k, v, lengths, softcap=3.0, sink=sink)

    assert torch.autograd.gradcheck(attend, (q, k, v, sink))
