"""What drawn cases have found: the smallest case of each mistake that is mended."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.properties.judge import Case, Tally
from tests.properties.strategies import Array, i64


def floats(*shape: int) -> Array:
    return np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def whole(shape: list[int]) -> Array:
    return np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)


def uint(*shape: int) -> Array:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(np.uint64)


def case(op: str, inputs: list[Any], attrs: dict[str, Any], opset: int = 21, outputs: int = 1, **where: Any) -> Case:
    return Case(op, inputs, attrs, opset, outputs, **{k: frozenset(v) for k, v in where.items()}, rtol=1e-6)


HALF = {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}
NONE = np.zeros(0, np.float32)
SAME = {"auto_pad": "SAME_LOWER"}
FOUND = {
    "the only point that a scale of 0.75 leaves of two": case(
        "Resize", [floats(1, 1, 2, 1), None, np.array([1, 1, 0.75, 1], np.float32)], HALF, stored=[2], named=[0, 1]
    ),
    "scales of unknown length beside sizes": case(
        "Resize", [floats(1, 1, 2, 1), NONE, NONE, i64([1, 1, 5, 9])], {"mode": "cubic"}, 11, stored=[0, 3], named=[0]
    ),
    "the logarithm of a sum over no axes, which are all": case(
        "ReduceLogSumExp", [floats(2, 3), i64([])], {"keepdims": 0}, named=[1]
    ),
    "the greatest of booleans over no axes, which are all": case(
        "ReduceMax", [np.array([[False, True], [False, False]]), i64([])], {"keepdims": 1}, named=[1]
    ),
    "the sign of NaN": case("Sign", [np.array([np.nan, -2, 0], np.float32)], {}),
    "NaN is above no threshold": case("ThresholdedRelu", [np.array([np.nan, 2], np.float32)], {}),
    "a product of large integers": case("MatMul", [uint(2, 2) + np.uint64(2**63), uint(2, 2)], {}),
    "a stored matrix of integers": case("MatMul", [uint(2, 3), uint(3, 2)], {}, stored=[1]),
    "pieces of nothing": case("Split", [np.zeros((2, 0), np.float32)], {"axis": 1}, 11, outputs=3),
    "what is left of a crop comes round again": case("Pad", [i64([2, 1, 4, 3]), i64([4, -2])], {"mode": "wrap"}, 20),
    "axes that are known at run time": case(
        "ReduceMean", [floats(2, 3), i64([1])], {"noop_with_empty_axes": 1}, 20, named=[0]
    ),
    "no axes, which is known at run time": case(
        "ReduceL2", [floats(2, 3), i64([])], {"noop_with_empty_axes": 1}, 20, named=[0]
    ),
    "a kernel whose size nobody says": case("Conv", [floats(1, 1, 4), floats(1, 1, 3)], SAME, named=[2]),
    "a result that the sizes known at run time leave too short": case(
        "ConvTranspose", [floats(1, 1, 4), floats(1, 1, 1)], {"strides": [3], "output_shape": [11]}, named=[2]
    ),
    "a vector whose zero point may be one of many": case(
        "MatMulInteger", [np.int8([1, 2]), np.int8([[1], [2]]), np.int8([3])], {}, named=[0]
    ),
    "sums of integers over one factor alone": case(
        "Einsum", [whole([2, 3]), whole([2, 3]), whole([2, 1])], {"equation": "ij,ik,il->l"}
    ),
    "the inverse transform of real numbers": Case("DFT", [floats(1, 2, 1)], {"inverse": 1}, 20, atol=1e-6),
    "half the frequencies of complex numbers": case("STFT", [floats(1, 4, 2), i64(2), floats(2)], {}, 17),
    "keys and values whose lengths have two names": Case(
        "Attention", [floats(2, 4, 3, 2), floats(2, 2, 5, 2), floats(2, 2, 5, 3)], {"softcap": 2.0}, 23,
        named=frozenset({2}), rtol=1e-5,
    ),
    "groups of one element": case(
        "GroupNormalization", [floats(1, 2, 1), floats(2), floats(2)], {"num_groups": 2}, 22
    ),
    "the greatest of nothing": case("Hardmax", [np.zeros((0,), np.float32)], {}),
    "no window fits": case("MaxPool", [floats(1, 1, 3)], {"kernel_shape": [4]}),
    "a padded window that does not quite fit": case(
        "MaxPool", [floats(1, 1, 1)], {"kernel_shape": [4], "pads": [1, 0], "strides": [3]}
    ),
    "a window that is larger than the space before padding": case(
        "AveragePool", [floats(1, 1, 1, 1, 1)], {"kernel_shape": [1, 3, 1], "auto_pad": "SAME_UPPER"}
    ),
    "a dilated window of padding alone": case(
        "AveragePool", [floats(1, 1, 1)], {"kernel_shape": [2], "dilations": [2], "pads": [1, 1]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", FOUND)
def test_it_agrees_now(what: str) -> None:
    Tally().judge(FOUND[what])
