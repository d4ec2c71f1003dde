"""com.microsoft: gates, and the recurrences that they are part of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.gradients.cases import Case
from tests.gradients.made.nodes import between, floats, fused, ints


def cases() -> Iterator[Case]:
    yield from _norms()
    yield from _gates()
    yield from _streams()
    yield from _convolutions()
    yield from _recurrences()


def _norms() -> Iterator[Case]:
    x, gate = floats(2, 3, 4), floats(2, 3, 4, seed=1)
    for activation in ("silu", "sigmoid"):
        for size in (4, 2):
            yield fused("GatedRMSNorm", x, floats(size), gate, activation=activation)
            yield fused("GatedRMSNorm", x, floats(size), gate, activation=activation, stored=[1])
    for shape in ((2,), (2, 2), (4,)):
        yield fused("BranchwiseRMSNorm", x, floats(*shape), num_branches=2)
        yield fused("BranchwiseRMSNorm", x, floats(*shape), num_branches=2, stored=[1])


def _gates() -> Iterator[Case]:
    x, y = floats(2, 3, 4), floats(2, 3, 4, seed=1)
    yield fused("GatedAdd", x, y, floats(2, 3, 1))
    yield fused("ScaledSiLU", x, alpha=1.5)
    yield fused("ScaledSiLU", x, floats())
    yield fused("LinearAttentionGate", x, floats(4), floats(4), y, outputs=2)
    yield fused("LinearAttentionGate", x, floats(4), floats(4), y, outputs=2, stored=[1, 2])
    keys, queries = between(0.5, 1.5, 1, 2, 3, 4), between(-1.5, -0.5, 1, 2, 3, 4)
    scales = [between(0.5, 1.5, 3, 4, seed=s) for s in range(3)]
    for stored in ([], [3, 4, 5]):
        yield fused("EngramGate", keys, queries, floats(1, 2, 4), *scales, outputs=2, stored=stored)


def _streams() -> Iterator[Case]:
    x, mix = floats(2, 3, 4), floats(2, 3, 3)
    for shape in ((2, 3), (2, 3, 1), (2, 3, 4)):
        yield fused("HyperConnectionPreMix", x, floats(*shape), reduction_scale=0.5)
        yield fused("HyperConnectionPostMix", x, floats(2, 4), floats(*shape), mix)
    yield fused("HyperConnectionPreMix", floats(2, 12), floats(2, 12), num_branches=3)
    yield fused("HyperConnectionPostMix", floats(2, 12), floats(2, 4), floats(2, 3), num_branches=3)


def _convolutions() -> Iterator[Case]:
    weight, bias = floats(3, 1, 3), floats(3)
    for stored in ([], [1, 2]):
        attrs = {"outputs": 2, "stored": stored, "activation": "silu", "dilation": 2}
        yield fused("CausalConvWithState", floats(2, 3, 4), weight, bias, floats(2, 3, 4, seed=1), **attrs)
        yield fused("CausalConvWithState", floats(2, 4, 3), weight, bias, outputs=2, stored=stored, channels_last=1)
    starts = ints(0, 1, 4, dtype="int32")
    for stored in ([], [1, 3]):
        x, state, attrs = floats(4, 3), floats(2, 3, 4), {"activation": "silu", "dilation": 2, "stored": stored}
        given = x, weight, starts, bias, state, ints(1, 2, dtype="int32")
        yield fused("VarlenCausalConvWithState", *given, outputs=3, state_update_capacity=2, **attrs)


def _recurrences() -> Iterator[Case]:
    q, k, v = between(-1, 1, 2, 3, 4), between(-1, 1, 2, 3, 2, seed=1), floats(2, 3, 2)
    state, rate = floats(2, 1, 2, 2), between(0.1, 1, 2, 3, 1)
    heads: dict[str, Any] = {"q_num_heads": 2, "kv_num_heads": 1, "outputs": 2}
    for size in (1, 2):
        yield fused("LinearAttention", q, k, v, state, between(-1, -0.1, 2, 3, size), rate, **heads)
    yield fused("LinearAttention", q, k, v, update_rule="linear", scale=0.5, **heads)
    q, k, v = between(-1, 1, 5, 1, 2), between(-1, 1, 5, 1, 2, seed=1), floats(5, 2, 2)
    state, rate, starts = floats(2, 2, 2, 2), floats(5, 2), ints(0, 2, 5, dtype="int32")
    for activation in ("softplus", "sigmoid"):
        for stored in ([], [7, 8]):
            yield fused(
                "GatedDeltaNet", q, k, v, starts, floats(5, 2), rate, state, floats(2), floats(2),
                gate_activation=activation, beta_activation="sigmoid", qk_l2_norm=1, outputs=2, stored=stored,
            )  # fmt: skip
    yield fused("GatedDeltaNet", floats(4, 8), None, None, None, floats(4, 2, 2), floats(4, 2), state, outputs=2)
    taken = floats(4, 1, 2), floats(4, 1, 2), floats(4, 2, 2), None, floats(4, 2), floats(4, 2), state
    counts = ints(1, 2, dtype="int32")
    yield fused("GatedDeltaNet", *taken, None, None, counts, state_update_capacity=2, outputs=3)
    convolution = floats(2, 8, 3), floats(2, 2, 2, 2), floats(8, 4), floats(8)
    terms = between(0.1, 1, 2), between(-1, -0.1, 2), floats(2), floats(4), ints(1, dtype="int32")
    for stored in ([], [3, 4, 5, 6, 7, 8]):
        attrs = {"heads": 2, "n_groups": 1, "head_dim": 2, "d_state": 2, "outputs": 5, "stored": stored}
        yield fused("Mamba2Verify", floats(3, 14), *convolution, *terms, **attrs)
