"""com.microsoft: operators that onnxruntime has for GPUs only, and attention over blocks of keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.gradients.cases import Case
from tests.gradients.made.nodes import between, floats, fused, ints


def cases() -> Iterator[Case]:
    yield from _padding()
    yield from _gates()
    yield from _biases()
    yield from _products()
    yield from _blocks()


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
