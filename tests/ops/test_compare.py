"""Comparisons, logic and Where against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from tests.ops.harness import assert_same, run_model, run_node, run_onnxruntime, unbound_names

F = np.float32
LOGIC = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}
ORDER = {
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Equal": np.equal,
}
OPERATORS = [*LOGIC, *ORDER, "Not", "Where"]


@pytest.mark.parametrize("name", OPERATORS)
def test_every_schema_version_binds(name: str) -> None:
    assert unbound_names(name) == []


@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int32", "int64", "int8", "uint8", "uint32", "uint64"]
)
def test_order(name: str, dtype: str) -> None:
    x = np.array([[1, 2, 3]], dtype)
    for y in (np.array([[2], [3]], dtype), np.array(2, dtype), np.array([2], dtype)):
        for stored in ((), {1}):
            run_node(name, [x, y], initializers=set(stored), expected=[ORDER[name](x, y)])
        run_node(name, [y, x], initializers={0}, expected=[ORDER[name](y, x)])


@pytest.mark.parametrize("name", ORDER)
def test_nan_and_infinity(name: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0, -0.0], F)
    run_node(name, [x, x[::-1].copy()], dynamic=True)
    run_node(name, [x, np.array(np.inf, F)], initializers={1})
    run_node(name, [x, np.array(np.nan, F)], initializers={1})


@pytest.mark.parametrize("name", [*LOGIC, "Equal"])
def test_logic(name: str) -> None:
    x = np.array([[True, False]])
    y = np.array([[True], [False]])
    run_node(name, [x, y])
    for value in (True, False):
        run_node(name, [x, np.array(value)], initializers={1})
        run_node(name, [np.array(value), x], initializers={0})


@pytest.mark.parametrize("name", [*LOGIC, "Less", "Greater", "Equal"])
def test_axis_of_opset_6(name: str) -> None:
    dtype = bool if name in LOGIC else np.int32 if name == "Equal" else F
    a = np.array([[[0, 1], [1, 1]], [[1, 0], [0, 0]]], dtype)
    b = np.array([0, 1], dtype)
    expected = {**LOGIC, **ORDER}[name](a, b[:, None])
    run_node(name, [a, b], {"broadcast": 1, "axis": 1}, opset=6, expected=[expected])


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "float64", "int32", "int64", "uint8", "uint16", "uint64", "bool"]
)
@pytest.mark.parametrize("stored", [(), (1,), (2,), (1, 2), (0,)])
def test_where(dtype: str, stored: tuple[int, ...]) -> None:
    condition = np.array([[True, False, True]])
    for x, y in (
        (np.array([[1, 2, 3], [4, 5, 6]], dtype), np.array(0, dtype)),
        (np.array(1, dtype), np.array(0, dtype)),
        (np.array([[1], [2]], dtype), np.array([7], dtype)),
    ):
        inputs = [condition, x, y]
        expected = [np.where(condition, x, y)]
        run_node("Where", inputs, initializers=set(stored), expected=expected)
        run_node("Where", inputs, initializers=set(stored), expected=expected, dynamic=True)


def test_where_of_a_scalar_condition() -> None:
    x = np.array([1, 2], F)
    for c in (True, False):
        run_node("Where", [np.array(c), x, np.array(5, F)], initializers={2})
        run_node("Where", [np.array(c), np.array(3, F), np.array(5, F)], initializers={1, 2})
        run_node("Where", [np.array(c), np.array([3], F), np.array([5], F)], initializers={1, 2})


def test_where_reads_well() -> None:
    x, c = np.ones((2, 3), F), np.ones((2, 3), bool)
    low = np.array(-np.inf, F)
    forward = run_node("Where", [c, low, x], initializers={1}).forward
    assert "i2.masked_fill(i0, " in forward and "inf" in forward
    assert "torch.where(i0, i1, 0.0)" in run_node("Where", [c, x, np.array(0, F)], initializers={2}).forward


def test_where_of_a_branch_that_may_have_any_rank() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (bool c, bool[2, 3] m, float[2, 3] x, float w) => (float[r, s] one, float[t, u] other) {
          y = If (c) <
            then_branch = t () => (float[] a) { a = ReduceMax <keepdims = 0> (x) },
            else_branch = e () => (float[2, 3] b) { b = Neg (x) }
          >
          half = Constant <value = float {0.5}> ()
          one = Where (m, y, half)
          other = Where (m, w, y)
        }"""
    )
    m = np.array([[True, False, True], [False, False, True]])
    for c in (True, False):
        feeds = {"c": np.array(c), "m": m, "x": np.arange(6, dtype=F).reshape(2, 3), "w": np.array(9, F)}
        ran = run_model(model, feeds)
        for made, expected in zip(ran.outputs, run_onnxruntime(model, feeds), strict=True):
            assert_same(made, expected)


def test_text() -> None:
    x, y = np.array(["a", "b"], object), np.array(["a", "c"], object)
    run_node("Equal", [x, y], expected=[np.array([True, False])])
    run_node("Where", [np.array([True, False]), x, y], expected=[np.array(["a", "c"], object)])
