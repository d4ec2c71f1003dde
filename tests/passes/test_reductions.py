"""Axes that are dropped and added again, maxima of maxima, and means that are written as sums."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

from tests.ops.harness import run_model
from tests.support.idioms import function_of, hold, spelled, text_of

STORED = (
    "int64[1] a0 = {0}, int64[1] a1 = {1}, int64[1] a2 = {2}, int64[2] a12 = {1, 2}, int64[1] last = {-1}, "
    "int64[4] flat = {2, 1, 1, 1}, int64[3] row = {2, 1, -1}, int64 first = {0}, float third = {0.33333334}, "
    "float three = {3}, float quarter = {0.25}, float near = {0.2501}, float[1, 1, 1, 1] deep = {0.25}, "
    "float low = {-inf}, float high = {inf}, float[1, 1, 1, 1] deep_low = {-inf}, float half = {0.5}"
)

# (name, the graph, what forward must say, which is also the function that it must compute)
SPELLINGS = [
    ("maximum", "m = ReduceMax<keepdims = 0>(x, a1) y = Unsqueeze(m, a1)", "x.amax(dim=1, keepdim=True)"),
    ("minimum", "m = ReduceMin<keepdims = 0>(x, a2) y = Unsqueeze(m, last)", "x.amin(dim=2, keepdim=True)"),
    ("mean", "m = ReduceMean<keepdims = 0>(x, a12) y = Unsqueeze(m, a12)", "x.mean(dim=(1, 2), keepdim=True)"),
    ("sum by Reshape", "m = ReduceSum<keepdims = 0>(x, a1) y = Reshape(m, row)", "x.sum(dim=1, keepdim=True)"),
    (
        "maximum of a maximum",
        "m = ReduceMax<keepdims = 0>(x, a2) y = ReduceMax<keepdims = 0>(m, a1)",
        "x.amax(dim=(1, 2))",
    ),
    (
        "maximum of a maximum along the axis before it",
        "m = ReduceMax<keepdims = 0>(x, a0) y = ReduceMax<keepdims = 0>(m, a1)",
        "x.amax(dim=(0, 2))",
    ),
    ("minimum of a minimum, kept", "m = ReduceMin(x, a1) y = ReduceMin(m, a2)", "x.amin(dim=(1, 2), keepdim=True)"),
    ("mean as a sum", "s = ReduceSum<keepdims = 0>(x, last) y = Mul(quarter, s)", "x.mean(dim=-1)"),
    ("mean by Div", "s = ReduceSum(x, a0) y = Div(s, three)", "x.mean(dim=0, keepdim=True)"),
    ("mean of three", "s = ReduceSum(x, a0) y = Mul(s, third)", "x.mean(dim=0, keepdim=True)"),
    (
        "softmax, JAX",
        "m = ReduceMax<keepdims = 0>(x, a1) c = Max(low, m) u = Unsqueeze(c, a1) d = Sub(x, u) e = Exp(d) "
        "s = ReduceSum<keepdims = 0>(e, a1) t = Unsqueeze(s, a1) y = Div(e, t)",
        "F.softmax(x, dim=1)",
    ),
    ("nothing is less", "m = Min(x, high) y = Tanh(m)", "torch.tanh(x)"),
    ("bounds that are none", "c = Clip(x, low, high) y = Tanh(c)", "torch.tanh(x)"),
    ("one bound that is none", "y = Clip(x, half, high)", "x.clamp(min=0.5)"),
    (
        "a truth value",
        "g = Greater(x, half) n = Cast<to = 7>(g) b = Cast<to = 9>(n) y = Where(b, x, half)",
        "torch.where(x > 0.5, x, 0.5)",
    ),
    ("the element that was added", "u = Unsqueeze(x, a1) g = Gather<axis = 1>(u, first) y = Tanh(g)", "torch.tanh(x)"),
]


@pytest.mark.parametrize("text, wanted", [s[1:] for s in SPELLINGS], ids=[s[0] for s in SPELLINGS])
def test_spelled_out(text: str, wanted: str) -> None:
    shape = "3, 2, 4" if "third" in text or "three" in text else "2, 3, 4"
    x = np.random.default_rng(0).normal(size=[int(d) for d in shape.split(", ")]).astype("float32")
    hold(spelled(text, STORED, shape, opset=18), f"return {wanted}", function_of(wanted), x)


# (name, the graph, what forward must say)
NEARLY = [
    ("another axis", "m = ReduceMax<keepdims = 0>(x, a1) y = Unsqueeze(m, last)", "x.amax(dim=1).unsqueeze(-1)"),
    ("used twice", "m = ReduceMax<keepdims = 0>(x, a1) u = Unsqueeze(m, a1) v = Sub(x, u) y = Add(v, m)", "unsqueeze"),
    ("minimum of a maximum", "m = ReduceMax<keepdims = 0>(x, a2) y = ReduceMin<keepdims = 0>(m, a1)", "amin"),
    ("kept, then dropped", "m = ReduceMax(x, a2) y = ReduceMax<keepdims = 0>(m, a1)", ".amax(dim=1)"),
    ("a sum of a sum", "m = ReduceSum<keepdims = 0>(x, a2) y = ReduceSum<keepdims = 0>(m, a1)", ".sum(dim=1)"),
    ("nearly a mean", "s = ReduceSum<keepdims = 0>(x, last) y = Mul(near, s)", "0.2501 * x.sum(dim=-1)"),
    ("half of a sum of two", "s = ReduceSum<keepdims = 0>(x, a1) y = Mul(half, s)", "0.5 * x.sum(dim=1)"),
    ("a mean of higher rank", "s = ReduceSum(x, last) y = Mul(deep, s)", "sum"),
    ("a number as a truth value", "i = Cast<to = 7>(x) b = Cast<to = 9>(i) y = Where(b, x, half)", ".long().bool()"),
    ("a bound of higher rank", "y = Max(x, deep_low)", "max"),
]


@pytest.mark.parametrize("text, wanted", [s[1:] for s in NEARLY], ids=[s[0] for s in NEARLY])
def test_nearly(text: str, wanted: str) -> None:
    assert wanted in text_of(spelled(text, STORED, "2, 2, 4", opset=18))


@pytest.mark.parametrize("shape", [(3, 4, 5), (0, 4, 5)])
def test_sizes_that_the_file_leaves_open(shape: tuple[int, ...]) -> None:
    """With infinities, and without elements. NaN: onnxruntime drops some from a maximum, so that is of each number."""
    text = "m = ReduceMax<keepdims = 0>(x, a2) c = Max(low, m) n = ReduceMax<keepdims = 0>(c, a1) y = Unsqueeze(n, a1)"
    x = np.resize(np.array([np.inf, -np.inf, 1, -np.inf, -2, -np.inf, -np.inf], "float32"), shape)
    hold(spelled(text, STORED, "N, 4, 5", opset=20), "return x.amax(dim=(1, 2)).unsqueeze(-1)", x=x)
    hold(spelled(text.replace("c, a1", "c, a0"), STORED, "4, N, 5", opset=20), "(dim=(0, 2)", x=x.swapaxes(0, 1))
    x = np.resize(np.array([np.nan, np.inf, -np.inf, 1], "float32"), shape)
    hold(spelled("m = Max(low, x) n = Min(m, high) y = Neg(n)", STORED, "N, 4, 5", opset=20), "return -x", x=x)


def test_an_axis_of_one_element_for_another() -> None:
    """A Squeeze before the mean, and the axis that the mean leaves: one axis goes, and one of one element stays."""
    one = "q = Squeeze(x, a1) m = ReduceMean<keepdims = 0>(q, %s) y = Unsqueeze(m, %s)"
    mean = function_of("x.mean(dim=2)")
    hold(spelled(one % ("a1", "a1"), STORED, "N, 1, 4", opset=18), "return x.mean(dim=2)", mean)
    hold(spelled(one % ("a0", "a0"), STORED, "4, 1, N", opset=18), "return x.mean(dim=0)")
    hold(spelled(one % ("a1", "a0"), STORED, "N, 1, 4", opset=18), "return x.squeeze(1).mean(dim=1).unsqueeze(0)")
    twice = "q = Squeeze(x, a1) m = ReduceMean(q, a1) y = Sub(q, m)"
    hold(spelled(twice, STORED, "N, 1, 4", opset=18), ".mean(dim=1, keepdim=True)")


@pytest.mark.parametrize("how, wanted", [("Max", "(x > 0.5).any(dim=1)"), ("Min", "(x > 0.5).all(dim=1)")])
def test_truth_values(how: str, wanted: str) -> None:
    """PaddlePaddle writes `any` and `all` as the maximum and minimum of numbers. None of no values is true."""
    text = (
        f"g = Greater(x, half) n = Cast<to = 6>(g) m = Reduce{how}<keepdims = 0>(n, a1) b = Cast<to = 9>(m) y = Not(b)"
    )
    x = np.array([[0, 1, 0], [1, 1, 1], [0, 0, 0]], "float32")
    model = spelled(text.replace("y = Not(b)", "y = Cast<to = 1>(b)"), STORED, "N, 3", opset=20)
    hold(model, wanted, x=x)
    hold(model, wanted, x=x[:0])
    open_axis = spelled(text.replace("y = Not(b)", "y = Cast<to = 1>(b)"), STORED, "3, N", opset=20)
    hold(open_axis, wanted if how == "Min" else ".int().amax(dim=1)", x=x)


def test_half_precision_keeps_its_sums() -> None:
    """The sum overflows, and the mean would not."""
    text = "s = ReduceSum<keepdims = 0>(x, last) y = Mul(q, s)"
    model = spelled(text, "int64[1] last = {-1}", "2, 4", "float16", opset=18)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0.25, "float16"), "q"))
    ran = run_model(model, {"x": np.full((2, 4), 30000, "float16")})
    assert np.isinf(ran.outputs[0]).all()


def test_integers() -> None:
    ran = hold(
        spelled("m = ReduceMax<keepdims = 0>(x, a1) y = Unsqueeze(m, a1)", STORED, "2, 4", "int32", opset=18),
        "return x.amax(dim=1, keepdim=True)",
        x=np.arange(8, dtype="int32").reshape(2, 4),
    )
    assert ran.outputs[0].dtype in (np.int32, torch.int32)
