"""Constants, ranges, one-hot, places and random numbers."""

from __future__ import annotations

import ast
from textwrap import dedent
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from onnx import helper, numpy_helper

from tests.ops.harness import assert_same, run_model, run_node, run_onnxruntime, unbound_names

F = np.float32
RANDOM = "RandomNormal RandomUniform RandomNormalLike RandomUniformLike Multinomial Bernoulli".split()
OPERATORS = "Constant ConstantOfShape Range EyeLike Trilu Shape Size OneHot NonZero".split()


@pytest.mark.parametrize("name", [*OPERATORS, *RANDOM])
def test_every_schema_version_binds(name: str) -> None:
    assert unbound_names(name) == []


CONSTANTS: list[dict[str, Any]] = [
    {"value": numpy_helper.from_array(np.array([[1, 2], [3, 4]], F))},
    {"value": numpy_helper.from_array(np.array(7, np.uint8))},
    {"value": numpy_helper.from_array(np.zeros((2, 0), np.float64))},
    {"value_float": 1.5}, {"value_floats": [1.5, 2.0]}, {"value_int": 3}, {"value_ints": [3, 4]},
]  # fmt: skip


@pytest.mark.parametrize("attrs", CONSTANTS, ids=lambda a: next(iter(a)))
def test_constant(attrs: dict[str, Any]) -> None:
    run_node("Constant", [], attrs)


def test_constant_of_text() -> None:
    run_node("Constant", [], {"value_strings": ["a'\"\\", "\n"]}, expected=[np.array(["a'\"\\", "\n"], object)])


@pytest.mark.parametrize("stored", [(), (0,)])
@pytest.mark.parametrize("value", [None, F(1), F(0.1), np.int64(0), np.int64(1), np.int32(-3), np.bool_(True), F(-0.0)])
@pytest.mark.parametrize("shape", [(2, 3), (0, 2), ()])
def test_constant_of_shape(stored: tuple[int, ...], value: Any, shape: tuple[int, ...]) -> None:
    attrs = {} if value is None else {"value": numpy_helper.from_array(np.array([value]))}
    run_node("ConstantOfShape", [np.array(shape, np.int64)], attrs, initializers=set(stored))


RANGES = [(0, 5, 1), (2, 9, 3), (5, 1, 2), (5, 1, -2), (1, 5, -1), (0, 0, 1)]


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "float32", "float64"])
@pytest.mark.parametrize("bounds", [*RANGES, (0, 1, 0.1), (0, 0.1, 0.1), (0.6, 0, -0.3), (1.5, -1.0, -0.5)], ids=str)
@pytest.mark.parametrize("stored", [(), (0, 2), (0, 1, 2)])
def test_range(dtype: str, bounds: tuple[float, ...], stored: tuple[int, ...]) -> None:
    if dtype.startswith("int") and bounds not in RANGES:
        return
    run_node("Range", [np.array(b, dtype) for b in bounds], initializers=set(stored))


def test_range_of_a_size() -> None:
    """`torch.arange(x.shape[0])`, and a length that may not be positive."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Range", ["zero", "n", "one"], ["o0"]),
        helper.make_node("Sub", ["n", "three"], ["m"]),
        helper.make_node("Range", ["zero", "m", "one"], ["o1"]),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", 1, ["n"])],
        [helper.make_tensor_value_info(f"o{i}", 7, None) for i in range(2)],
        [numpy_helper.from_array(np.array(v), k) for k, v in (("zero", 0), ("one", 1), ("three", 3))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for n in (0, 2, 5):
        feeds = {"x": np.zeros(n, F)}
        ran = run_model(model, feeds)
        for actual, expected in zip(ran.outputs, run_onnxruntime(model, feeds), strict=True):
            assert_same(actual, expected)
    assert "torch.arange(n, device=x.device)" in ran.forward


def test_a_range_in_steps_of_one_has_no_step() -> None:
    """It has no first number either if that is 0."""
    for first, count in ((0, 1), (1, 2), (5, 2)):
        nodes = f"""f = Constant <value = int64 {{{first}}}> () one = Constant <value = int64 {{1}}> ()
          s = Shape (x) i = Constant <value = int64 {{0}}> () n = Gather (s, i) e = Add (n, f) r = Range (f, e, one)"""
        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["" : 18]> g (float[n] x) => (int64[m] r) {{ {nodes} }}'
        )
        feeds = {"x": np.zeros(6, F)}
        ran = run_model(model, feeds)
        assert_same(ran.outputs[0], run_onnxruntime(model, feeds)[0])
        calls = [call for call in ast.walk(ast.parse(dedent(ran.forward))) if isinstance(call, ast.Call)]
        (arange,) = [call for call in calls if ast.unparse(call.func) in ("torch.arange", "range_tensor")]
        assert ast.unparse(arange.func) == "torch.arange" and len(arange.args) == count, ast.unparse(arange)


OF_SIZES = {
    "anchors": (
        "f = Cast <to = 1> (n) r = Range (zero, f, one) y = Add (r, half)",
        "torch.arange(x.shape[0], dtype=torch.float32, device=x.device) + 0.5",
    ),
    "from one": ("f = Cast <to = 1> (n) y = Range (one, f, one)", "range_tensor(1.0, x.shape[0], 1.0, dtype"),
    "in steps": ("f = Cast <to = 1> (n) y = Range (zero, f, half)", "range_tensor(0.0, x.shape[0], 0.5, dtype"),
    "of double": ("d = Cast <to = 11> (n) m = Cast <to = 1> (d) y = Mul (x, m)", "return x * out"),
    "scaled": ("f = Cast <to = 1> (n) g = Sqrt (f) y = Div (x, g)", "x / math.sqrt(x.shape[0])"),
    "sums": ("f = Cast <to = 1> (n) g = Sub (f, half) h = Neg (f) a = Add (x, g) y = Add (a, h)", "x + (n - 0.5) - n"),
    "products": ("f = Cast <to = 1> (n) g = Mul (f, tenth) y = Sub (x, g)", "x - x.shape[0] * 0.10000000149011612"),
    "quotients": ("f = Cast <to = 1> (n) g = Div (f, tenth) y = Sub (x, g)", "x - x.shape[0] / 0.10000000149011612"),
    "of nothing": ("f = Cast <to = 1> (n) y = Div (one, f)", "float32"),
    "two roundings": ("f = Cast <to = 1> (n) g = Mul (f, tenth) h = Mul (g, tenth) y = Add (x, h)", "0.1 * torch.t"),
    "half": ("h = Cast <to = 10> (n) f = Cast <to = 1> (h) y = Mul (x, f)", "tensor(x.shape[0], dtype=torch.float16"),
    "areas": ("a = Mul (n, n) f = Cast <to = 1> (a) y = Add (x, f)", "tensor(x.shape[0] ** 2, dtype=torch.float32"),
    "several": ("f = Cast <to = 1> (s) y = Mul (f, half)", "torch.tensor([x.shape[0] * 0.5], dtype=torch.float32"),
    "a choice": (
        "f = Cast <to = 1> (n) c = Greater (x, half) y = Where (c, f, one)",
        "torch.where(mask, float(mask.shape[0]), 1",
    ),
}


@pytest.mark.parametrize("nodes,text", OF_SIZES.values(), ids=OF_SIZES)
def test_floats_that_are_sizes(nodes: str, text: str) -> None:
    """Python computes them, and they are rounded as the file rounds them. Nothing takes a number out of a tensor."""
    constants = {"zero": 0, "one": 1, "half": 0.5, "tenth": 0.1}
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]> g (float[n] x) => (float[m] y) {
        s = Shape (x) i = Constant <value = int64 {0}> () n = Gather (s, i) """
        + "".join(f"{name} = Constant <value = float {{{value}}}> () " for name, value in constants.items())
        + nodes
        + "}"
    )
    for n in (0, 1, 7, 4099):
        feeds = {"x": np.random.default_rng(n).normal(size=n).astype(F)}
        ran = run_model(model, feeds)
        for actual, expected in zip(ran.outputs, run_onnxruntime(model, feeds), strict=True):
            np.testing.assert_array_equal(actual, expected)
            assert actual.dtype == expected.dtype and actual.shape == expected.shape
    assert text in ran.forward and ".item()" not in ran.forward


@pytest.mark.parametrize("k", [-4, -1, 0, 2, 5])
@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (4, 2)])
def test_eye_and_triangles(k: int, shape: tuple[int, int]) -> None:
    x = np.arange(shape[0] * shape[1]).reshape(shape)
    for dtype in (6, 1, 7, 10, 9, 4):
        attrs = {"k": k} | ({} if dtype == 6 else {"dtype": dtype})
        eye = np.eye(*shape, k, helper.tensor_dtype_to_np_dtype(dtype))
        run_node("EyeLike", [x.astype(np.int32)], attrs, opset=9, expected=[eye])
    for upper in (0, 1):
        cut = np.triu if upper else np.tril
        for typed in (x.astype(F), x.astype(bool), x):
            for stored in (set(), {1}):
                run_node("Trilu", [typed, np.array(k)], {"upper": upper}, opset=14, initializers=stored)
        small = x.astype(np.uint16)
        run_node("Trilu", [small, np.array(k)], {"upper": upper}, initializers={1}, expected=[cut(small, k)])
    run_node("Trilu", [x])


def test_a_diagonal_of_sizes_that_are_known_at_run_time() -> None:
    """Of the type that is asked for, else of the input's."""
    for k, dtype in enumerate(("float32", "bool", "int64", "uint16", "uint32", "uint64"), -2):
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        eye = np.eye(3, 4, k, dtype)
        run_node("EyeLike", [np.zeros((3, 4), dtype)], {"k": k}, dynamic=True, expected=[eye])
        run_node("EyeLike", [np.zeros((3, 4), np.int16)], {"k": k, "dtype": kind}, dynamic=True, expected=[eye])


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize(
    "values", [np.array([0, 1], F), np.array([2.5, -1], F), np.array([0, 1]), np.array([3, 4], np.int32)]
)
@pytest.mark.parametrize("stored", [(), (1, 2), (1,)])
def test_one_hot(axis: int, values: np.ndarray, stored: tuple[int, ...]) -> None:
    """Negative indices count from the end, those out of range are off everywhere."""
    indices = np.array([[0, 2, -1], [3, -3, -4]])
    hot = np.where(indices < 0, indices + 3, indices)[..., None] == np.arange(3)
    expected = np.moveaxis(np.where(hot, values[1], values[0]), -1, axis).astype(values.dtype)
    ran = run_node(
        "OneHot", [indices, np.array(3), values], {"axis": axis}, initializers=set(stored), expected=[expected]
    )
    assert "def one_hot_places" in ran.source


def test_one_hot_of_floats() -> None:
    run_node("OneHot", [np.array([0, 1], F), np.array([3], F), np.array([0, 1], F)])


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint8", "int32"])
def test_non_zero(dtype: str) -> None:
    run_node("NonZero", [np.array([[0, 1, 2], [3, 0, 0]]).astype(dtype)], dynamic=True)
    run_node("NonZero", [np.zeros((0, 2), dtype)])


@pytest.mark.parametrize("x", [0, 2])
def test_non_zero_of_a_scalar(x: float) -> None:
    """onnxruntime finds one axis in it, torch none."""
    run_node("NonZero", [np.array(x, F)])
    chain = """<ir_version: 8, opset_import: ["" : 17]> g (float[n, m] x) => (int64[k, l] y) {
        s = Squeeze(x)
        y = NonZero(s)
    }"""
    for shape in ((1, 1), (1, 3), (2, 3)):
        feed = {"x": np.full(shape, x, F)}
        model = onnx.parser.parse_model(chain)
        assert_same(run_model(model, feed).outputs[0], run_onnxruntime(model, feed)[0])


def test_shape_and_size() -> None:
    x = np.zeros((2, 3, 4), F)
    run_node("Shape", [x], dynamic=True)
    run_node("Shape", [x], {"start": 1, "end": -1}, opset=15, dynamic=True)
    run_node("Size", [x], dynamic=True)


# ------------------------------------------------------------------------------------------------------ by chance


def draw(name: str, inputs: list[Any], attrs: dict[str, Any]) -> tuple[np.ndarray, torch.nn.Module]:
    ran = run_node(name, inputs, attrs, compare=False)
    return ran.outputs[0], ran.model


@pytest.mark.parametrize("like", [False, True])
@pytest.mark.parametrize("dtype", [1, 11, 10])
def test_normal(like: bool, dtype: int) -> None:
    shape = (40, 50)
    inputs = [np.zeros(shape, F)] if like else []
    attrs: dict[str, Any] = {"dtype": dtype} | ({} if like else {"shape": shape})
    for mean, scale in ((0.0, 1.0), (5.0, 0.25)):
        name = "RandomNormalLike" if like else "RandomNormal"
        drawn, _ = draw(name, inputs, attrs | {"mean": mean, "scale": scale})
        assert drawn.shape == shape and drawn.dtype == helper.tensor_dtype_to_np_dtype(dtype)
        assert abs(drawn.astype(F).mean() - mean) < 0.1 * scale and abs(drawn.astype(F).std() - scale) < 0.1 * scale


@pytest.mark.parametrize("like", [False, True])
def test_uniform(like: bool) -> None:
    shape = (40, 50)
    inputs = [np.zeros(shape, F)] if like else []
    attrs: dict[str, Any] = {} if like else {"shape": shape}
    for low, high in ((0.0, 1.0), (2.0, 4.0)):
        name = "RandomUniformLike" if like else "RandomUniform"
        drawn, _ = draw(name, inputs, attrs | {"low": low, "high": high})
        assert drawn.shape == shape and drawn.dtype == F
        assert low <= drawn.min() < low + 0.1 and high - 0.1 < drawn.max() <= high


def test_a_seed_repeats() -> None:
    for name, inputs, attrs in (
        ("RandomNormal", [], {"shape": [20]}),
        ("RandomUniformLike", [np.zeros(20, F)], {}),
        ("Bernoulli", [np.full(20, 0.5, F)], {}),
        ("Multinomial", [np.zeros((1, 9), F)], {"sample_size": 20}),
    ):
        first, _ = draw(name, inputs, attrs | {"seed": 3.0})
        again, _ = draw(name, inputs, attrs | {"seed": 3.0})
        other, _ = draw(name, inputs, attrs | {"seed": 4.0})
        free, _ = draw(name, inputs, attrs)
        assert np.array_equal(first, again) and not np.array_equal(first, other) and not np.array_equal(first, free)


def test_bernoulli_and_multinomial() -> None:
    drawn, _ = draw("Bernoulli", [np.tile(np.array([0, 0.25, 1], F), (2000, 1))], {"dtype": 7})
    assert drawn.dtype == np.int64 and np.allclose(drawn.mean(0), [0, 0.25, 1], atol=0.06)
    drawn, _ = draw("Bernoulli", [np.ones(3)], {})
    assert drawn.dtype == np.float64 and drawn.tolist() == [1, 1, 1]
    odds = np.log(np.array([[0.7, 0.3], [1e-30, 1]], F)) + 5
    drawn, _ = draw("Multinomial", [odds], {"sample_size": 3000})
    assert drawn.dtype == np.int32 and drawn.shape == (2, 3000)
    assert abs(drawn[0].mean() - 0.3) < 0.05 and drawn[1].all()
    drawn, _ = draw("Multinomial", [odds], {"sample_size": 2, "dtype": 7})
    assert drawn.dtype == np.int64


def test_onnx_can_check_these_models() -> None:
    onnx.checker.check_model(helper.make_model(helper.make_graph([], "empty", [], [])))
