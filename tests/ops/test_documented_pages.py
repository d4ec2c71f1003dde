"""Attention to pages and to selected keys, against what the documentation says, in numpy.

onnxruntime has no kernel of these on CPUs: none was run against it.
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

# ---- pages -----------------------------------------------------------------------------------------------------------

PAST, NEW, ENTRIES = [3, 0, 4], [2, 4, 1], 3
TABLE = np.array([[5, 2, -1], [0, 6, 0], [4, 1, 99]], I32)  # no third page is reached; of 99 there is none


def normed(x: Any, weight: Any) -> Any:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight


def turned(x: Any, cos: Any, sin: Any, start: int, interleaved: int) -> Any:
    """The elements of [heads, size] from `start` on, by the angles of one position."""
    x, half = x.copy(), len(cos)
    at = np.arange(start, start + 2 * half)
    first, second = (at[::2], at[1::2]) if interleaved else (at[:half], at[half:])
    a, b = x[:, first], x[:, second]
    x[:, first], x[:, second] = a * cos - b * sin, a * sin + b * cos
    return x


def paged(q: Any, k: Any, v: Any, caches: Any, attrs: dict[str, Any], given: dict[str, Any]) -> list[Any]:
    """One token after the other: all are written, then each attends. [tokens, heads, size]"""
    caches = [c.astype(F) for c in caches]
    scales = given.get("scales")
    tokens = [(b, PAST[b] + i) for b in range(len(NEW)) for i in range(NEW[b])]
    if "norms" in given:
        q, k = (normed(x.astype(F), w.astype(F)).astype(x.dtype) for x, w in zip((q, k), given["norms"]))
    if "tables" in given:
        tables = given[
            "tables"
        ]  # turned in the tokens' own type, as onnxruntime's kernel does (paged_attention_impl.cu)
        options = attrs.get("rotary_offset", 0), attrs.get("rotary_interleaved", 0)
        q, k = (
            np.stack([turned(x[t], *(c[p] for c in tables), *options) for t, (_, p) in enumerate(tokens)])
            for x in (q, k)
        )
    for t, (b, p) in enumerate(tokens):
        slot = given["slots"][t] if "slots" in given else TABLE[b, p // ENTRIES] * ENTRIES + p % ENTRIES
        for i, new in enumerate((k, v)[: len(caches)]):
            if slot >= 0:
                row = new[t] if scales is None else np.clip(np.rint(new[t] / scales[i]), -128, 127)
                caches[i][slot // ENTRIES, slot % ENTRIES] = row
    read = [c if scales is None else c * s for c, s in zip(caches, scales or caches)]
    read += [read[0][..., : attrs.get("v_head_size")]] if len(read) == 1 else []
    q, rows, window = q.astype(F), [], attrs.get("local_window_size", -1)
    for t, (b, p) in enumerate(tokens):
        last = p if attrs.get("is_causal", 1) else PAST[b] + NEW[b] - 1
        seen = [j for j in range(last + 1) if TABLE[b, j // ENTRIES] >= 0 and (window < 0 or j > p - window)]
        others: list[Any] = [[], []]
        if "chosen" in given:
            chosen = given["chosen"][0][t, : given["chosen"][1][t]]
            seen = seen if attrs["attention_mode"] == "local_plus_selected" else []
            if "others" in given:
                others = [[o[b, j] for j in chosen if j < given["lengths"][b]] for o in given["others"]]
            else:
                seen = sorted({*seen, *(j for j in chosen if j <= last)})
        if not seen and not others[0]:
            rows.append(np.zeros(q[t].size))
            continue
        found = ([*(r[TABLE[b, j // ENTRIES], j % ENTRIES] for j in seen), *o] for r, o in zip(read, others))
        keys, values = (np.stack([np.broadcast_to(x, (k.shape[1], x.shape[1])) for x in kv], 1) for kv in found)
        keys, values = (x.repeat(q.shape[1] // x.shape[0], 0) for x in (keys, values))
        scores = np.einsum("hd,hjd->hj", q[t], keys) * (attrs.get("scale") or 1 / math.sqrt(q.shape[2]))
        cap = attrs.get("softcap")
        weights = np.exp(cap * np.tanh(scores / cap) if cap else scores)
        sink = np.exp(given["sink"].astype(F)) if "sink" in given else 0
        rows.append(np.einsum("hj,hjd->hd", weights / (weights.sum(-1) + sink)[:, None], values).reshape(-1))
    return [np.stack(rows), *caches]


@pytest.mark.parametrize("asked", [
    "", "packed", "slots", "rotary", "rotary offset interleaved", "norms rotary packed", "sink softcap", "window",
    "free", "free window", "int8", "int8 channel rotary", "latent", "latent rotary offset scale", "scale",
    "latent plain", "chosen", "chosen window", "chosen local int8 sink", "chosen free slots", "chosen second",
    "chosen second shared", "chosen second window softcap", "chosen second local rotary packed",
    "chosen second one int8 norms",
])  # fmt: skip
def test_pages(asked: str) -> None:
    heads, shared, size = (2, 1, 16) if "latent" in asked else (4, 2, 8 if "offset" not in asked else 16)
    count, half = sum(NEW), np.float16
    q, k, v = (floats(count, n, size, seed=s).astype(half) for s, n in enumerate((heads, shared, shared)))
    caches: list[Any] = [floats(7, ENTRIES, shared, size, seed=s).astype(half) for s in (3, 4)]
    attrs: dict[str, Any] = {"num_heads": heads, "kv_num_heads": shared}
    given: dict[str, Any] = {}
    if "rotary" in asked:
        angles = np.random.default_rng(0).uniform(0, 6, (6, 4 if "offset" in asked else 3))
        given["tables"] = [np.cos(angles).astype(half), np.sin(angles).astype(half)]
        attrs |= {"do_rotary": 1, "rotary_interleaved": int("interleaved" in asked)}
        attrs |= {"rotary_offset": 8} if "offset" in asked else {}
    if "norms" in asked:
        given["norms"] = [floats(size, seed=s).astype(half) for s in (5, 6)]
    if "slots" in asked:  # the second is not written, the last elsewhere than it is read
        given["slots"] = np.array([2 * 3, -1, 0, 1, 2, 18, 9], I32)
    if "sink" in asked:
        given["sink"] = floats(heads, seed=7).astype(half)
    if "latent" in asked:
        caches, attrs = caches[:1], attrs | {"kv_cache_layout": "LATENT"}
        attrs |= {} if "plain" in asked else {"v_head_size": 8, "scale": 0.3}
    if "int8" in asked:
        shape = (shared, 1, size) if "channel" in asked else (1,)
        given["scales"] = [(np.abs(floats(*shape, seed=s)) / 20 + 0.01).astype(F) for s in (8, 9)]
        caches = [np.random.default_rng(s).integers(-128, 128, c.shape).astype(np.int8) for s, c in enumerate(caches)]
        attrs |= {f"{x}_quant_type": "PER_CHANNEL" if "channel" in asked else "PER_TENSOR" for x in "kv"}
    attrs |= {"local_window_size": 2} if "window" in asked else {}
    attrs |= {"is_causal": 0} if "free" in asked else {}
    attrs |= {"softcap": 1.5} if "softcap" in asked else {}
    attrs |= {"scale": 0.2} if "scale" in asked else {}
    if "chosen" in asked:
        is_local = "window" in asked or "local" in asked
        attrs |= {"attention_mode": "local_plus_selected" if is_local else "selected_only"}
        given["chosen"] = [
            np.array([[0, 4, 2], [1, -1, -1], [-1] * 3, [0, 1, -1], [2, 0, 1], [0, 3, 1], [4, 0, 2]], I32)
        ]
        given["chosen"] += [np.array([3, 1, 0, 2, 3, 3, 2], I32)]
    if "second" in asked:
        both = [floats(3, 5, 1 if "one" in asked else shared, size, seed=s).astype(half) for s in (12, 13)]
        given |= {"others": [both[0]] * 2 if "shared" in asked else both, "lengths": np.array([5, 1, 3], I32)}
        attrs |= {"selected_kv_source": "auxiliary", "auxiliary_kv_shared": int("shared" in asked)}
    by_channel = (
        dict(given, scales=[s.reshape(-1, size) if s.size > 1 else s for s in given["scales"]])
        if "int8" in asked
        else given
    )
    expected = paged(q, k, v, caches, attrs, by_channel)
    expected = [x.astype(c.dtype) for x, c in zip(expected, [q, *caches])]
    flat = [x.reshape(count, -1) for x in (q, k, v)]
    flat = (
        [np.concatenate(flat, -1), None, None]
        if "packed" in asked
        else flat[:2] + [None]
        if "latent" in asked
        else flat
    )
    starts = np.array([0, *np.cumsum(NEW)], I32)
    inputs = [*flat, caches[0], None if "latent" in asked else caches[1], starts, np.array(PAST, I32), TABLE]
    tables, slots = given.get("tables", [None] * 2), [given.get("slots")]
    if "chosen" in given:
        others = (
            [given["others"][0], None if "shared" in asked else given["others"][1]] if "others" in given else [None] * 2
        )
        inputs += [*slots, *given["chosen"], *others, given.get("lengths"), *tables]
    else:
        inputs += [*tables, *slots]
    inputs += [
        given.get("sink"),
        *given.get("norms", [None] * 2),
        *given.get("scales", [None] * 2),
        np.array([4, 6], I32),
    ]
    op = "SparsePagedAttention" if "chosen" in given else "PagedAttention"
    run(op, inputs, attrs, expected, dynamic="sink" in asked or "packed" in asked, **HALF)


def test_pages_that_are_refused() -> None:
    inputs: list[Any] = [floats(1, n).astype(np.float16) for n in (8, 4, 4)]
    inputs += [np.zeros((2, 4, 1, 4), np.uint8)] * 2 + [np.array(x, I32) for x in ([0, 1], [0], [[0]])]
    attrs = {"num_heads": 2, "kv_num_heads": 1}
    text = refusal("PagedAttention", inputs, attrs | {"k_cache_dtype": "int4"}, domain="com.microsoft", outputs=3)
    assert "4 bits" in text and "cache of float16" in text
    inputs[3:5] = [np.zeros((2, 4, 1, 4), np.float16)] * 2
    text = refusal("PagedAttention", inputs, attrs | {"kv_cache_layout": "LATENT"}, domain="com.microsoft", outputs=3)
    assert "contradicts" in text
    text = refusal("PagedAttention", inputs, attrs | {"v_head_size": 2}, domain="com.microsoft", outputs=3)
    assert "contradicts" in text
    text = refusal("PagedAttention", inputs, attrs | {"kv_num_heads": 3}, domain="com.microsoft", outputs=3)
    assert "is not a multiple of kv_num_heads" in text


def test_selections_that_are_refused() -> None:
    inputs: list[Any] = [floats(1, n).astype(np.float16) for n in (8, 4, 4)]
    inputs += [np.zeros((2, 4, 1, 4), np.float16)] * 2 + [np.array(x, I32) for x in ([0, 1], [0], [[0]])]
    inputs += [None, np.zeros((1, 1), I32), np.ones(1, I32)]
    attrs = {"num_heads": 2, "kv_num_heads": 1}
    for more, says in (
        ({"attention_mode": "all"}, "attention_mode"),
        ({"auxiliary_cache_layout": "paged"}, "layout"),
        ({"selected_kv_source": "auxiliary"}, "the auxiliary key, value or lengths are missing"),
    ):
        text = refusal("SparsePagedAttention", inputs, attrs | more, domain="com.microsoft", outputs=3)
        assert says in text


def test_a_token_that_sees_no_page() -> None:
    inputs: list[Any] = [floats(1, n).astype(np.float16) for n in (8, 4, 4)]
    inputs += [floats(2, 4, 1, 4).astype(np.float16)] * 2 + [np.array(x, I32) for x in ([0, 1], [0], [[-1]])]
    attrs = {"num_heads": 2, "kv_num_heads": 1}
    run("PagedAttention", inputs, attrs, [np.zeros((1, 8), np.float16), *inputs[3:5]], **HALF)


# ---- selected keys ---------------------------------------------------------------------------------------------------


def selected(q: Any, k: Any, v: Any, caches: list[Any], inputs: dict[str, Any], attrs: dict[str, Any]) -> list[Any]:
    """One query after the other; [batch, heads, length, size]."""
    count, lengths = q.shape[2], inputs["lengths"]
    scales = inputs.get("scales")
    caches = [c.copy() for c in caches]
    if "norms" in inputs:
        q, k = (normed(x, w) for x, w in zip((q, k), inputs["norms"]))
    for b, s in np.ndindex(len(lengths), count):
        place = lengths[b] - count + s
        if "tables" in inputs:
            at = inputs["ids"][b, s] if "ids" in inputs else place
            options = attrs.get("rotary_offset", 0), attrs.get("rotary_interleaved", 0)
            for x in (q, k):
                x[b, :, s] = turned(x[b, :, s], *(t[at] for t in inputs["tables"]), *options)
        for i, x in enumerate((k, v)):
            row = x[b, :, s]
            caches[i][b, :, place] = row if scales is None else np.clip(np.rint(row / scales[i]), -128, 127)
    read = caches if scales is None else [c * s[:, None] for c, s in zip(caches, scales)]
    out = np.zeros_like(q)
    for b, s in np.ndindex(len(lengths), count):
        place, row = lengths[b] - count + s, b * count + s
        chosen = inputs["indices"][row, : inputs["counts"][row]]
        window = attrs.get("local_window_size", -1)
        near = np.arange(max(0, place - window + 1), place + 1)
        kv = [r[b][:, chosen] for r in read]
        if window > 0:
            kv = [np.concatenate([r[b][:, near], o[b][:, chosen]], 1) for r, o in zip(read, inputs["others"])]
        for h in range(q.shape[1]):
            keys, values = (x[h // (q.shape[1] // k.shape[1])] for x in kv)
            weights = np.exp(keys @ q[b, h, s] * (attrs.get("scale") or 1 / math.sqrt(q.shape[3])))
            sink = np.exp(inputs["sink"][h]) if "sink" in inputs else attrs.get("smooth_softmax", 0)
            out[b, h, s] = weights @ values / (weights.sum() + sink) if len(weights) else 0
    return [out.transpose(0, 2, 1, 3).reshape(*out.shape[:1], count, -1), *caches]


@pytest.mark.parametrize("asked", [
    "", "packed", "sink", "smooth scale", "rotary norms", "rotary ids offset interleaved", "int8", "prompt", "bfloat16",
    "second", "second shared sink", "second int8",
])  # fmt: skip
def test_selected_keys(asked: str) -> None:
    heads, shared, size, count, room = 4, 2, 16, 2, 7
    rng = np.random.default_rng(len(asked))
    lengths = np.array([2, 2] if asked == "prompt" else [5, 7])
    q, k, v = (floats(2, n, count, size, seed=s) for s, n in enumerate((heads, shared, shared)))
    caches: list[Any] = [floats(2, shared, room, size, seed=s) for s in (3, 4)]
    for c, b in ((c, b) for c in caches for b in range(2)):
        c[b, :, lengths[b] :] = 0
    attrs: dict[str, Any] = {"num_heads": heads, "kv_num_heads": shared}
    given: dict[str, Any] = {
        "lengths": lengths,
        "counts": np.array([0, 1, 3, 2], I32) if asked != "prompt" else np.array([1, 2, 0, 1], I32),
    }
    if "second" in asked:
        others = [floats(2, shared, 4, size, seed=s) for s in (5, 6)]
        given["others"] = [others[0]] * 2 if "shared" in asked else others
        attrs |= {"attention_mode": "local_plus_selected", "selected_kv_source": "auxiliary", "local_window_size": 3}
        attrs |= {"auxiliary_kv_shared": 1} if "shared" in asked else {}
    given["indices"] = np.full((4, 3), -1, I32)
    for row, n in enumerate(given["counts"]):
        visible = 4 if "second" in asked else lengths[row // 2] - count + row % 2 + 1
        given["indices"][row, :n] = rng.permutation(visible)[:n]
    if "rotary" in asked:
        angles = rng.uniform(0, 6, (9, 4)).astype(F)
        given["tables"] = [np.cos(angles), np.sin(angles)]
        attrs |= {"do_rotary": 1, "rotary_interleaved": int("interleaved" in asked)}
        attrs |= {"rotary_offset": 8} if "offset" in asked else {}
    given |= {"ids": rng.integers(0, 9, (2, count))} if "ids" in asked else {}
    given |= {"norms": [floats(size, seed=s) for s in (7, 8)]} if "norms" in asked else {}
    given |= {"sink": floats(heads, seed=9)} if "sink" in asked else {}
    attrs |= {"smooth_softmax": 1} if "smooth" in asked else {}
    attrs |= {"scale": 0.3} if "scale" in asked else {}
    if "int8" in asked:
        given["scales"] = [np.abs(floats(shared, size, seed=s)) / 20 + F(0.01) for s in (10, 11)]
        caches = [np.where(c == 0, 0, rng.integers(-128, 128, c.shape)).astype(np.int8) for c in caches]
    expected = selected(q.copy(), k.copy(), v, caches, given, attrs)
    flat: list[Any] = [x.transpose(0, 2, 1, 3).reshape(2, count, -1) for x in (q, k, v)]
    flat = [np.concatenate(flat, -1), None, None] if asked == "packed" else flat
    others = (
        [given["others"][0], None if "shared" in asked else given["others"][1]] if "second" in asked else [None] * 2
    )
    kwargs: dict[str, Any] = {}
    if asked == "bfloat16":
        flat, caches, kwargs = [x.astype(np.float16) for x in flat], [c.astype(np.float16) for c in caches], HALF
        expected = [expected[0].astype(ml_dtypes.bfloat16), *(c.astype(np.float16) for c in expected[1:])]
        attrs, kwargs = attrs | {"output_bf16": 1}, {"rtol": 1e-2, "atol": 1e-2}
    inputs = [
        *flat,
        *caches,
        *others,
        given["indices"],
        given["counts"],
        (lengths - 1).astype(I32),
        np.array([max(lengths)], I32),
    ]
    inputs += [
        *given.get("tables", [None] * 2),
        given.get("ids"),
        *given.get("norms", [None] * 2),
        given.get("sink"),
        None,
    ]
    inputs += [s.reshape(-1) for s in given.get("scales", [])]
    run("DynamicSparseAttention", inputs, attrs, expected, dynamic="sink" in asked or asked == "packed", **kwargs)


def test_selected_keys_that_are_refused() -> None:
    inputs: list[Any] = [floats(1, 1, n) for n in (8, 4, 4)] + [None] * 4
    inputs += [np.zeros((1, 1), I32), np.ones(1, I32), np.zeros(1, I32), np.ones(1, I32)]
    attrs = {"num_heads": 2, "kv_num_heads": 1}
    for more, outputs, says in (
        ({"selected_kv_source": "auxiliary"}, 3, "selected_kv_source"),
        ({"is_causal": 0}, 3, "is_causal"),
        (
            {"selected_kv_source": "auxiliary", "attention_mode": "local_plus_selected"},
            3,
            "local_window_size or the auxiliary key",
        ),
        ({}, 4, "leave validation_status out"),
    ):
        text = refusal("DynamicSparseAttention", inputs, attrs | more, domain="com.microsoft", outputs=outputs)
        assert says in text
    inputs[5] = np.zeros((1, 1, 4, 4), F)  # a second cache of keys, which has values only if it is said to be shared
    local = {"selected_kv_source": "auxiliary", "attention_mode": "local_plus_selected", "local_window_size": 2}
    text = refusal("DynamicSparseAttention", inputs, attrs | local, domain="com.microsoft", outputs=3)
    assert "the auxiliary key and value are missing" in text


# ---- merged selections -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("mode", ["append_range", "append_indices"])
def test_merged_selections(seed: int, mode: str) -> None:
    rng = np.random.default_rng(seed)
    queries, room = 6, 5
    least = -1 if seed % 3 == 0 else 0  # a third has indices that are out of their range
    base, counts, rows = rng.integers(least, 6, (3, 4)), rng.integers(least, 5, 3), rng.integers(least, 3, queries)
    if mode == "append_range":
        starts = rng.integers(least, 5, queries)
        more = [starts, starts + rng.integers(least, 7, queries)]
        lists = [list(range(s, e)) if s >= 0 and e >= s else None for s, e in zip(*more)]
    else:
        more = [rng.integers(least, 6, (queries, 3)), rng.integers(least, 4, queries)]
        lists = [list(x[:n]) if n >= 0 else None for x, n in zip(*more)]
    merged, sizes, status = np.full((queries, room), -1, I32), np.zeros(queries, I32), np.zeros(queries, I32)
    for t, added in enumerate(lists):
        row = rows[t]
        is_right = 0 <= row < 3 and 0 <= counts[row] <= 4 and added is not None
        found = [*base[row, : counts[row]], *added] if is_right and added is not None else [-1]
        union = list(dict.fromkeys(found))
        status[t] = 1 if min(found, default=0) < 0 else 2 if len(union) > room else 0
        if status[t] == 0:
            merged[t, : len(union)], sizes[t] = union, len(union)
    inputs = [x.astype(I32) for x in (base, counts, rows)]
    given = [x.astype(I32) for x in more]
    inputs += given if mode == "append_range" else [None, None, *given]
    attrs = {"max_output_entries": room, "policy_mode": mode}
    run(
        "PackedSparseAttentionIndexerMerge",
        inputs,
        attrs,
        [merged, sizes, status],
        rtol=0,
        atol=0,
        dynamic=seed % 2 > 0,
    )


def test_merged_selections_are_refused() -> None:
    inputs = [np.zeros((1, 1), I32), np.ones(1, I32), np.zeros(1, I32)]
    for mode in ("append_range", "append"):
        attrs = {"max_output_entries": 2, "policy_mode": mode}
        text = refusal("PackedSparseAttentionIndexerMerge", inputs, attrs, domain="com.microsoft", outputs=3)
        assert f"policy_mode {mode!r} is unknown, or" in text
