"""Arithmetic of a tensor that is one number everywhere."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.ops.harness import run_model, run_onnxruntime

FLOAT, DOUBLE, HALF, INT = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT64
NUMPY = {FLOAT: np.float32, DOUBLE: np.float64, HALF: np.float16, INT: np.int64}


def net(dtype: int, begin: float, steps: list[tuple[str, list[str]]], constants: dict[str, object]) -> onnx.ModelProto:
    """The shape of x, filled; then steps from "fill" to the last output, which is joined to x."""
    kind = NUMPY[dtype]
    value = numpy_helper.from_array(np.array([begin], kind), "value")
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["fill"], value=value),
        *(helper.make_node(op, inputs, [f"y{i}"]) for i, (op, inputs) in enumerate(steps)),
        helper.make_node("Concat", ["x", f"y{len(steps) - 1}"], ["out"], axis=-1),
    ]
    x, out = (helper.make_tensor_value_info(name, dtype, dims) for name, dims in (("x", ["n", 3]), ("out", None)))
    stored = [numpy_helper.from_array(np.array(number, kind), name) for name, number in constants.items()]
    graph = helper.make_graph(nodes, "net", [x], [out], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def check(model: onnx.ModelProto, dtype: int) -> str:
    """Compare with onnxruntime; return the body of `forward`."""
    x = np.ones((2, 3), NUMPY[dtype])
    ran = run_model(model, {"x": x})
    np.testing.assert_array_equal(ran.outputs[0], run_onnxruntime(model, {"x": x})[0])
    return ran.forward


@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE, HALF])
@pytest.mark.parametrize(
    ("steps", "constants", "text"),
    [
        ([("Add", ["fill", "c"])], {"c": 8}, "8.0"),
        ([("Sub", ["c", "fill"]), ("Mul", ["y0", "c"])], {"c": 3}, "9.0"),
        ([("Div", ["c", "fill"])], {"c": [1]}, "inf"),
        ([("Pow", ["c", "fill"]), ("Add", ["y0", "c"]), ("Div", ["y1", "c"])], {"c": 4}, "1.25"),
        ([("Max", ["fill", "c"]), ("Sub", ["y0", "c"]), ("Add", ["y1", "c"])], {"c": 2}, "2.0"),
    ],
)
def test_the_number_is_computed_once(
    dtype: int, steps: list[tuple[str, list[str]]], constants: dict[str, object], text: str
) -> None:
    forward = check(net(dtype, 0, steps, constants), dtype)
    assert text in forward and not any(sign in forward for sign in (" / ", " - ", "** ", "maximum"))


@pytest.mark.parametrize(
    ("dtype", "steps", "constants"),
    [
        (FLOAT, [("Add", ["fill", "c"])], {"c": [1, 2, 3]}),
        (FLOAT, [("Mul", ["fill", "x"])], {}),
        (INT, [("Add", ["fill", "c"])], {"c": 2**62}),
    ],
)
def test_what_is_not_one_number_stays(
    dtype: int, steps: list[tuple[str, list[str]]], constants: dict[str, object]
) -> None:
    check(net(dtype, 2, steps, constants), dtype)


@pytest.mark.parametrize(("kind", "is_kept"), [(INT, False), (FLOAT, True)])
def test_a_number_that_is_only_added_to_keep_an_input_is_no_number(kind: int, is_kept: bool) -> None:
    """`x + (0 * rate)`: the result is named by the file. A rate that is a float may be NaN."""
    nodes = [
        helper.make_node("Mul", ["rate", "zero"], ["nothing"]),
        helper.make_node("Cast", ["nothing"], ["added"], to=FLOAT),
        helper.make_node("Add", ["x", "added"], ["out"]),
    ]
    x, rate = helper.make_tensor_value_info("x", FLOAT, [2, 3]), helper.make_tensor_value_info("rate", kind, [])
    out = helper.make_tensor_value_info("out", FLOAT, [2, 3])
    zero = numpy_helper.from_array(np.array(0, NUMPY[kind]), "zero")
    graph = helper.make_graph(nodes, "net", [x, rate], [out], [zero])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    feeds = {"x": np.ones((2, 3), np.float32), "rate": np.array(16000, NUMPY[kind])}
    ran = run_model(model, feeds)
    np.testing.assert_array_equal(ran.outputs[0], run_onnxruntime(model, feeds)[0])
    assert ("rate" in ran.forward) == is_kept, ran.forward
