"""Quantisation against onnxruntime: exact integers, ties to even, saturation, by tensor, axis and block."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.harness import assert_same, refusal, run_model, run_node, run_onnxruntime, unbound_names
from tests.support.tiers import drawn

OPERATORS = [
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearMatMul",
    "QLinearConv",
]  # fmt: skip
F = np.float32
rng = np.random.default_rng(5)


def ints(dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("name", OPERATORS)
def test_every_schema_version_binds(name: str) -> None:
    assert unbound_names(name) == []


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("stored", [{1, 2}, set()])
def test_quantize_by_tensor(dtype: str, stored: set[int]) -> None:
    """Ties go to even, large values saturate."""
    x = np.array([[-1e9, -3.5, -2.5, -0.5, 0, 0.5, 1.5, 2.5, 3.49, 70000, 1e9, np.inf, -np.inf]], F)
    for scale, zero in ((1.0, 0), (0.3, 3), (7.0, 100)):
        run_node("QuantizeLinear", [x, np.array(scale, F), np.array(zero, dtype)], initializers=stored, dynamic=True)


def test_quantize_without_zero_point() -> None:
    x = rng.normal(0, 100, (3, 4)).astype(F)
    run_node("QuantizeLinear", [x, np.array(0.7, F)])
    run_node("QuantizeLinear", [x, np.array(0.7, F)], {"output_dtype": 3})
    run_node("QuantizeLinear", [x, np.array(0.7, F)], opset=10)
    run_node("DequantizeLinear", [ints("int8", 3, 4), np.array(0.7, F)], initializers={1})


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("stored", [{1, 2}, set()])
def test_by_axis(axis: int, stored: set[int]) -> None:
    x = rng.normal(0, 30, (2, 3, 4)).astype(F)
    n = x.shape[axis]
    scale, zero = rng.uniform(0.1, 1, n).astype(F), ints("int8", n)
    run_node("QuantizeLinear", [x, scale, zero], {"axis": axis}, 13, initializers=stored, dynamic=True)
    run_node("DequantizeLinear", [ints("int8", 2, 3, 4), scale, zero], {"axis": axis}, 13, initializers=stored)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("stored", [{1, 2}, set()])
def test_by_block(axis: int, stored: set[int]) -> None:
    x = rng.normal(0, 30, (4, 6)).astype(F)
    shape = (2, 6) if axis == 0 else (4, 3)
    scale, zero = rng.uniform(0.1, 1, shape).astype(F), ints("uint8", *shape)
    attrs = {"axis": axis, "block_size": 2}
    run_node("QuantizeLinear", [x, scale, zero], attrs, initializers=stored)
    run_node("DequantizeLinear", [ints("uint8", 4, 6), scale, zero], attrs, initializers=stored, dynamic=True)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
def test_dequantize_is_exact(dtype: str) -> None:
    x = ints(dtype, 50)
    zero = np.array(0 if dtype == "int32" else 17, dtype)
    run_node("DequantizeLinear", [x, np.array(0.123, F), zero], initializers={1, 2}, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_scales(dtype: Any) -> None:
    """Computed in float32, then rounded."""
    x, scale = ints("int8", 20), np.array(0.1, dtype)
    expected = ((x.astype(F) - 3) * F(scale)).astype(dtype)
    run_node("DequantizeLinear", [x, scale, np.array(3, np.int8)], opset=19, expected=[expected], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
def test_four_bits(dtype: Any) -> None:
    x = rng.normal(0, 20, (4, 6)).astype(F)
    scale = rng.uniform(0.5, 3, 6).astype(F)
    zero = rng.integers(0, 7, 6).astype(dtype)
    weights = rng.integers(0, 7, (4, 6)).astype(dtype)
    expected = ((x / scale).round() + zero.astype(F)).clip(*(-8, 7) if dtype is ml_dtypes.int4 else (0, 15))
    stored = np.int8 if dtype is ml_dtypes.int4 else np.uint8
    run_node("QuantizeLinear", [x, scale, zero], initializers={1, 2}, expected=[expected.astype(stored)])
    expected = (weights.astype(F) - zero.astype(F)) * scale
    run_node("DequantizeLinear", [weights, scale, zero], initializers={0, 1, 2}, expected=[expected])


@settings(max_examples=drawn(30), deadline=None)
@given(data=st.data())
def test_dynamic(data: st.DataObject) -> None:
    """Away from ties, whose side depends on the last bit of a division."""
    values = data.draw(st.lists(st.integers(-1000, 1000), min_size=1, max_size=8))
    x = np.array(values, F) * F(0.37)
    run_node("DynamicQuantizeLinear", [x], outputs=3, dynamic=True)


@pytest.mark.parametrize("a,b", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"), ("int8", "uint8")])
@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((4,), (4, 5))])
def test_matmul_integer(a: str, b: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, w = ints(a, *shapes[0]), ints(b, *shapes[1])
    x_zero, w_zero = np.array(7, a), np.array(3, b)
    expected = np.matmul(x.astype(np.int32) - np.int32(7), w.astype(np.int32) - np.int32(3))
    run_node("MatMulInteger", [x, w, x_zero, w_zero], initializers={1, 2, 3}, expected=[expected])
    run_node("MatMulInteger", [x, w], expected=[np.matmul(x.astype(np.int32), w.astype(np.int32))])
    columns = ints(b, 5)
    expected = np.matmul(x.astype(np.int32), w.astype(np.int32) - columns.astype(np.int32))
    run_node("MatMulInteger", [x, w, np.array(0, a), columns], initializers={1, 3}, expected=[expected])


def test_matmul_integer_by_row() -> None:
    x, w, rows = ints("uint8", 3, 4), ints("uint8", 4, 2), ints("uint8", 3)
    expected = (x.astype(np.int32) - rows.astype(np.int32)[:, None]) @ w.astype(np.int32)
    run_node("MatMulInteger", [x, w, rows], expected=[expected])


@settings(max_examples=drawn(25), deadline=None)
@given(data=st.data())
def test_convolutions(data: st.DataObject) -> None:
    """ConvInteger and QLinearConv: pads with the zero point, strides, groups, a scale for each output channel."""
    groups = data.draw(st.sampled_from([1, 2]))
    size = data.draw(st.integers(4, 6))
    kernel = data.draw(st.sampled_from([[3, 3], [1, 2]]))
    x, w = ints("uint8", 1, 4, size, size), ints("uint8", 4, 4 // groups, *kernel)
    attrs: dict[str, Any] = {"group": groups, "strides": data.draw(st.sampled_from([[1, 1], [2, 1]]))}
    if data.draw(st.booleans()):
        attrs["pads"] = data.draw(st.lists(st.integers(0, 2), min_size=4, max_size=4))
    else:
        attrs["auto_pad"] = data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    x_zero, w_zero = np.array(data.draw(st.integers(0, 255)), np.uint8), np.array(9, np.uint8)
    run_node("ConvInteger", [x, w, x_zero, w_zero], attrs, 10, initializers={1, 2, 3})
    scales = rng.uniform(0.01, 0.02, 4 if data.draw(st.booleans()) else ()).astype(F)
    zeros = np.full(scales.shape, 9, np.uint8)
    bias = rng.integers(-5000, 5000, 4).astype(np.int32) if data.draw(st.booleans()) else None
    stored = {1, 2, 3, 4, 5, 6, 7} if data.draw(st.booleans()) else {3, 5}
    inputs = [x, np.array(0.05, F), x_zero, w, scales, zeros, np.array(3.7, F), np.array(120, np.uint8), bias]
    run_node("QLinearConv", inputs, attrs, 10, initializers=stored)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("stored", [{1, 2, 3, 4, 5, 6, 7}, set()])
def test_qlinear_matmul(dtype: str, stored: set[int]) -> None:
    a, b = ints(dtype, 3, 4), ints(dtype, 4, 5)
    zero = np.array(11, dtype)
    run_node(
        "QLinearMatMul",
        [a, np.array(0.05, F), zero, b, np.array(0.03, F), zero, np.array(1.3, F), zero],
        initializers=stored,
    )
    scales = rng.uniform(0.01, 0.05, 5).astype(F)
    run_node(
        "QLinearMatMul",
        [a, np.array(0.05, F), zero, b, scales, np.full(5, 11, dtype), np.array(1.3, F), zero],
        initializers=stored,
    )


def test_a_scale_by_axis_needs_a_vector() -> None:
    x, scale = np.zeros((4, 6), F), np.ones((2, 6), F)
    assert "block_size" in refusal("QuantizeLinear", [x, scale])


def test_rows_of_a_table_are_dequantised_in_its_module() -> None:
    """`quantize_dynamic` writes DequantizeLinear where floats are taken: behind a Transpose, in the next module."""
    table = "{" + ", ".join(map(str, ints("uint8", 24).tolist())) + "}"
    weight = "{" + ", ".join(str(i / 8) for i in range(8)) + "}"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (int64[n, m] ids) => (float[m, n, 2] y)
        <uint8[6, 4] "words.weight_quantized" = {table}, float scale = {{0.5}}, uint8 zero = {{100}},
         float[4, 2] "body.fc.weight" = {weight}> {{
            ["/words/Gather"] rows = Gather("words.weight_quantized", ids)
            ["/body/Transpose"] turned = Transpose<perm = [1, 0, 2]>(rows)
            ["/body/Transpose_DequantizeLinear"] x = DequantizeLinear(turned, scale, zero)
            ["/body/fc/MatMul"] h = MatMul(x, "body.fc.weight")
            ["/body/Relu"] y = Relu(h) }}"""
    )
    feed = {"ids": np.array([[0, 1, 5], [2, 3, 4]])}
    ran = run_model(model, feed)
    assert_same(ran.outputs[0], run_onnxruntime(model, feed)[0])
    body = next(part for part in ran.source.split("class ") if part.startswith("Body"))
    assert ".float()" not in body and "nn.Module()" not in ran.source
