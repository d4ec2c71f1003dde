"""Operators for which onnxruntime has no kernel on CPUs, against what their documentation says, in numpy.

None of these was run against onnxruntime.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from tests.ops.fuzz import floats
from tests.ops.harness import Ran, node_model, refusal, run_model, run_node, run_onnxruntime

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
    ran = run("SwiGLU", inputs, attrs, [expected], **({} if dtype == np.float32 else {"rtol": 2e-3, "atol": 1e-3}))
    assert (".clamp(-0.5, 0.5)" in ran.forward) == (limit > 0)


def test_router() -> None:
    x, w = floats(2, 3, 6), floats(6, 4 + 2 * 5, seed=1)
    whole = x @ w
    gate, up = whole[..., 4:9], whole[..., 9:]
    expected = [whole[..., :4], gate * sigmoid(gate) * (up + 0.5)]
    ran = run("RouterGateUpProj", [x, w], {"router_size": 4, "activation_beta": 0.5}, expected, initializers={1})
    assert "nn.Linear(6, 14" in ran.source
    text = refusal("RouterGateUpProj", [x, w], {"router_size": 3}, domain="com.microsoft", outputs=2)
    assert "an even number of columns" in text


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
    assert "must be silu or swish, not 'gelu'" in text


@pytest.mark.parametrize("rank", [0, 5, 16])
def test_low_rank_factors(rank: int) -> None:
    x, base = floats(2, 3, 64), blocked(24, 64)
    down, up = blocked(rank or 4, 64, 8, seed=1), blocked(24, rank or 4, 8, seed=2)
    factors = [down[0][:rank], down[1], up[0] if rank else up[0][:, :0], up[1]]
    expected = base[2](x) + (up[2](down[2](x)) if rank else 0)
    attrs = {"K": 64, "N": 24}
    run("MatMulNBitsQLoRA", [x, *base[:2], *factors], attrs, [expected], initializers=set(range(1, 7)), rtol=1e-3)


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], F)
HALF: dict[str, Any] = {"rtol": 5e-3, "atol": 5e-3}


@pytest.mark.parametrize("columns, block", [(32, 16), (40, 16), (48, 128)])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_by_float8(columns: int, block: int, narrow: bool, biased: bool) -> None:
    x = floats(2, 3, columns).astype(np.float16)
    weight = floats(5, columns, seed=1).astype(ml_dtypes.float8_e4m3fn)
    scales = np.abs(floats(5, -(-columns // block), seed=2)) + F(0.1)
    bias = floats(5, seed=3).astype(np.float16) if biased else None
    step = np.array(0.05, F) if narrow else None
    whole = weight.astype(F) * np.repeat(scales, block, 1)[:, :columns]
    given = x.astype(F) if step is None else (x / step).astype(ml_dtypes.float8_e4m3fn).astype(F) * step
    expected = (given @ whole.T).astype(np.float16) + (0 if bias is None else bias)
    inputs = [x, weight, scales, step, bias]
    run("MatMulBlockQuantizedFp8Weight", inputs, {"block_size": block}, [expected], initializers={1, 2}, **HALF)


@pytest.mark.parametrize("columns, block", [(32, 16), (40, 16), (8, 4)])
def test_a_product_by_float4(columns: int, block: int) -> None:
    rng = np.random.default_rng(columns)
    packed = rng.integers(0, 256, (5, columns // 2)).astype(np.uint8)
    scales = np.abs(floats(5, -(-columns // block), seed=2)).astype(ml_dtypes.float8_e4m3fn)
    numbers = np.stack([FP4[packed & 15], FP4[packed >> 4]], -1).reshape(5, columns)
    whole = (numbers * F(0.3) * np.repeat(scales.astype(F), block, 1)[:, :columns]).astype(np.float16)
    x, bias = floats(2, columns).astype(np.float16), floats(5, seed=3).astype(np.float16)
    expected = (x.astype(F) @ whole.astype(F).T).astype(np.float16) + bias
    inputs = [x, packed, scales.view(np.uint8), np.array(0.3, F), None, bias]
    attrs = {"block_size": block}
    run("MatMulBlockQuantizedFp4Weight", inputs, attrs, [expected], initializers={1, 2, 3, 5}, **HALF)


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("activation", ["NONE", "RELU", "GELU"])
def test_a_product_of_narrow_floats(turned: int, activation: str) -> None:
    a, b = (
        floats(*s, seed=i).astype(ml_dtypes.float8_e4m3fn) for i, s in enumerate(((3, 4), (5, 4) if turned else (4, 5)))
    )
    c, scales = floats(3, 5, seed=3), [np.array(0.5, F), np.array(2.5, F)]
    made = 0.7 * (a.astype(F) * scales[0]) @ ((b.T if turned else b).astype(F) * scales[1]) + 0.5 * c
    erf = np.vectorize(math.erf)
    made = {"NONE": made, "RELU": np.maximum(made, 0), "GELU": made * 0.5 * (1 + erf(made / math.sqrt(2)))}[activation]
    attrs = {"alpha": 0.7, "beta": 0.5, "transB": turned, "activation": activation}
    run("GemmFloat8", [a, b, c, *scales], attrs, [made.astype(F)])
    text = refusal("GemmFloat8", [a, b, c, *scales, scales[0]], attrs, domain="com.microsoft")
    assert "scaleY" in text


# ---- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("stored", [False, True])
def test_a_low_rank_mix_of_streams(before: bool, stored: bool) -> None:
    branches, size, rank = 3, 4, 2
    streams, scale = floats(2, 5, branches * size), floats(branches * size, seed=1)
    down, up = floats(branches * size, rank, seed=2), floats(rank, branches * size, seed=3)
    inject = floats(branches * size, branches, seed=4)
    output, gate = (floats(2, 5, n, seed=n) for n in (size, branches))
    split = streams.reshape(2, 5, branches, size)
    total = split + gate[..., None] * output[..., None, :] if before else split
    hn = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-5) * scale.reshape(branches, size)
    flat = hn.reshape(2, 5, -1)
    inner = 1.5 * (flat @ down)
    gates = sigmoid((inner * sigmoid(inner)) @ up).reshape(hn.shape)
    expected = [0.5 * (hn * gates).sum(-2), sigmoid(flat @ inject / 2) * 3, total.reshape(streams.shape)]
    attrs = {"num_branches": branches, "silu_alpha": 1.5, "reduction_scale": 0.5, "gate_div": 2.0, "gate_mul": 3.0}
    inputs = [streams, scale, down, up, inject, *([output, gate] if before else [])]
    ran = run("HyperConnectionLowRankMix", inputs, attrs, expected, initializers={1, 2, 3, 4} if stored else set())
    assert not stored or ran.source.count("nn.Linear(") == 3


# ---- attention -------------------------------------------------------------------------------------------------------


def test_attention_of_one_query() -> None:
    """What Attention computes on the CPU is the oracle."""
    inputs = [floats(2, 1, 8), floats(8, 24, seed=1), floats(24, seed=2), np.ones((2, 4), I32), floats(2, 2, 2, 3, 4)]
    attrs = {"num_heads": 2}
    expected = run_node("Attention", inputs, attrs, outputs=2, domain="com.microsoft", rtol=1e-4, atol=1e-4).expected
    run("DecoderMaskedSelfAttention", inputs, attrs, expected, initializers={1, 2})
    text = refusal(
        "DecoderMaskedSelfAttention", inputs, attrs | {"past_present_share_buffer": 1}, domain="com.microsoft"
    )
    assert "the layout of CUDA's kernel" in text


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


def test_the_scale_of_an_activation_is_not_trained() -> None:
    """It says to which numbers is rounded, and no more; the scales of weights are trained."""
    weight = floats(5, 32, seed=1).astype(ml_dtypes.float8_e4m3fn)
    inputs = [floats(2, 32).astype(np.float16), weight, np.ones((5, 2), F), np.array([0.05], F)]
    model = node_model(
        "MatMulBlockQuantizedFp8Weight", inputs, {"block_size": 16}, initializers={1, 2, 3}, domain="com.microsoft"
    )
    names = {"i2": "layer.weight_scale", "i3": "layer.input_scale"}
    for stored in model.graph.initializer:
        stored.name = names.get(stored.name, stored.name)
    model.graph.node[0].input[:] = ["x", "i1", *names.values()]
    model.graph.node.insert(0, helper.make_node("Relu", ["i0"], ["x"]))
    trained = {name for name, _ in run_model(model, {"i0": inputs[0]}).model.named_parameters()}
    assert trained == {"layer.weight_scale"}
