"""Indices that count from 0 along an axis, as masks of attention have them that are functions of positions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.ops.harness import run_model, run_onnxruntime

ROWS, COLUMNS = 3, 5


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def mask(sizes: tuple[str | int, str | int], start: int = 0, swapped: bool = False) -> onnx.ModelProto:
    """`where(keep[batch, key] & (query >= 0), 0, low)` added to scores [batch, heads, query, key]."""
    stored = {
        "start": np.array(start, np.int64), "none": np.array(0, np.int64), "one": np.array(1, np.int64),
        "true": np.array(True), "behind": ints(-1), "around": ints(1, 2, 3), "before": ints(0, 1, 2),
        "outer": ints(0, 1, 3), "high": np.array(0, np.float32), "low": np.array(-1e9, np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("Shape", ["keep"], ["shape"]),
        helper.make_node("Gather", ["shape", "none"], ["rows"]),
        helper.make_node("Gather", ["shape", "one"], ["columns"]),
        helper.make_node("Range", ["none", "rows", "one"], ["row"]),
        helper.make_node("Range", ["none", "columns", "one"], ["counted"]),
        helper.make_node("Add", ["counted", "start"], ["column"])
        if start
        else helper.make_node("Identity", ["counted"], ["column"]),
        helper.make_node("Unsqueeze", ["row", "around"], ["row4"]),
        helper.make_node("Unsqueeze", ["column", "before"], ["column4"]),
        helper.make_node("Max", ["row4", "column4"], ["both"]),
        helper.make_node("Shape", ["both"], ["full"]),
        helper.make_node("Expand", ["row4", "full"], ["row5"]),
        helper.make_node("Expand", ["column4", "full"], ["column5"]),
        helper.make_node("Unsqueeze", ["row5", "behind"], ["row6"]),
        helper.make_node("Unsqueeze", ["column5", "behind"], ["column6"]),
        helper.make_node("Concat", ["column6", "row6"] if swapped else ["row6", "column6"], ["index"], axis=-1),
        helper.make_node("GatherND", ["keep", "index"], ["kept"]),
        helper.make_node("Unsqueeze", ["column", "outer"], ["query"]),
        helper.make_node("GreaterOrEqual", ["query", "none"], ["ge"]),
        helper.make_node("And", ["true", "ge"], ["always"]),
        helper.make_node("And", ["always", "kept"], ["attended"]),
        helper.make_node("Where", ["attended", "high", "low"], ["mask"]),
        helper.make_node("Add", ["scores", "mask"], ["out"]),
    ]
    batch, keys = sizes
    inputs = [
        helper.make_tensor_value_info("keep", TensorProto.BOOL, [batch, keys]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, 2, keys, keys]),
    ]
    out = [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "net", inputs, out, [numpy_helper.from_array(a, n) for n, a in stored.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def check(model: onnx.ModelProto, rows: int = ROWS, columns: int = COLUMNS) -> str:
    """Compare with onnxruntime; return the body of `forward`."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(rows, 2, columns, columns)).astype(np.float32)
    feeds = {"keep": rng.random((rows, columns)) < 0.5, "scores": scores}
    ran = run_model(model, feeds)
    np.testing.assert_array_equal(ran.outputs[0], run_onnxruntime(model, feeds)[0])
    return ran.forward


@pytest.mark.parametrize("sizes", [("batch", "keys"), (ROWS, COLUMNS), ("batch", COLUMNS), (1, "keys")])
def test_what_all_places_select_is_the_tensor(sizes: tuple[str | int, str | int]) -> None:
    forward = check(mask(sizes), rows=ROWS if sizes[0] != 1 else 1)
    assert "arange" not in forward and "unbind" not in forward and "expand" not in forward, forward


def test_places_in_another_order_stay() -> None:
    check(mask(("n", "n"), swapped=True), 4, 4)


def test_places_that_begin_elsewhere_stay() -> None:
    assert "arange" in check(mask(("batch", "keys"), start=-2))  # from the last but one on


def test_other_sizes_stay() -> None:
    """The first of several rows."""
    nodes = [
        helper.make_node("Shape", ["y"], ["shape"]),
        helper.make_node("Squeeze", ["shape"], ["count"]),
        helper.make_node("Range", ["zero", "count", "one"], ["places"]),
        helper.make_node("Unsqueeze", ["places", "behind"], ["column"]),
        helper.make_node("Concat", ["column"], ["index"], axis=-1),
        helper.make_node("GatherND", ["x", "index"], ["out"]),
    ]
    stored = {"zero": np.array(0, np.int64), "one": np.array(1, np.int64), "behind": ints(-1)}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [d]) for n, d in (("x", "a"), ("y", "b"))]
    out = [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "net", inputs, out, [numpy_helper.from_array(a, n) for n, a in stored.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    feeds = {"x": np.arange(7, dtype=np.float32), "y": np.zeros(3, np.float32)}
    np.testing.assert_array_equal(run_model(model, feeds).outputs[0], run_onnxruntime(model, feeds)[0])


@pytest.mark.parametrize(("operator", "than"), [("GreaterOrEqual", 0), ("GreaterOrEqual", 1), ("Less", 0), ("Less", 1)])
def test_only_whether_a_place_is_negative_is_known(operator: str, than: int) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 18]> net (float[n] x) => (bool[n] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 than = {{{than}}}> {{
        shape = Shape (x)  count = Squeeze (shape)  places = Range (zero, count, one)
        y = {operator} (places, than) }}"""
    model, feeds = onnx.parser.parse_model(text), {"x": np.zeros(4, np.float32)}
    ran = run_model(model, feeds)
    np.testing.assert_array_equal(ran.outputs[0], run_onnxruntime(model, feeds)[0])
    assert ("arange" in ran.forward) == (than != 0)


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (1, 0, 2), (2, 1, 0)])
@pytest.mark.parametrize("change", ["none", "flip", "short", "again"])
def test_all_places_of_a_vector_are_a_view(axes: tuple[int, ...], change: str) -> None:
    """As torch's exporter writes `as_strided`."""
    places = np.arange(24).reshape(2, 3, 4).transpose(axes)
    places = {"none": places, "flip": places[::-1], "short": places[1:], "again": places * 0}[change]
    text = """<ir_version: 9, opset_import: ["" : 18]> net (float[24] x) => (float[a, b, c] y) {
        y = Gather (x, places) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(places), "places"))
    feeds = {"x": np.arange(24, dtype=np.float32)}
    ran = run_model(model, feeds)
    np.testing.assert_array_equal(ran.outputs[0], run_onnxruntime(model, feeds)[0])
    assert ("view" in ran.forward or "unflatten" in ran.forward or "reshape" in ran.forward) == (change == "none")


@pytest.mark.parametrize("kind", ["stored", "given", "unsqueezed"])
def test_indices_of_one_axis_take_rows(kind: str) -> None:
    indices = np.array([[[0], [-1], [2]]], np.int64)
    inside = "idx = Unsqueeze (i, last)" if kind == "unsqueezed" else "idx = Identity (i)"
    shape = "1, 3" if kind == "unsqueezed" else "1, 3, 1"
    given = f", int64[{shape}] i" if kind != "stored" else ""
    text = f"""<ir_version: 9, opset_import: ["" : 18]> net (float[3, 4] x{given}) => (float[a, b, c] y)
        <int64[1] last = {{-1}}> {{ {inside}  y = GatherND (x, idx) }}"""
    model = onnx.parser.parse_model(text)
    feeds: dict[str, np.ndarray] = {"x": np.arange(12, dtype=np.float32).reshape(3, 4)}
    value = indices[..., 0] if kind == "unsqueezed" else indices
    if kind == "stored":
        model.graph.initializer.append(numpy_helper.from_array(value, "i"))
    else:
        feeds["i"] = value
    ran = run_model(model, feeds)
    np.testing.assert_array_equal(ran.outputs[0], run_onnxruntime(model, feeds)[0])
    assert "unbind" not in ran.forward
