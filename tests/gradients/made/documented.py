"""com.microsoft: operators that onnxruntime has for GPUs only, and attention over blocks of keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from tests.gradients.cases import Case
from tests.gradients.made.nodes import between, floats, fused, ints


def cases() -> Iterator[Case]:
    yield from _padding()
    yield from _gates()
    yield from _biases()
    yield from _products()
    yield from _blocks()
    yield from _narrow()
    yield from _streams()
    yield from _one_query()
    yield from _projected()
    yield from _pages()
    yield from _selected()
    x, angles, places = floats(1, 2, 2, 6).astype(np.float16), between(0, 6, 4, 2), np.array([[1, 3]])
    attrs = {"rotary_embedding_dim": 4, "input_start": 1, "input_width": 5, "output_fp16": 1, "outputs": 2}
    for stored in ([], [1]):
        inputs = x, floats(5), places, np.cos(angles), np.sin(angles)
        yield fused("RMSNormRotary", *inputs, stored=stored, **attrs)


def _padding() -> Iterator[Case]:
    yield fused("RemovePadding", floats(2, 3, 4), ints(3, 1, dtype="int32"), outputs=4)
    offsets = np.array([[0, 1, 2], [3, 4, 5]], np.int32)
    yield fused("RestorePadding", floats(4, 2), offsets)


def _gates() -> Iterator[Case]:
    gate, up = floats(2, 4), floats(2, 4, seed=1)
    yield fused("SwiGLU", gate, up, activation_alpha=1.5, activation_beta=0.5)
    yield fused("SwiGLU", gate, limit=0.45)
    for stored in ([], [1]):
        yield fused("RouterGateUpProj", floats(3, 4), floats(4, 8), router_size=2, outputs=2, stored=stored)
    yield fused("IsAllFinite", gate, up)


def _biases() -> Iterator[Case]:
    for stored in ([], [0]):
        lengths = [ints(6).reshape(()), ints(6).reshape(())]
        yield fused("RelativePositionBias", floats(4, 2), *lengths, max_distance=5, stored=stored)
    inputs = [floats(1, 3, 4), floats(4), floats(1, 2, 3, 3), floats(2, 4), floats(4, seed=1), floats(1, 2, 1, 1)]
    for stored in ([], [1, 2, 3, 4, 5]):
        yield fused("GatedRelativePositionBias", *inputs, num_heads=2, stored=stored)


def _packed(rows: int, width: int, bits: int = 4) -> list[Any]:
    """Weights of a few bits and their scales."""
    rng = np.random.default_rng(0)
    blocks = -(-width // 32)
    return [rng.integers(0, 256, (rows, blocks, 4 * bits), np.uint8), floats(rows, blocks, seed=1) / 8]


def _products() -> Iterator[Case]:
    x, skip, norm, sizes = floats(2, 32), floats(2, 32, seed=1), floats(32, seed=2), {"K": 32, "block_size": 32}
    for stored in ([], [2]):
        parts = [item for n in (4, 2, 2) for item in (*_packed(n, 32), floats(n, seed=n))]
        yield fused("MatMulNBitsQkv", x, skip, norm, *parts, outputs=4, Nq=4, Nkv=2, stored=stored, **sizes)
        parts = [item for seed in (3, 4) for item in (*_packed(3, 32), floats(3, seed=seed))]
        yield fused("MatMulNBitsMlp", x, skip, norm, *parts, outputs=2, N=3, activation="silu", stored=stored, **sizes)
    factors = [*_packed(2, 32, 8), *_packed(3, 2, 8)]
    yield fused("MatMulNBitsQLoRA", x, *_packed(3, 32), *factors, K=32, N=3)


def _blocks() -> Iterator[Case]:
    """2 heads of queries that share one of keys; the second query sees the second block of two only."""
    q, k, v = floats(1, 2, 4), floats(1, 2, 2, seed=1), floats(1, 2, 2, seed=2)
    past = [floats(1, 1, 6, 2, seed=s) for s in (3, 4)]
    blocks = [np.array([[0, 1, 2, 4]], np.int32), np.array([[0, 1, 1, 2]], np.int32)]
    counts = [ints(5, dtype="int32"), ints(5, dtype="int32")]
    angles = between(0, 6, 6, 1)
    attrs = {"num_heads": 2, "kv_num_heads": 1, "sparse_block_size": 2, "outputs": 3}
    yield fused("SparseAttention", q, k, v, *past, *blocks, *counts, **attrs)
    turned = [np.cos(angles), np.sin(angles)]
    yield fused("SparseAttention", q, k, v, *past, *blocks, *counts, *turned, do_rotary=1, **attrs)


def _narrow() -> Iterator[Case]:
    """Products by floats of 8 and 4 bits, which are no weights; their scales are."""
    x, bias, step = floats(2, 16), floats(3, seed=1), np.array(0.7, np.float32)
    small = floats(3, 16, seed=1).astype(ml_dtypes.float8_e4m3fn)
    scales = between(0.5, 1.5, 3, 2, seed=2)
    for stored in ([], [2, 4]):
        inputs = x, small, scales, None, bias
        yield fused("MatMulBlockQuantizedFp8Weight", *inputs, block_size=8, stored=[*stored, 1])
    packed = np.random.default_rng(0).integers(0, 256, (3, 8), np.uint8)
    bytes_ = between(0.5, 1.5, 3, 1).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    for stored in ([], [3, 5]):
        inputs = x, packed, bytes_, step, None, bias
        yield fused("MatMulBlockQuantizedFp4Weight", *inputs, stored=[*stored, 1, 2])
    factors = [np.array(s, np.float32) for s in (0.5, 1.5)]
    for activation in ("NONE", "GELU"):
        inputs = x, floats(16, 3), floats(2, 3, seed=3), *factors
        yield fused("GemmFloat8", *inputs, activation=activation, alpha=0.7, beta=0.5)


def _streams() -> Iterator[Case]:
    inputs = [floats(2, 6), floats(6), floats(6, 2), floats(2, 6, seed=1), floats(6, 3)]
    before = [floats(2, 2, seed=2), floats(2, 3, seed=3)]
    attrs = {"silu_alpha": 1.5, "reduction_scale": 0.5, "gate_div": 2.0, "gate_mul": 3.0}
    for more, stored in ((before, []), ([], [1, 2, 3, 4])):
        kwargs = {"num_branches": 3, "outputs": 3, "stored": stored, **attrs}
        yield fused("HyperConnectionLowRankMix", *inputs, *more, **kwargs)


def _one_query() -> Iterator[Case]:
    inputs = [floats(1, 1, 4), floats(4, 12), floats(12), np.ones((1, 3), np.int32), floats(2, 1, 2, 2, 2)]
    for stored in ([], [1, 2]):
        more = floats(1, 2, 1, 3), ints(2, dtype="int32")
        yield fused("DecoderMaskedSelfAttention", *inputs, *more, num_heads=2, outputs=2, stored=stored)


def _projected() -> Iterator[Case]:
    """Longformer's attention, whose first token is global and whose last is masked; and that of a decoder."""
    flags, last = np.array([[1, 0, 0, 0]], np.int32), np.array([[0, 0, 0, -10000]], np.float32)
    inputs = floats(1, 4, 4), floats(4, 12), floats(12), last, floats(4, 12, seed=1), floats(12, seed=1), flags
    for stored in ([3], [1, 2, 3, 4, 5]):
        yield fused("LongformerAttention", *inputs, num_heads=2, window=1, stored=stored)
    yield fused("LongformerAttention", *inputs[:3], last / 10000, *inputs[4:], num_heads=2, window=1)
    given = floats(1, 2, 4), floats(3, 2, 4), floats(4, 4), floats(4, 8), floats(12)
    hidden, caches = np.array([[False, True], [False, False]]), [floats(2, 2, 1, 2, seed=s) for s in (1, 2)]
    for static, past, stored in ((False, True, []), (True, False, []), (True, True, []), (False, True, [2, 3, 4])):
        states = [np.array([flag]) for flag in (static, past, True, not static)]
        kwargs = {"num_heads": 2, "outputs": 3, "stored": [*stored, 8, 9, 10, 11]}
        mask, kept = None if static else hidden, caches if past else [None, None]
        yield fused("DecoderAttention", *given, mask, *kept, *states, **kwargs)


def _pages() -> Iterator[Case]:
    """Three tokens of two sequences, of which the first has one key in its page already."""
    q, k, v, *caches = (
        x.astype(np.float16)
        for x in (floats(3, 4), floats(3, 2), floats(3, 2, seed=1), floats(3, 2, 1, 2), floats(3, 2, 1, 2, seed=1))
    )
    places = [ints(*n, dtype="int32") for n in ((0, 1, 3), (1, 0), (2, 1))]
    places[2] = places[2].reshape(2, 1)
    angles = between(0, 6, 2, 1)
    more = [*(f(angles) for f in (np.cos, np.sin)), None, floats(2), floats(2, seed=1), floats(2, seed=2)]
    more = [x if x is None else x.astype(np.float16) for x in more]
    attrs: dict[str, Any] = {"num_heads": 2, "kv_num_heads": 1, "outputs": 3}
    for stored in ([], [11, 12, 13]):
        kwargs = {"do_rotary": 1, "softcap": 2.0, "stored": stored, **attrs}
        yield fused("PagedAttention", q, k, v, *caches, *places, *more, **kwargs)
    whole = [np.ones_like(cache, np.int8) for cache in caches]
    scales = [np.array([s], np.float32) for s in (0.3, 0.7)]
    kinds = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
    yield fused("PagedAttention", q, k, v, *whole, *places, *[None] * 6, *scales, **kinds, **attrs)
    chosen = np.array([[0, -1], [1, 0], [0, -1]], np.int32), ints(1, 2, 1, dtype="int32")
    mode: dict[str, Any] = {"attention_mode": "local_plus_selected", "local_window_size": 1}
    given = q, k, v, *caches, *places, None, *chosen, *[None] * 3, *more[:2], *more[3:]
    yield fused("SparsePagedAttention", *given, do_rotary=1, **attrs, **mode)
    second = [floats(2, 3, 1, 2, seed=s).astype(np.float16) for s in (4, 5)] + [ints(2, 1, dtype="int32")]
    mode |= {"selected_kv_source": "auxiliary"}
    given = q, k, v, *whole, *places, None, *chosen, *second, *[None] * 5, *scales
    yield fused("SparsePagedAttention", *given, **kinds, **attrs, **mode)


def _selected() -> Iterator[Case]:
    """Of three keys the second query sees two; or the last one, and two of a second cache."""
    q, k, v = floats(1, 2, 4), floats(1, 2, 2), floats(1, 2, 2, seed=1)
    caches, others = ([floats(1, 1, n, 2, seed=s) for s in (n, n + 1)] for n in (3, 2))
    chosen = np.array([[0, -1], [1, 0]], np.int32), ints(1, 2, dtype="int32")
    counts, angles = (ints(2, dtype="int32"), ints(3, dtype="int32")), between(0, 6, 3, 1)
    more = [np.cos(angles), np.sin(angles), None, floats(2), floats(2, seed=1), floats(2, seed=2)]
    attrs: dict[str, Any] = {"num_heads": 2, "kv_num_heads": 1, "outputs": 3}
    second = {"attention_mode": "local_plus_selected", "selected_kv_source": "auxiliary", "local_window_size": 1}
    for stored in ([], [14, 15, 16]):
        inputs = q, k, v, *caches, None, None, *chosen, *counts, *more
        yield fused("DynamicSparseAttention", *inputs, do_rotary=1, stored=stored, **attrs)
    yield fused("DynamicSparseAttention", q, k, v, *caches, *others, *chosen, *counts, **second, **attrs)
    whole, scales = [np.ones_like(c, np.int8) for c in caches], [between(0.3, 0.7, 2, seed=s) for s in (1, 2)]
    given = q, k, v, *whole, None, None, *chosen, *counts, *[None] * 7, *scales
    yield fused("DynamicSparseAttention", *given, **attrs)
