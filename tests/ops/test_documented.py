"""Operators for which onnxruntime has no kernel on CPUs, against what their documentation says, in numpy.

None of these was run against onnxruntime.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.ops.fuzz import floats
from tests.ops.harness import Ran, node_model, refusal, run_node, run_onnxruntime

F, I32 = np.float32, np.int32


def run(op: str, inputs: list[Any], attrs: dict[str, Any], expected: list[Any], **kwargs: Any) -> Ran:
    kwargs = {"rtol": 1e-4, "atol": 1e-5, **kwargs}
    ran = run_node(op, inputs, attrs, outputs=len(expected), domain="com.microsoft", expected=expected, **kwargs)
    assert all(made.shape == np.shape(wanted) for made, wanted in zip(ran.outputs, expected))
    return ran


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


# ---- padding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[3, 1, 4], [4, 4], [0, 2], [1]])
@pytest.mark.parametrize("dynamic", [False, True])
def test_padding(lengths: list[int], dynamic: bool) -> None:
    batch, length = len(lengths), 4
    x = floats(batch, length, 5)
    kept = [(b, t) for b in range(batch) for t in range(lengths[b])]
    others = [(b, t) for b in range(batch) for t in range(lengths[b], length)]
    tokens = np.array([x[place] for place in kept]).reshape(-1, 5)
    offsets = np.array([b * length + t for b, t in kept + others], I32).reshape(batch, length)
    starts = np.array([0, *np.cumsum(lengths)], I32)
    expected = [tokens, offsets, starts, np.array([max(lengths)], I32)]
    run("RemovePadding", [x, np.array(lengths, I32)], {}, expected, dynamic=dynamic)
    whole = np.where(np.arange(length)[None, :, None] < np.array(lengths)[:, None, None], x, 0)
    run("RestorePadding", [tokens, offsets], {}, [whole.astype(F)], dynamic=dynamic)


# ---- gates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("attrs", [
    {}, {"activation_alpha": 1.702, "activation_beta": 1.0, "limit": 0.5}, {"limit": -1.0}, {"round_activation": 1},
])  # fmt: skip
def test_swiglu(dtype: Any, halves: bool, attrs: dict[str, Any]) -> None:
    gate, up = (floats(2, 3, 4, seed=s).astype(dtype) for s in (0, 1))
    g, u, limit = gate.astype(F), up.astype(F), attrs.get("limit", 0)
    if limit > 0:
        g, u = np.minimum(g, limit), np.clip(u, -limit, limit)
    made = g * sigmoid(attrs.get("activation_alpha", 1) * g)
    if attrs.get("round_activation"):
        made = made.astype(dtype).astype(F)
    expected = (made * (u + attrs.get("activation_beta", 0))).astype(dtype)
    inputs = [np.concatenate([gate, up], -1), None] if halves else [gate, up]
    run("SwiGLU", inputs, attrs, [expected], **({} if dtype == np.float32 else {"rtol": 2e-3, "atol": 1e-3}))


def test_router() -> None:
    x, w = floats(2, 3, 6), floats(6, 4 + 2 * 5, seed=1)
    whole = x @ w
    gate, up = whole[..., 4:9], whole[..., 9:]
    expected = [whole[..., :4], gate * sigmoid(gate) * (up + 0.5)]
    ran = run("RouterGateUpProj", [x, w], {"router_size": 4, "activation_beta": 0.5}, expected, initializers={1})
    assert "nn.Linear(6, 14" in ran.source
    text = refusal("RouterGateUpProj", [x, w], {"router_size": 3}, domain="com.microsoft", outputs=2)
    assert "odd number" in text


# ---- biases ----------------------------------------------------------------------------------------------------------


def bucket(distance: int, buckets: int, farthest: int, both: bool) -> int:
    """Of a key that is so far behind the query (below 0: before it)."""
    first = 0
    if both:
        buckets //= 2
        first, distance = (buckets if distance < 0 else 0), abs(distance)
    distance = max(distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    steps = F(np.log(F(distance) / F(exact))) / F(math.log(farthest / exact)) * F(buckets - exact)
    return first + min(exact + int(steps), buckets - 1)


@pytest.mark.parametrize("both", [0, 1])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("buckets, farthest, length", [(32, 128, 40), (8, 20, 25), (4, 3, 5)])
def test_relative_positions(both: int, stored: bool, buckets: int, farthest: int, length: int) -> None:
    table = floats(buckets, 3)
    by_head = table.reshape(3, buckets)  # one head after the other in memory, whatever the shape says
    expected = np.zeros((1, 3, length, length), F)
    for q in range(length):
        for k in range(length):
            expected[0, :, q, k] = by_head[:, bucket(q - k, buckets, farthest, bool(both))]
    inputs = [table, np.array(length, np.int64), np.array(length, np.int64)]
    attrs = {"max_distance": farthest, "is_bidirectional": both}
    ran = run("RelativePositionBias", inputs, attrs, [expected], initializers={0, 1, 2} if stored else set())
    assert len(list(ran.model.parameters())) == int(stored)


def test_relative_positions_of_no_buckets() -> None:
    inputs = [floats(2, 3), np.array(4, np.int64), np.array(4, np.int64)]
    text = refusal("RelativePositionBias", inputs, {"max_distance": 8, "is_bidirectional": 1}, domain="com.microsoft")
    assert "buckets" in text


@pytest.mark.parametrize("packed", [False, True])
def test_gated_relative_positions(packed: bool) -> None:
    batch, length, heads, size = 2, 3, 2, 4
    query, bias = floats(batch, length, heads * size), floats(heads * size, seed=1)
    position, weight, second = floats(1, heads, length, length, seed=2), floats(size, 6, seed=3), floats(6, seed=4)
    scale = floats(1, heads, 1, 1, seed=5)
    inputs = [query, bias, position, weight, second, scale, None]
    whole = query
    if packed:
        inputs[6] = np.array([[0, 1, 2], [3, 4, 5]], I32)
        inputs[0] = query.reshape(-1, heads * size)[:4]
        whole = np.concatenate([inputs[0], np.zeros((2, heads * size), F)]).reshape(query.shape)
    by_head = (whole + bias).reshape(batch, length, heads, size).transpose(0, 2, 1, 3)
    gates = sigmoid((by_head @ weight + second).reshape(batch, heads, length, 2, 3).sum(-1))
    expected = (gates[..., :1] * (gates[..., 1:] * scale - 1) + 2) * position
    run("GatedRelativePositionBias", inputs, {"num_heads": heads}, [expected])


# ---- products by weights of a few bits -------------------------------------------------------------------------------


def blocked(n: int, k: int, bits: int = 4, block: int = 32, seed: int = 0) -> tuple[Any, Any, Any]:
    """A weight as it is packed, its scales, and the product by it as onnxruntime has it."""
    rng = np.random.default_rng(seed)
    blocks = -(-k // block)
    packed = rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.1, (n, blocks)).astype(F)

    def product(x: Any) -> Any:
        attrs = {"K": k, "N": n, "bits": bits, "block_size": block}
        model = node_model("MatMulNBits", [x, packed, scales], attrs, domain="com.microsoft")
        return run_onnxruntime(model, {"i0": x, "i1": packed, "i2": scales})[0]

    return packed, scales, product


def normed(x: Any, scale: Any, epsilon: float) -> Any:
    return (x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale).astype(F)


@pytest.mark.parametrize("skipped", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_qkv(skipped: bool, biased: bool) -> None:
    x, skip, scale = floats(2, 3, 32), floats(2, 3, 32, seed=1), floats(32, seed=2)
    sizes, biases = (48, 16, 16), [floats(n, seed=n) if biased else None for n in (48, 16, 16)]
    parts = [blocked(n, 32, seed=i) for i, n in enumerate(sizes)]
    total = x + skip if skipped else x
    given = normed(total, scale, 1e-6)
    expected = [p[2](given) + (0 if b is None else b) for p, b in zip(parts, biases)]
    inputs = [x, skip if skipped else None, scale]
    for part, bias in zip(parts, biases):
        inputs += [part[0], part[1], bias]
    attrs = {"K": 32, "Nq": 48, "Nkv": 16, "block_size": 32}
    run("MatMulNBitsQkv", inputs, attrs, [*expected, *([total] if skipped else [])], initializers={3, 4, 6, 7, 9, 10})


@pytest.mark.parametrize("norm", ["", "norm", "skip"])
@pytest.mark.parametrize("biased", [False, True])
def test_gated_products(norm: str, biased: bool) -> None:
    x, skip, scale = floats(2, 3, 64), floats(2, 3, 64, seed=1), floats(64, seed=2)
    gate, up = blocked(24, 64), blocked(24, 64, seed=1)
    biases = [floats(24, seed=s) if biased else None for s in (3, 4)]
    total = x + skip if norm == "skip" else x
    given = normed(total, scale, 1e-5) if norm else total
    g, u = (p[2](given) + (0 if b is None else b) for p, b in zip((gate, up), biases))
    inputs = [x, skip if norm == "skip" else None, scale if norm else None]
    for part, bias in zip((gate, up), biases):
        inputs += [part[0], part[1], bias]
    attrs = {"K": 64, "N": 24, "block_size": 32, "activation": "silu"}
    expected = [g * sigmoid(g) * u, *([total] if norm == "skip" else [])]
    run("MatMulNBitsMlp", inputs, attrs, expected, initializers={3, 4, 6, 7}, atol=1e-4)
    text = refusal("MatMulNBitsMlp", inputs, attrs | {"activation": "gelu"}, domain="com.microsoft")
    assert "not silu" in text


@pytest.mark.parametrize("rank", [0, 5, 16])
def test_low_rank_factors(rank: int) -> None:
    x, base = floats(2, 3, 64), blocked(24, 64)
    down, up = blocked(rank or 4, 64, 8, seed=1), blocked(24, rank or 4, 8, seed=2)
    factors = [down[0][:rank], down[1], up[0] if rank else up[0][:, :0], up[1]]
    expected = base[2](x) + (up[2](down[2](x)) if rank else 0)
    attrs = {"K": 64, "N": 24}
    run("MatMulNBitsQLoRA", [x, *base[:2], *factors], attrs, [expected], initializers=set(range(1, 7)), rtol=1e-3)


# ---- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [None, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("attrs", [{}, {"isinf_only": 1}, {"isnan_only": 1}])
def test_all_finite(bad: float | None, attrs: dict[str, Any]) -> None:
    inputs = [floats(2, 3), floats(4, seed=1)]
    if bad is not None:
        inputs[1][2] = bad
    told = {"isinf_only": np.isinf, "isnan_only": np.isnan}.get(next(iter(attrs), ""), lambda x: ~np.isfinite(x))
    expected = np.array(not any(told(x).any() for x in inputs))
    run("IsAllFinite", inputs, attrs, [expected])
