"""com.microsoft: bytes in cublasLt's orders, to which gradients flow only where the result is of floating point."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.gradients.cases import Case
from tests.gradients.made.nodes import Array, floats, fused, integers


def _scales(*values: float) -> list[Array]:
    return [np.array(v, np.float32) for v in values]


def cases() -> Iterator[Case]:
    for order in (0, 1, 2):
        yield fused("QuantizeWithOrder", floats(2, 3, 32), *_scales(0.1), order_input=1, order_output=order)
    for order in (1, 2):
        q = integers("int8", 2, 3, 32)
        yield fused("DequantizeWithOrder", q, *_scales(0.1), order_input=order, order_output=1, to=1)
    yield fused("QOrderedGelu", integers("int8", 2, 4), *_scales(0.1, 0.05))
    x, gamma, beta = integers("int8", 2, 3, 4), floats(4), floats(4, seed=1)
    yield fused("QOrderedLayerNormalization", x, *_scales(0.1), gamma, beta, *_scales(0.05))
    a, b = integers("int8", 3, 4), integers("int8", 4, 2)
    given = (a, *_scales(0.1), b, *_scales(0.1, 2), floats(2), integers("int8", 3, 2), *_scales(0.2))
    yield fused("QOrderedMatMul", *given, order_A=1, order_B=0, order_Y=1)
    weights, biases = [integers("int8", 4, 4, seed=s) for s in range(3)], [floats(4, seed=s) for s in range(3)]
    yield fused(
        "QOrderedAttention", x, *_scales(0.1, 0.2, 0.2, 0.2), *weights, *_scales(0.1, 0.1, 0.1), *biases,
        *_scales(0.3, 0.01, 0.1), num_heads=2, order_input=1, order_weight=0, order_output=1,
    )  # fmt: skip
    sides = [[integers("int8", 4, 12, seed=n), *_scales(0.1), floats(12, seed=n)] for n in (5, 6)]
    mask, flags = np.zeros((2, 4), np.float16), np.array([[1, 0, 0, 0], [0, 0, 0, 0]], np.int32)
    yield fused(
        "QOrderedLongformerAttention", integers("int8", 2, 4, 4), *_scales(0.1), *sides[0], *_scales(1, 0.3), mask,
        *sides[1], *_scales(0.3), flags, *_scales(0.1), num_heads=2, window=2, order_input=1, order_weight=0,
        order_global_weight=0, order_output=1,
    )  # fmt: skip
