"""com.microsoft: layers and experts whose weights are packed, to which none flows, and their inputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.gradients.cases import Case
from tests.gradients.made.nodes import Array, between, floats, fused, integers


def cases() -> Iterator[Case]:
    x = floats(3, 32)
    for kind in ("none", "relu2", "silu"):
        attrs = {"packed_type": 2, "N": 4, "K": 32, "activation_type": kind}
        yield fused("MatMulPacked", x, _q4_0(4), **attrs)
    scores, weights = floats(3, 3) + between(-1, 1, 3, 3, seed=1), between(0.1, 1, 3, 3)
    layers = _q4_0(3, 32), _q4_0(3, 32, seed=1), _q4_0(3, 32, seed=2)
    types = {"gate_type": 2, "up_type": 2, "down_type": 2, "k": 2}
    for normalize in (0, 1):
        yield fused("MoEPacked", x, scores, *layers, normalize_routing_weights=normalize, **types)
        yield fused("MoEPacked", x, scores, *layers, weights, normalize_routing_weights=normalize, **types)


def _q4_0(*rows: int, seed: int = 0) -> Array:
    """One block a row."""
    data = integers("uint8", *rows, 18, seed=seed)
    data[..., :2] = between(0.01, 0.05, *rows, 1, seed=seed).astype(np.float16).view(np.uint8)
    return data
