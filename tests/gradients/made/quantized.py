"""com.microsoft: integers with scales, to which gradients flow where the result is of floating point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.gradients.cases import Case
from tests.gradients.made.nodes import Array, between, floats, fused, integers, ints, node


def _side(scale: float, zero: int, dtype: str = "uint8") -> list[Array]:
    return [np.array(scale, np.float32), np.array(zero, dtype)]


def cases() -> Iterator[Case]:
    a, b, y = _side(0.03, 3), _side(0.05, 4), _side(0.06, 7)
    x, other = integers("uint8", 3, 4), integers("uint8", 3, 4, seed=1)
    yield fused("QuantizeLinear", floats(3, 4), *a)
    yield fused("DequantizeLinear", x, *a)
    yield node("DequantizeLinear", integers("int8", 4, 3), floats(2, 3), integers("int8", 2, 3), axis=0, block_size=2)
    for name in ("QLinearSigmoid", "QLinearLeakyRelu"):
        yield fused(name, x, *a, *y)
    yield fused("QLinearSoftmax", x, *a, *y, opset=21, stored=[2, 4])
    for name in ("QLinearAdd", "QLinearMul"):
        yield fused(name, x, *a, other, *b, *y)
    yield fused("QLinearWhere", x > 100, x, *a, other, *b, *y)
    yield fused("QLinearConcat", *y, x, *a, other, *b, axis=1)
    image, weight = integers("uint8", 1, 2, 4, 4), integers("int8", 2, 2, 3, 3)
    yield fused("QLinearConv", image, *a, weight, *_side(0.01, 0, "int8"), *y)
    yield fused("QLinearAveragePool", image, *a, *y, kernel_shape=[2, 2])
    yield fused("QLinearGlobalAveragePool", image, *a, *y)
    yield fused("QLinearReduceMean", image, *a, *y, axes=[2], keepdims=0)
    yield from _products(x, a, y)
    yield from _blocks()
    yield from _models()


def _products(x: Array, a: list[Array], y: list[Array]) -> Iterator[Case]:
    matrix, scale, bias = integers("int8", 4, 3), np.array(0.02, np.float32), floats(3)
    zero = np.array(0, np.int8)
    yield fused("QGemm", x, *a, matrix, scale, zero, None, *y)
    yield fused("QGemm", x, *a, matrix, scale, zero)
    yield fused("MatMulIntegerToFloat", x, matrix, a[0], scale, a[1], zero, bias)
    yield fused("DynamicQuantizeMatMul", floats(2, 4), matrix, scale, zero, bias)


def _blocks() -> Iterator[Case]:
    rows, blocks, block = 2, 2, 16
    for bits in (4, 8):
        packed = integers("uint8", rows, blocks, block * bits // 8)
        scales, zeros = between(0.01, 0.1, rows * blocks), between(0, 8, rows * blocks)
        attrs = {"K": 24, "N": rows, "block_size": block, "bits": bits}
        yield fused("MatMulNBits", floats(3, 24), packed, scales, zeros, None, floats(rows), **attrs)
        yield fused("MatMulNBits", floats(3, 24), packed, scales, stored=[1, 2], **attrs)
    blob = np.concatenate([between(0.01, 0.1, 2, 1).view(np.uint8), integers("uint8", 2, 16)], 1).reshape(-1)
    yield fused("MatMulFpQ4", floats(3, 24), blob, ints(24, 2), stored=[1, 2], blk_quant_type=0)
    table, scales = integers("uint8", 4, 8), between(0.01, 0.1, 4, 1)
    gathered: Any = {"bits": 4, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    yield fused("GatherBlockQuantized", table, np.array([1, 3, 1]), scales, **gathered)
    for kind in (0, 1):
        attrs = {"K": 32, "N": 2, "block_size": 16, "quant_type": kind}
        yield fused("MatMulBnb4", floats(2, 32), integers("uint8", 32), between(0.5, 2, 4), **attrs)


def _models() -> Iterator[Case]:
    states = [floats(1, 2, 2, seed=1), floats(1, 2, 2, seed=2), floats(1, 6)]
    side = [np.full(1, 0.01, np.float32), np.full(1, 3, np.int8)]
    yield fused(
        "DynamicQuantizeLSTM", floats(3, 2, 3), integers("int8", 1, 3, 8), integers("int8", 1, 2, 8), floats(1, 16),
        None, *states, *side, *side, hidden_size=2, outputs=3,
    )  # fmt: skip
    yield fused(
        "QAttention", integers("uint8", 1, 3, 4), integers("int8", 4, 12), floats(12), np.array(0.02, np.float32),
        np.array(0.01, np.float32), None, np.array(3, np.uint8), np.array(0, np.int8), floats(2, 1, 2, 2, 2),
        num_heads=2, outputs=2,
    )  # fmt: skip
    ids = np.array([[1, 3, 0]], np.int32)
    tables = [integers("uint8", rows, 4) for rows in (5, 6, 2)] + [integers("uint8", 4, seed=s) for s in (1, 2)]
    scales = [np.array(0.01 * i, np.float32) for i in range(1, 6)]
    zeros = [np.array(100 + i, np.uint8) for i in range(5)]
    yield fused("QEmbedLayerNormalization", ids, ids % 2, *tables, None, *scales, *zeros, outputs=["o0"])
