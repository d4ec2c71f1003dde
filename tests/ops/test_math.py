"""Arithmetic against onnxruntime: dtypes, broadcasting, constants as numbers, old opsets, integers that wrap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tests.ops.harness import assert_same, node_model, run_model, run_node, run_onnxruntime, unbound_names
from tests.support.tiers import drawn

F = np.float32
UNARY = "Acos Asin Asinh Atan Cos Cosh Erf Exp Reciprocal Sin Sinh Tan Ceil Floor Round Neg Sign Abs".split()
BINARY = "Add Sub Mul Div Mod Pow BitShift BitwiseAnd BitwiseOr BitwiseXor".split()
OPERATORS = [
    *UNARY, *BINARY,
    *"Acosh Atanh Log Sqrt Sum Mean Max Min Clip CumSum CumProd Einsum Det BitwiseNot IsInf IsNaN".split(),
]  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_every_schema_version_binds(name: str) -> None:
    assert unbound_names(name) == []


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("opset", [7, 21])
def test_unary(name: str, opset: int) -> None:
    x = np.array([[-0.9, -0.5, -0.0], [0.5, 0.3, 0.99]], F)
    run_node(
        name, [x], opset=opset if name not in ("Asinh", "Cosh", "Erf", "Round", "Sign", "Sinh") else max(opset, 13)
    )


def test_the_sign_of_an_integer_is_not_asked_for_nan() -> None:
    for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        x = np.array([0, 1, 7, 100, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
        for dynamic in (False, True):
            assert "nan" not in run_node("Sign", [x], dynamic=dynamic, expected=[np.sign(x)]).forward


def test_equal_elements_that_have_no_name_are_a_number() -> None:
    x = np.array([[1, -2, 0.5], [3, 7, -9]], F)
    sizes, value = numpy_helper.from_array(np.array([2, 3]), "sizes"), numpy_helper.from_array(np.array([0.75], F))
    for name, place in ((name, place) for name in ("Add", "Sub", "Mul", "Div") for place in (0, 1)):
        model = node_model(name, [x, x], initializers={1})
        model.graph.initializer[0].CopyFrom(sizes)
        model.graph.node[0].input[:] = ["/ones" if i == place else "i0" for i in range(2)]
        model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["sizes"], ["/ones"], value=value))
        ran = run_model(model, {"i0": x})
        assert_same(ran.outputs[0], run_onnxruntime(model, {"i0": x})[0])
        assert "0.75" in ran.forward and "full" not in ran.forward and not ran.model.state_dict(), name


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div"])
def test_a_number_beside_a_tensor_of_unknown_rank(name: str) -> None:
    for x in (np.array([[1, -2, 0.5], [3, 7, -9]], F), np.array([[4]], F), np.array([[1, 2]], F)):
        model = node_model(name, [x, np.array(0.75, F)], initializers={1}, dynamic=True)
        model.graph.node.insert(0, helper.make_node("Squeeze", ["i0"], ["squeezed"]))
        model.graph.node[1].input[0] = "squeezed"
        model.graph.output[0].type.tensor_type.ClearField("shape")
        ran = run_model(model, {"i0": x})
        assert_same(ran.outputs[0], run_onnxruntime(model, {"i0": x})[0])
        assert "0.75" in ran.forward and not ran.model.state_dict() and not [*ran.model.buffers()], name


@pytest.mark.parametrize("name", ["Acosh", "Log", "Sqrt"])
def test_positive(name: str) -> None:
    run_node(name, [np.array([1.0, 1.5, 20], F)], dynamic=True)


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize(
    "dtype", ["int32", "int64", "float32", "float64", "float16", "uint8", "int8", "uint32", "uint64"]
)
def test_arithmetic_by_type(name: str, dtype: str) -> None:
    a = np.array([[7, 3, 100]], dtype)
    b = np.array([[2], [5]], dtype)
    expected = {"Add": a + b, "Sub": a - b, "Mul": a * b, "Div": a // b if a.dtype.kind in "iu" else a / b}
    run_node(name, [a, b], expected=[expected[name]], dynamic=True)
    run_node(name, [a, np.array(3, dtype)], initializers={1})
    run_node(name, [np.array(3, dtype), a], initializers={0})


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("fmod", [0, 1])
def test_signed_division(dtype: str, fmod: int) -> None:
    a = np.array([7, -7, 7, -7, 0, 6], dtype)
    b = np.array([2, 2, -2, -2, 3, -3], dtype)
    run_node("Div", [a, b], expected=[np.trunc(a / b).astype(dtype)])
    run_node("Div", [a, np.array(-2, dtype)], initializers={1}, expected=[np.trunc(a / -2).astype(dtype)])
    run_node("Mod", [a, b], {"fmod": fmod}, expected=[np.fmod(a, b) if fmod else np.mod(a, b)])


def test_uint64_beyond_int64() -> None:
    big = np.array([2**63 + 5, 2**64 - 1, 9, 2**63, 0], np.uint64)
    small = np.array([3, 2**63 + 1, 4, 2**64 - 1, 2**63], np.uint64)
    run_node("Div", [big, small], expected=[big // small])
    run_node("Mod", [big, small], expected=[big % small])
    run_node("Mul", [big, small], expected=[big * small])
    run_node("Max", [big, small], expected=[np.maximum(big, small)])
    run_node("Min", [big, small], initializers={1}, expected=[np.minimum(big, small)])
    shift = np.array([0, 1, 2, 63, 5], np.uint64)
    run_node("BitShift", [big, shift], {"direction": "RIGHT"}, expected=[big >> shift])
    run_node("Less", [big, small], expected=[big < small])


@given(st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 2), min_size=1, max_size=8))
@settings(max_examples=drawn(25), deadline=None)
def test_uint64_division(pairs: list[tuple[int, int]]) -> None:
    a = np.array([x for x, _ in pairs], np.uint64)
    b = np.array([max(y, 1) for _, y in pairs], np.uint64)
    run_node("Div", [a, b], expected=[a // b])
    run_node("Mod", [a, b], expected=[a % b])


def test_integers_wrap() -> None:
    x = np.array([127, -128, 5], np.int8)
    with np.errstate(over="ignore"):
        run_node("Add", [x, np.array([1, -1, 0], np.int8)], expected=[x + np.array([1, -1, 0], np.int8)])
        run_node("Mul", [x, x], expected=[x * x])
        y = np.array([2**31 - 1, 7], np.int32)
        run_node("Mul", [y, y], expected=[y * y])
        run_node("Pow", [y, np.array(3, np.int32)], initializers={1}, expected=[y**3])


POW = [
    ("float32", "float32", [0.5, 2.0, 3.0]),
    ("float32", "int64", [0, 2, -1]),
    ("float32", "float64", [0.5, 2.0, -1.5]),
    ("float64", "float32", [0.5, 2.0, 3.0]),
    ("int32", "int32", [0, 2, 3]),
    ("int64", "float32", [0.5, 2.0, 3.0]),
    ("int32", "int64", [1, 2, -1]),
]


@pytest.mark.parametrize("base,exponent,powers", POW)
def test_pow_keeps_the_type_of_the_base(base: str, exponent: str, powers: list[float]) -> None:
    x = np.array([1, 2, 9], base)
    run_node("Pow", [x, np.array(powers, exponent)])
    for power in powers:
        run_node("Pow", [x, np.array(power, exponent)], initializers={1})
        run_node("Pow", [x, np.array([power], exponent)])
    run_node("Pow", [np.array(2, base), np.array(powers, exponent)], initializers={0})


def test_prints_as_a_person_writes() -> None:
    x = np.array([1, 2], F)
    for name, c, text in [
        ("Add", 0.5, "i0 + 0.5"), ("Add", -0.5, "i0 - 0.5"), ("Mul", 0.1, "0.1 * i0"), ("Pow", 2, "i0 ** 2"),
        ("Div", 8, "i0 / 8"), ("Max", 0, "i0.clamp(min=0)"), ("Pow", 0.5, "i0 ** 0.5"),
    ]:  # fmt: skip
        assert text in run_node(name, [x, np.array(c, F)], initializers={1}).forward


def test_a_constant_never_lowers_the_rank() -> None:
    run_node("Add", [np.array(1, F), np.ones((1, 1), F)], initializers={1})
    run_node("Mul", [np.array(2, np.int64), np.array([3], np.int64)], initializers={0})


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "Pow"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, None])
def test_axis_of_opset_6(name: str, axis: int | None) -> None:
    a = np.random.default_rng(0).uniform(1, 2, (2, 3, 4)).astype(F)
    shape = {0: (2, 3), 1: (3,), 2: (4,), -1: (4,), None: (3, 4)}[axis]
    b = np.random.default_rng(1).uniform(1, 2, shape).astype(F)
    attrs = {"broadcast": 1} | ({} if axis is None else {"axis": axis})
    spread = b.reshape(shape + (1,) * ({None: 1, -1: 2}.get(axis, axis or 0) * -1 + 3 - len(shape)))
    with np.errstate(all="ignore"):
        numpy = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power}
    run_node(name, [a, b], attrs, opset=6, expected=[numpy[name](a, spread)])
    run_node(name, [a, b], attrs, opset=6, initializers={1}, expected=[numpy[name](a, spread)])


@pytest.mark.parametrize("name", ["Sum", "Mean", "Max", "Min"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_variadic(name: str, count: int) -> None:
    inputs = [np.random.default_rng(i).normal(size=s).astype(F) for i, s in enumerate([(2, 3), (3,), (1, 1)][:count])]
    run_node(name, inputs, dynamic=True)
    if count > 1:
        run_node(name, inputs, initializers={count - 1})
        run_node(name, [*inputs[:-1], np.array(0.5, F)], initializers={count - 1})
        run_node(name, [np.array(0.5, F), *inputs[:-1]], initializers={0})


@pytest.mark.parametrize("name", ["Max", "Min"])
def test_nan_wins(name: str) -> None:
    x = np.array([np.nan, 1, np.inf], F)
    run_node(name, [x, x[::-1].copy()])
    run_node(name, [x, np.array(0, F)], initializers={1})
    run_node(name, [np.array([1, 5, -3], np.int32), np.array(2, np.int32)], initializers={1})


@pytest.mark.parametrize("opset", [6, 10, 11, 13])
@pytest.mark.parametrize("low,high", [(-1, 1), (None, 0.5), (0.0, None), (None, None), (2, 1)])
def test_clip(opset: int, low: float | None, high: float | None) -> None:
    x = np.array([[-2, -0.5, np.nan], [0.5, 2, 0]], F)
    if opset < 11 and (low, high) == (2, 1):
        pytest.skip("onnxruntime refuses crossed bounds as attributes")
    if opset < 11:
        run_node("Clip", [x], {k: float(v) for k, v in (("min", low), ("max", high)) if v is not None}, opset=opset)
        return
    bounds = [None if v is None else np.array(v, F) for v in (low, high)]
    run_node("Clip", [x, *bounds], opset=opset)
    stored = {i for i, v in enumerate(bounds, 1) if v is not None}
    for i in stored:
        run_node("Clip", [x, *bounds], opset=opset, initializers={i})
    run_node("Clip", [x, *bounds], opset=opset, initializers=stored, dynamic=True)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32", "uint64", "float64", "float16"])
def test_clip_by_type(dtype: str) -> None:
    x = np.array([0, 3, 9], dtype)
    run_node("Clip", [x, np.array(1, dtype), np.array(5, dtype)], initializers={1, 2}, expected=[np.clip(x, 1, 5)])
    run_node("Clip", [x, np.array(1, dtype), np.array(5, dtype)], expected=[np.clip(x, 1, 5)])


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "float64"])
def test_cumsum(exclusive: int, reverse: int, dtype: str) -> None:
    x = np.array([[1, 2, 3], [4, 5, 6]], dtype)
    attrs = {"exclusive": exclusive, "reverse": reverse}
    for axis in (0, 1, -1):
        run_node("CumSum", [x, np.array(axis, np.int32)], attrs, initializers={1})
        run_node("CumSum", [x, np.array(axis, np.int64)], attrs)
    run_node("CumSum", [x[:0], np.array(0, np.int64)], attrs)


def test_cumsum_of_infinities() -> None:
    run_node("CumSum", [np.array([1, np.inf, 2, -np.inf], F), np.array(0)], {"exclusive": 1}, initializers={1})


EINSUM = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("bij , bjk -> bik", (2, 2, 3), (2, 3, 4)),
    ("...ij,...jk->...ik", (2, 2, 3), (2, 3, 4)),
    ("ij->ji", (2, 3)),
    ("ii->i", (3, 3)),
    ("ij,jk", (2, 3), (3, 4)),
    ("i,i->", (3,), (3,)),
    ("ba,a", (2, 3), (3,)),
]


@pytest.mark.parametrize("case", EINSUM, ids=lambda c: c[0])
def test_einsum(case: tuple) -> None:
    equation, *shapes = case
    inputs = [np.random.default_rng(i).normal(size=s).astype(F) for i, s in enumerate(shapes)]
    run_node("Einsum", inputs, {"equation": equation})
    run_node("Einsum", [i.astype(np.int64) for i in inputs], {"equation": equation})


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("negative", [0, 1])
def test_infinite(positive: int, negative: int) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 1], F)
    run_node("IsInf", [x], {"detect_positive": positive, "detect_negative": negative})
    run_node("IsNaN", [x.astype(np.float16)])


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shift(dtype: str, direction: str) -> None:
    top = np.iinfo(dtype).max
    x, by = np.array([1, 7, top, top - 1], dtype), np.array([1, 0, 3, 7], dtype)
    expected = [x << by if direction == "LEFT" else x >> by]
    run_node("BitShift", [x, by], {"direction": direction}, expected=expected)
    run_node("BitShift", [x, by], {"direction": direction}, expected=expected, initializers={1})


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int32"])
def test_bits(dtype: str) -> None:
    x, y = np.array([1, 7, np.iinfo(dtype).max], dtype), np.array([3], dtype)
    for name, numpy in (("BitwiseAnd", np.bitwise_and), ("BitwiseOr", np.bitwise_or), ("BitwiseXor", np.bitwise_xor)):
        run_node(name, [x, y], expected=[numpy(x, y)])
    run_node("BitwiseNot", [x], expected=[~x])


def test_det() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 3))
    run_node("Det", [x.astype(F)])
    run_node("Det", [x.astype(np.float16)], expected=[np.linalg.det(x.astype(np.float16).astype(F)).astype(np.float16)])


def test_shapes_without_elements_and_without_axes() -> None:
    run_node("Add", [np.zeros((0, 3), F), np.ones(3, F)])
    run_node("Mul", [np.array(2, F), np.array(3, F)])
    run_node("Max", [np.zeros((2, 0), F), np.array(1, F)], initializers={1})


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min", "Concat"])
@pytest.mark.parametrize("stored", [False, True])
def test_thousands_of_inputs(op: str, stored: bool) -> None:
    """No expression is nested as deep as a node has inputs. Those that are stored are numbers, but for Concat."""
    x = np.random.default_rng(0).standard_normal((1000, 2)).astype(np.float32)
    inputs = [x[0], *(x[1:] if op == "Concat" or not stored else x[1:, 0])]
    initializers = set(range(1, 1000)) if stored else set[int]()
    run_node(op, inputs, {"axis": 0} if op == "Concat" else {}, 13, initializers=initializers, rtol=1e-4, atol=1e-4)
