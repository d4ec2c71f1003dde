"""Quantised operators of onnxruntime, bit for bit what it computes (on x86, where its rounding was read off)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.passes.quantized.layers import float_bodies
from tests.ops.fuzz import floats
from tests.ops.harness import Ran, node_model, refusal, run_model, run_node

F = np.float32
rng = np.random.default_rng(7)
TYPES = pytest.mark.parametrize("dtype", ["uint8", "int8"])
ALL = np.arange(256, dtype=np.uint8)


def ints(dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def quantised(dtype: str, scale: float, zero: int) -> list[Any]:
    return [np.array(scale, F), np.array(zero, dtype)]


def run(op_type: str, inputs: list[Any], attrs: dict[str, Any] | None = None, **kwargs: Any) -> Ran:
    """Integers are equal; everything but the first input of each kind is stored.

    Where the layer has a form in floats, that gives the same but for roundings.
    """
    ran = run_node(op_type, inputs, attrs, domain="com.microsoft", **kwargs)
    if ("com.microsoft", op_type) in float_bodies() and (stored := kwargs.get("initializers")):
        as_floats(op_type, inputs, attrs or {}, stored, ran.expected)
    return ran


def as_floats(op_type: str, inputs: list[Any], attrs: dict[str, Any], stored: set[int], expected: list[Any]) -> None:
    model = node_model(op_type, inputs, attrs, initializers=stored, domain="com.microsoft", outputs=len(expected))
    feeds = {f"i{n}": v for n, v in enumerate(inputs) if v is not None and n not in stored}
    try:
        found = run_model(model, feeds, Options(quantized="float")).outputs
    except OnnxgenError as refused:
        assert "generate with --quantized keep" in str(refused)
        return
    for mine, wanted in zip(found, expected, strict=True):
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(mine, wanted, rtol=0, atol=0.02 * np.abs(wanted).max())
            continue
        limits = np.iinfo(wanted.dtype)  # the float is left as it is, so it is a line of the integer between its ends
        inner = (wanted > limits.min) & (wanted < limits.max)
        if np.ptp(wanted[inner]) > 9:
            assert np.corrcoef(mine[inner], wanted[inner].astype(np.float64))[0, 1] > 0.98


@TYPES
@pytest.mark.parametrize("name", ["QuantizeLinear", "DequantizeLinear"])
def test_linear(dtype: str, name: str) -> None:
    x = floats(3, 4) * 3 if name == "QuantizeLinear" else ints(dtype, 3, 4)
    run(name, [x, *quantised(dtype, 0.1, 3)], initializers={1, 2})
    scales, zeros = np.array([0.1, 0.2, 0.3], F), np.array([1, 2, 3], dtype)
    run(name, [x, scales, zeros], {"axis": 0}, dynamic=True)


@TYPES
@pytest.mark.parametrize("scale", [0.05, 0.03137, 0.1])
def test_of_one_operand(dtype: str, scale: float) -> None:
    """Every number there is."""
    x = ALL.view(dtype).copy()
    stored = {1, 2, 3, 4}
    sides = [x, *quantised(dtype, scale, 3)]
    run("QLinearSigmoid", [*sides, *quantised(dtype, 1 / 256, 0)], initializers=stored)
    run("QLinearLeakyRelu", [*sides, *quantised(dtype, 0.04, 7)], {"alpha": 0.1}, initializers=stored)
    run("QLinearLeakyRelu", [*sides, *quantised(dtype, 0.04, 7)])


@TYPES
@pytest.mark.parametrize("name", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize(
    "scales, zeros",
    [
        ((0.03, 0.05, 0.06), (3, 4, 7)),
        ((0.5, 0.25, 1.0), (5, 2, 3)),
        ((0.0123, 0.0456, 0.0333), (100, 20, 55)),
        ((0.1, 0.2, 0.04), (0, 0, 0)),
    ],
)
def test_of_two_operands(dtype: str, name: str, scales: tuple[float, ...], zeros: tuple[int, ...]) -> None:
    """Every pair of numbers there is, ties among the results."""
    sides = [quantised(dtype, s, z) for s, z in zip(scales, zeros)]
    a, b = (v.astype(np.uint8).view(dtype).copy() for v in np.meshgrid(ALL, ALL))
    run(name, [a, *sides[0], b, *sides[1], *sides[2]], initializers={1, 2, 4, 5, 6, 7})
    run(name, [a[:3], *sides[0], b[0], *sides[1], *sides[2]])


@TYPES
def test_chosen_and_joined(dtype: str) -> None:
    a, b = ints(dtype, 20, 16), ints(dtype, 20, 16)
    sides = [quantised(dtype, s, z) for s, z in ((0.03, 3), (0.05, 4), (0.04, 2))]
    choice = rng.integers(0, 2, (20, 16)).astype(bool)
    run("QLinearWhere", [choice, a, *sides[0], b, *sides[1], *sides[2]])
    inputs = [*sides[2], a, *sides[0], b, *sides[1]]
    run("QLinearConcat", inputs, {"axis": 1}, initializers={0, 1, 3, 4, 6, 7})


@TYPES
@pytest.mark.parametrize("last", [0, 1])
def test_pools(dtype: str, last: int) -> None:
    sides = [*quantised(dtype, 0.03, 5), *quantised(dtype, 0.02, 9)]
    stored = {1, 2, 3, 4}
    x = ints(dtype, 2, 8, 9, 8)
    for extra in ({}, {"count_include_pad": 1}, {"ceil_mode": 1}):
        attrs = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0], "channels_last": last, **extra}
        run("QLinearAveragePool", [x, *sides], attrs, initializers=stored)
    for shape in ((2, 8, 9, 8), (3, 40, 7, 7)):
        run("QLinearGlobalAveragePool", [ints(dtype, *shape), *sides], {"channels_last": last}, initializers=stored)


@TYPES
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("pads", [[0] * 4, [1, 0, 1, 0], [1] * 4, [0, 1, 1, 0], "SAME_UPPER", "SAME_LOWER"], ids=str)
def test_every_pool(dtype: str, last: int, pads: list[int] | str) -> None:
    """Scales that make ties of many averages; padding that counts does so behind its end, too."""
    x = ints(dtype, 2, 6, 9, 8)
    padding = {"auto_pad": pads} if isinstance(pads, str) else {"pads": pads}
    for count, (scale, zero), (out, out_zero) in zip(range(8), [(0.1, 3), (0.25, 27)] * 4, [(0.2, 2), (1.0, 33)] * 4):
        attrs = {"kernel_shape": [3, 2] if count & 1 else [2, 2], "channels_last": last, **padding}
        attrs |= {"strides": [2, 2], "ceil_mode": count >> 1 & 1, "count_include_pad": count >> 2 & 1}
        inputs = [x, *quantised(dtype, scale, zero), *quantised(dtype, out, out_zero)]
        run("QLinearAveragePool", inputs, attrs, initializers={1, 2, 3, 4})


@TYPES
@pytest.mark.parametrize("last", [0, 1])
def test_convolution(dtype: str, last: int) -> None:
    x = ints(dtype, 2, 7, 6, 4) if last else ints(dtype, 2, 4, 7, 6)
    inputs = [
        x, *quantised(dtype, 0.02, 3), ints("int8", 6, 4, 3, 3) // 2, *quantised("int8", 0.01, 0),
        *quantised(dtype, 0.3, 5), rng.integers(-999, 999, 6).astype(np.int32),
    ]  # fmt: skip
    run("QLinearConv", inputs, {"channels_last": last, "pads": [1] * 4}, initializers=set(range(1, 9)))


@TYPES
@pytest.mark.parametrize("opset, axis", [(13, -1), (13, 1), (12, 1), (12, -1)])
def test_softmax(dtype: str, opset: int, axis: int) -> None:
    x = ints(dtype, 3, 10, 5)
    for scale in (0.05, 0.3):
        inputs = [x, *quantised(dtype, scale, 3), *quantised(dtype, 1 / 256, 0 if dtype == "uint8" else -128)]
        run("QLinearSoftmax", inputs, {"opset": opset, "axis": axis}, initializers={1, 2, 3, 4})


def test_softmax_of_many() -> None:
    """Small results have small scales: onnxruntime's exponentials overflow there, and its result is 0."""
    x = ALL[None, 100:118].copy()
    inputs = [x, *quantised("uint8", 0.0005, 3), *quantised("uint8", 1 / 4096, 0)]
    exponentials = np.exp((x.astype(np.float64) - x.max()) * np.float32(0.0005))
    expected = np.rint(exponentials / exponentials.sum() * 4096).astype(np.uint8)
    ran = run("QLinearSoftmax", inputs, {"opset": 13}, initializers={1, 2, 3, 4}, expected=[expected])
    assert ran.outputs[0].min() > 220


# ---- products --------------------------------------------------------------------------------------------------------
# Of signed bytes half the range: where AVX2 has no VNNI, onnxruntime adds two products in 16 bits, unless it may
# rewrite the graph (`verify.oracle.EXACT`), which it does not do for its own operators.


@TYPES
def test_qgemm(dtype: str) -> None:
    a, b, c = ints(dtype, 7, 40), ints("int8", 40, 9) // 2, rng.integers(-999, 999, 9).astype(np.int32)
    left, zero = quantised(dtype, 0.02, 3), np.array(0, "int8")
    right, y = [np.array(0.01, F), zero], quantised(dtype, 0.3, 5)
    run("QGemm", [a, *left, b, *right, None, *y], initializers={1, 2, 3, 4, 5, 7, 8})
    run("QGemm", [a, *left, b, *right, c, *y], {"alpha": 0.7}, initializers={1, 2, 3, 4, 5, 6, 7, 8})
    columns = [np.linspace(0.01, 0.02, 9).astype(F), np.zeros(9, np.int8)]
    run("QGemm", [a, *left, b.T.copy(), *columns, c], {"transB": 1}, initializers={1, 2, 3, 4, 5, 6})
    run("QGemm", [a.T.copy(), *left, b, *right], {"transA": 1})


@TYPES
def test_products_as_floats(dtype: str) -> None:
    a, b, bias = ints(dtype, 7, 40), ints("int8", 40, 9) // 2, floats(9)
    scales, zeros = [np.array(0.02, F), np.array(0.01, F)], [np.array(3, dtype), np.array(0, "int8")]
    run("MatMulIntegerToFloat", [a, b, *scales, *zeros, bias], initializers={1})
    by_column = [scales[0], np.linspace(0.01, 0.02, 9).astype(F)]
    run("MatMulIntegerToFloat", [a, b, *by_column, zeros[0], np.arange(9).astype("int8")], initializers={1})
    run("DynamicQuantizeMatMul", [floats(7, 40), ints(dtype, 40, 9) // 2, scales[1], zeros[0], bias], initializers={1})
    run("DynamicQuantizeMatMul", [floats(2, 7, 40), ints(dtype, 40, 9) // 2, scales[1]], initializers={1})


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("cached", [False, True])
def test_attention(causal: int, cached: bool) -> None:
    mask = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], np.int32)
    mask = np.concatenate([np.ones((2, 3), np.int32), mask], 1) if cached else mask
    inputs = [
        ints("uint8", 2, 5, 8), ints("int8", 8, 24), floats(24), np.array(0.02, F), np.array(0.01, F), mask,
        np.array(3, np.uint8), np.array(0, np.int8), floats(2, 2, 2, 3, 4) if cached else None,
    ]  # fmt: skip
    attrs = {"num_heads": 2} | ({"unidirectional": 1} if causal else {})
    run("QAttention", inputs, attrs, outputs=2 if cached else 1, initializers={1, 2, 3, 4, 6, 7}, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("segments", [False, True])
def test_embedding(segments: bool) -> None:
    ids = rng.integers(0, 20, (2, 5)).astype(np.int32)
    tables = [ints("uint8", 20, 8), ints("uint8", 9, 8), ints("uint8", 2, 8), ints("uint8", 8), ints("uint8", 8)]
    scales = [np.array(0.01 * i, F) for i in range(1, 6)]
    zeros = [np.array(100 + i, np.uint8) for i in range(5)]
    given: list[Any] = [[*v[:2], v[2] if segments else None, *v[3:]] for v in (tables, scales, zeros)]
    mask = (ids % 3 > 0).astype(np.int32)
    inputs = [ids, ids % 2 if segments else None, *given[0], mask, *given[1], *given[2]]
    stored = {2, 3, 5, 6} | ({4} if segments else set())
    attrs = {"epsilon": 1e-5}
    run("QEmbedLayerNormalization", inputs, attrs, outputs=2, initializers=stored, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_any_lstm(seed: int) -> None:
    """What comes in, and h at each step, is quantised by one scale for all rows."""
    draw = np.random.default_rng(seed)
    length, batch, hidden = (int(draw.choice(c)) for c in ([1, 3, 6], [1, 2, 4], [4, 16]))
    direction, dtype = str(draw.choice(["forward", "reverse", "bidirectional"])), str(draw.choice(["int8", "uint8"]))
    count, by_column = 2 if direction == "bidirectional" else 1, draw.random() < 0.4
    shape = (count, 4 * hidden) if by_column else (count,)
    scales = [draw.uniform(0.002, 0.01, shape).astype(F) for _ in "WR"]
    zeros = [(np.zeros(shape) if by_column else draw.integers(0, 20, shape)).astype(dtype) for _ in "WR"]
    states = [floats(count, batch, hidden, seed=s) * F(0.5) if draw.random() < 0.5 else None for s in (4, 5)]
    inputs = [
        floats(length, batch, 8), ints(dtype, count, 8, 4 * hidden), ints(dtype, count, hidden, 4 * hidden),
        floats(count, 8 * hidden, seed=3) if draw.random() < 0.8 else None, None, *states,
        floats(count, 3 * hidden, seed=6) if draw.random() < 0.3 else None, scales[0], zeros[0], scales[1], zeros[1],
    ]  # fmt: skip
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    attrs |= {"clip": 0.7} if draw.random() < 0.3 else {}
    ran = run("DynamicQuantizeLSTM", inputs, attrs, outputs=3, initializers={1, 2, 8, 9, 10, 11}, rtol=1e-4, atol=2e-3)
    # The last bit of h decides which integer it becomes where it lies between two. Then all later steps differ a bit.
    close = [np.isclose(ours, theirs, rtol=1e-4, atol=1e-5) for ours, theirs in zip(ran.outputs, ran.expected)]
    assert np.concatenate([part.ravel() for part in close]).mean() > 0.7


def test_other_lstms_are_refused() -> None:
    scales, zeros = np.full(1, 0.01, F), np.zeros(1, np.int8)
    start = [floats(2, 1, 4), ints("int8", 1, 4, 16), ints("int8", 1, 4, 16), None]
    for lengths, attrs in (
        (np.array([2], np.int32), {}),
        (None, {"input_forget": 1}),
        (None, {"activations": ["Relu"] * 3}),
    ):
        inputs = [*start, lengths, None, None, None, scales, zeros, scales, zeros]
        text = refusal("DynamicQuantizeLSTM", inputs, {"hidden_size": 4, **attrs}, domain="com.microsoft")
        assert "are not handled" in text
