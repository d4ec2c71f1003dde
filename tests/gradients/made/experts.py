"""com.microsoft: mixtures of experts, and their routers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.gradients.cases import Case
from tests.gradients.made.nodes import between, floats, fused


def cases() -> Iterator[Case]:
    """Routers' numbers lie far apart, so that no step crosses a choice."""
    x, router = floats(3, 4), floats(3, 3) + between(-1, 1, 3, 3, seed=1)
    first, second = (floats(3, 2, 4), floats(3, 2)), (floats(3, 4, 2), floats(3, 4, seed=1))
    for stored, more in (([], []), ([2, 3, 4, 5], [6, 7])):
        for normalize in (0, 1):
            yield fused(
                "MoE", x, router, *first, *second, k=2, activation_type="silu", stored=stored,
                normalize_routing_weights=normalize,
            )  # fmt: skip
        gates = {"activation_alpha": 1.5, "activation_beta": 1.0, "swiglu_fusion": 1, "activation_type": "swiglu"}
        yield fused("MoE", x, router, floats(3, 4, 4), floats(3, 4), *second, k=1, stored=stored, **gates)
        third = floats(3, 2, 4, seed=2), floats(3, 2, seed=2)
        yield fused("MoE", x, router, *first, *second, *third, k=2, activation_type="swiglu", stored=[*stored, *more])
    yield from _few_bits()
    yield fused("MoEGroupRouter", floats(3, 4), floats(4), top_k=2, n_group=2)
    yield fused("MoEGroupRouter", floats(3, 4), floats(4), floats(4, 4), top_k=2, outputs=["", "a", "w"])


def _few_bits() -> Iterator[Case]:
    x, router, weights = floats(3, 4), floats(3, 3) + between(-1, 1, 3, 3, seed=1), between(0.1, 1, 3, 3)
    numbers = np.random.default_rng(0).integers(0, 256, (3, 3, 4, 4), np.uint8)
    layers = [[n, between(0.001, 0.01, 3, 4, seed=i), floats(3, 4, seed=i)] for i, n in enumerate(numbers)]
    for given in (layers[:2], layers):
        kind = "swiglu" if len(given) == 3 else "silu"
        inputs = [x, router, *itertools.chain(*given), *[None] * (12 - 3 * len(given)), weights]
        yield fused("QMoE", *inputs, k=2, expert_weight_bits=8, activation_type=kind, normalize_routing_weights=1)
    yield fused("QMoE", x, router, *itertools.chain(*layers[:2]), k=2, expert_weight_bits=8)
