"""Attention for which onnxruntime has no kernel on CPUs, against what its documentation says, in numpy.

None of these was run against onnxruntime.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ops.fuzz import floats
from tests.ops.harness import refusal
from tests.ops.test_documented import HALF, I32, F, run

# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op, out", [
    ("ConvStateReplay", "keep the state in Python"),
    ("GatedDeltaNetStateReplay", "keep the state in Python"),
    ("SpeculativePrefixCommit", "keep the state in Python"),
    ("SparseAttentionIndexer", "without a cache"),
    ("PackedSparseAttentionIndexer", "without a cache"),
])  # fmt: skip
def test_a_state_of_a_server_is_refused(op: str, out: str) -> None:
    text = refusal(op, [floats(1)], domain="com.microsoft")
    assert f"com.microsoft.{op}" in text and "node" in text and out in text, text


# ---- Longformer ------------------------------------------------------------------------------------------------------


def heads_of(x: Any, heads: int) -> Any:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def attend(q: Any, k: Any, v: Any, shown: Any, added: Any = 0.0, scale: float | None = None) -> Any:
    """One softmax over what is shown of [..., queries, keys]."""
    scores = q @ np.swapaxes(k, -1, -2) * (scale or 1 / math.sqrt(q.shape[-1])) + added
    weights = np.where(shown, np.exp(scores - np.where(shown, scores, -np.inf).max(-1, keepdims=True)), 0)
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("window, globals_", [(2, [0]), (1, [0, 5]), (2, []), (4, [3])])
@pytest.mark.parametrize("stored", [False, True])
def test_longformer(dtype: Any, window: int, globals_: list[int], stored: bool) -> None:
    batch, length, heads, size = 2, 8, 2, 3
    x = floats(batch, length, heads * size)
    weights = [floats(heads * size, 3 * heads * size, seed=s) / 2 for s in (1, 2)]
    biases = [floats(3 * heads * size, seed=s) for s in (3, 4)]
    mask = np.zeros((batch, length), F)
    mask[1, 6:] = -10000
    flags = np.zeros((batch, length), I32)
    flags[0, globals_] = 1
    expected = np.zeros((batch, heads, length, size), F)
    for b in range(batch):
        local, wide = (np.split(x[b : b + 1] @ w + a, 3, -1) for w, a in zip(weights, biases))
        for t in range(length):
            if mask[b, t] < 0:
                continue
            seen = [
                j for j in range(length) if mask[b, j] == 0 and (flags[b, t] or abs(t - j) <= window or flags[b, j])
            ]
            q, k, v = (heads_of(p, heads)[0] for p in (wide if flags[b, t] else local))
            expected[b, :, t : t + 1] = attend(q[:, t : t + 1], k[:, seen], v[:, seen], True)
    whole = expected.transpose(0, 2, 1, 3).reshape(x.shape)
    inputs = [x, weights[0], biases[0], mask, weights[1], biases[1]]
    inputs = [*(i.astype(dtype) for i in inputs), flags]
    kwargs = {"initializers": {1, 2, 4, 5} if stored else set()} | ({} if dtype == F else HALF)
    ran = run("LongformerAttention", inputs, {"num_heads": heads, "window": window}, [whole.astype(dtype)], **kwargs)
    assert ran.source.count("nn.Linear(") == 2 * stored


# ---- BART's decoder --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("state, past", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("masked", [False, True])
def test_decoder_attention(static: bool, state: bool, past: bool, masked: bool) -> None:
    batch, new, kept, heads, size = 2, 2, 3, 2, 4
    width = heads * size
    query, key = floats(new, batch, width), floats(5, batch, width, seed=1)
    wq, wkv, bias = floats(width, width, seed=2), floats(width, 2 * width, seed=3), floats(3 * width, seed=4)
    caches = [floats(batch, heads, kept, size, seed=s) for s in (5, 6)]
    first = lambda x: np.swapaxes(x, 0, 1)  # noqa: E731
    q = heads_of(first(query @ wq + bias[:width]), heads)
    k, v = (heads_of(p, heads) for p in np.split(first((key if static else query) @ wkv + bias[width:]), 2, -1))
    if state and past:
        k, v = caches if static else (np.concatenate([c, x], 2) for c, x in zip(caches, (k, v)))
    hidden = np.zeros((batch, k.shape[2]), bool)
    hidden[1, :1] = masked
    y = attend(q, k, v, ~hidden[:, None, None])
    expected = [y.transpose(2, 0, 1, 3).reshape(query.shape), *([k, v] if state else [])]
    flags = [np.array([f]) for f in (static, past, state, masked)]
    inputs = [query, key, wq, wkv, bias, hidden if masked else None, *(caches if state and past else [None, None])]
    ran = run(
        "DecoderAttention", [*inputs, *flags], {"num_heads": heads}, expected, initializers={2, 3, 4, 8, 9, 10, 11}
    )
    assert {tuple(p.shape) for p in ran.model.parameters()} <= {
        (width, width),
        (2 * width, width),
        (width,),
        (2 * width,),
    }


def test_decoder_attention_is_refused() -> None:
    inputs = [floats(2, 2, 4), floats(3, 2, 4), floats(4, 4), floats(4, 8), floats(12), None, None, None]
    flags = [np.array([f]) for f in (True, True, True, False)]
    kwargs: dict[str, Any] = {"domain": "com.microsoft", "outputs": 3}
    text = refusal("DecoderAttention", [*inputs, *flags], {"num_heads": 2}, **kwargs)
    assert "only at run time" in text and "make the flag a constant" in text
    text = refusal("DecoderAttention", [*inputs, *flags], {"num_heads": 2}, initializers=range(8, 12), **kwargs)
    assert "the cache or the mask that the flags ask for is missing" in text


# ---- norms with rotation ---------------------------------------------------------------------------------------------


def coarse(x: Any) -> Any:
    """Rounded to bfloat16."""
    return x.astype(ml_dtypes.bfloat16).astype(F)


@pytest.mark.parametrize("types", ["bbb", "bfb", "hbb", "bbh", "hfh"])  # of the input, the tables and the result
@pytest.mark.parametrize("prompt, exact", [(None, 1), (0, 0), (0, 1), (1, 1)])
def test_a_norm_and_a_rotation(types: str, prompt: int | None, exact: int) -> None:
    source, table, result = ({"b": ml_dtypes.bfloat16, "f": F, "h": np.float16}[t] for t in types)
    x, scale = floats(2, 3, 2, 12).astype(source), floats(8, seed=1)
    angles = np.random.default_rng(0).uniform(0, 6, (9, 3))
    places = np.array([[1, 2, 3], [5, 0, 8]])
    inputs = [x, scale, places, np.cos(angles).astype(table), np.sin(angles).astype(table)]
    inputs += [] if prompt is None else [np.array(prompt, I32)]
    kept = x.astype(F)[..., 2:10]
    normed = kept / np.sqrt((kept**2).mean(-1, keepdims=True) + 1e-5) * scale
    normed = coarse(normed) if types == "bbb" else normed
    step = coarse if types == "bbb" and (prompt or not exact) else lambda v: v
    cos, sin = (t.astype(F)[places][:, :, None] for t in inputs[3:5])
    a, b = normed[..., :3], normed[..., 3:6]
    turned = [step(step(a * cos) - step(b * sin)), step(step(b * cos) + step(a * sin)), normed[..., 6:]]
    y = np.concatenate(turned, -1).reshape(2, 3, -1).astype(result)
    attrs = {"rotary_embedding_dim": 6, "epsilon": 1e-5, "input_start": 2, "input_width": 8}
    attrs |= {"output_fp16": int(types[2] == "h"), "use_fp32_arithmetic": exact}
    ulp: dict[str, Any] = {"rtol": 1e-2, "atol": 1e-4} if types != "hfh" else {"rtol": 1e-3, "atol": 1e-4}
    ran = run("RMSNormRotary", inputs, attrs, [y, normed], initializers={1, 3, 4, 5} & set(range(len(inputs))), **ulp)
    assert (ran.outputs[0].astype(F) == y.astype(F)).mean() > 0.95 and [p.numel() for p in ran.model.parameters()] == [
        8
    ]


def test_a_norm_and_a_rotation_of_one_row() -> None:
    """From one position on; the batch is one sequence."""
    x, scale, angles = floats(2, 3, 2, 4).astype(np.float16), floats(4, seed=1), floats(9, 2)
    normed = x.astype(F) / np.sqrt((x.astype(F) ** 2).mean(-1, keepdims=True) + 1e-6) * scale
    cos, sin = (f(angles)[4:7][:, None] for f in (np.cos, np.sin))
    a, b = np.split(normed, 2, -1)
    y = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).reshape(1, 6, 8).astype(np.float16)
    attrs = {"rotary_embedding_dim": 4, "flatten_batch": 1, "output_fp16": 1}
    for base in (np.array([4]), np.array([[4]])):
        run("RMSNormRotary", [x, scale, base, np.cos(angles), np.sin(angles)], attrs, [y], **HALF)
    text = refusal("RMSNormRotary", [x, scale[:3], base, np.cos(angles), np.sin(angles)], attrs, domain="com.microsoft")
    assert "scale has 3 elements" in text
