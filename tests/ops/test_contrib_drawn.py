"""Small operators of onnxruntime on drawn shapes, types and attributes, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ops.drawn import SEEDS, Draw, Drawn, check

SECOND = frozenset({1})


def _biased(d: Draw) -> Drawn:
    shape = d.shape()
    return Drawn([d.floats(*shape), d.floats(shape[-1])])


def _one(d: Draw) -> Drawn:
    return Drawn([d.floats(*d.shape())])


def _quick(d: Draw) -> Drawn:
    return Drawn([d.floats(*d.shape())], {"alpha": d.uniform(0.5, 2)})


def _distances(d: Draw) -> Drawn:
    m, n, k = d.shape(3)
    return Drawn([d.floats(m, k), d.floats(n, k)], {"metric": d.choice(["euclidean", "sqeuclidean"])})


def _expanded(d: Draw) -> Drawn:
    shape = d.shape(d.randint(1, 3))
    return Drawn([d.floats(*shape), np.array(d.randint(-len(shape) - 1, len(shape)), np.int32)], stored=SECOND)


def _gathered(d: Draw) -> Drawn:
    shape = d.shape(3)
    depth, count = d.randint(1, 3), d.randint(1, 4)
    rows = [[d.randrange(size) for size in shape[:depth]] for _ in range(count)]
    return Drawn([d.floats(*shape), np.array(rows, d.choice([np.int32, np.int64]))])


def _inverse(d: Draw) -> Drawn:
    n = d.randint(1, 5)
    return Drawn([d.floats(*d.shape(d.randint(0, 2)), n, n) + 4 * np.eye(n, dtype=np.float32)])


def _turned(d: Draw) -> Drawn:
    m, n, k = d.shape(3)
    lead, a, b = d.shape(d.randint(0, 2)), d.randint(0, 1), d.randint(0, 1)
    x, y = ([k, m] if a else [m, k]), ([n, k] if b else [k, n])
    return Drawn([d.floats(*lead, *x), d.floats(*lead, *y)], {"transA": a, "transB": b, "alpha": d.uniform(0.5, 2)})


def _triangle(d: Draw) -> Drawn:
    shape = d.shape(d.randint(2, 4))
    return Drawn([d.floats(*shape), np.array(d.randint(-3, 3), np.int64)], {"upper": d.randint(0, 1)}, stored=SECOND)


def _unfolded(d: Draw) -> Drawn:
    shape = d.shape(d.randint(1, 3))
    dim = d.randrange(len(shape))
    return Drawn([d.floats(*shape)], {"dim": dim, "size": d.randint(1, shape[dim]), "step": d.randint(1, 3)})


def _unique(d: Draw) -> Drawn:
    return Drawn([d.integers(np.int8, d.randint(1, 9)).astype(np.float32) // 40], {}, 3)


def _ranged(d: Draw) -> Drawn:
    dtype = d.choice([np.float32, np.float64, np.int32, np.int64])
    start, step = d.randint(-3, 3), d.choice([-2, -1, 1, 2])
    return Drawn([np.array(n, dtype) for n in (start, start + step * d.randint(1, 6), step)])


def _masked(d: Draw) -> Drawn:
    n, c, h, w = (*d.shape(2), d.randint(3, 6), d.randint(3, 6))
    mask = np.random.default_rng(d.randrange(99)).integers(0, 2, (n, c, h, w)).astype(np.int32)
    mask[..., :1] = 1
    return Drawn([d.floats(n, c, h, w), mask], {"kernel_shape": [2, w]})


def _wide_product(d: Draw) -> Drawn:
    m, n, k = d.shape(3)
    return Drawn([d.integers(np.int16, m, k) // 64, d.integers(np.int16, k, n) // 64])


def small(d: Draw, dtype: Any, *shape: int) -> Any:
    """Bytes that onnxruntime multiplies exactly: on AVX2 it adds two products of uint8 and int8 in 16 bits."""
    return d.below(64, *shape, dtype=dtype, least=0 if dtype == np.uint8 else -64)


def _float_product(d: Draw) -> Drawn:
    m, n, k = d.shape(3)
    a, b = d.choice([(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])  # int8 by uint8 has no kernel
    zeros = [d.integers(a, 1)[0], d.integers(b, 1)[0]]
    inputs = [d.integers(a, m, k), small(d, b, k, n), d.scale(), d.scale(), *map(np.asarray, zeros)]
    return Drawn([*inputs, d.choice([None, d.floats(n)])])


def _dynamic_product(d: Draw) -> Drawn:
    m, n, k = d.shape(3)
    b = d.byte()
    return Drawn([d.floats(m, k), small(d, b, k, n), d.scale(), np.asarray(d.integers(b, 1)[0]), d.floats(n)])


def _quantize(d: Draw) -> Drawn:
    dtype = d.byte()
    return Drawn([d.floats(*d.shape()), *d.measure(dtype)], close=None)


def _dequantize(d: Draw) -> Drawn:
    dtype = d.byte()
    return Drawn(d.quantised(dtype, *d.shape()))


def _binary(d: Draw) -> Drawn:
    dtype, shape = d.byte(), d.shape()
    inputs = []
    for own in (shape, d.choice([shape, shape[-1:]])):
        inputs += d.quantised(dtype, *own)
    return Drawn([*inputs, *d.measure(dtype)], close=None)


def _activated(d: Draw) -> Drawn:
    dtype = d.byte()
    zeros = [np.asarray(d.integers(dtype, 1)[0]) for _ in range(2)]
    return Drawn([d.integers(dtype, *d.shape()), d.scale(), zeros[0], d.scale(), zeros[1]], close=None)


def _chosen(d: Draw) -> Drawn:
    dtype, shape = d.byte(), d.shape()
    inputs: list[Any] = [d.floats(*shape) > 0]
    for _ in range(2):
        inputs += d.quantised(dtype, *shape)
    return Drawn([*inputs, *d.measure(dtype)], close=None)


OPERATORS: dict[str, Callable[[Draw], Drawn]] = {
    "BiasGelu": _biased, "Gelu": _one, "QuickGelu": _quick, "SampleOp": _one, "CDist": _distances,
    "ExpandDims": _expanded, "GatherND": _gathered, "Inverse": _inverse, "TransposeMatMul": _turned,
    "Trilu": _triangle, "UnfoldTensor": _unfolded, "Unique": _unique, "Range": _ranged, "MaxpoolWithMask": _masked,
    "MatMulInteger16": _wide_product, "MatMulIntegerToFloat": _float_product,
    "DynamicQuantizeMatMul": _dynamic_product, "QuantizeLinear": _quantize, "DequantizeLinear": _dequantize,
    "QLinearAdd": _binary, "QLinearMul": _binary, "QLinearLeakyRelu": _activated, "QLinearSigmoid": _activated,
    "QLinearWhere": _chosen,
}  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_drawn(operator: str, seed: int) -> None:
    check(operator, OPERATORS[operator], seed)
