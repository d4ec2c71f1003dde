"""Properties of operators: what the tables say is what onnxruntime computes, and what rooms make of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper as h
from onnx import numpy_helper as nh

from onnxgen.graph.operators import having, is_a
from onnxgen.graph.traits import BROADCASTS, RESHAPE, VIEW
from onnxgen.ops.index import never_negative
from onnxgen.options import Options
from onnxgen.pipeline import build

ONE = onnx.TensorProto.FLOAT
ARGUMENTS = {"Reshape": [4, 3, 2], "Squeeze": [0], "Unsqueeze": [1]}


def view(op: str, source: str, result: str) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """A node of a view, and the tensor that some take beside their input."""
    stored = [nh.from_array(np.array(ARGUMENTS[op]), f"{op}_argument")] if op in ARGUMENTS else []
    return [h.make_node(op, [source, *(t.name for t in stored)], [result])], stored


@pytest.mark.parametrize("op", sorted(having(VIEW)))
def test_views_have_the_same_elements(op: str) -> None:
    nodes, stored = view(op, "x", "y")
    ports = h.make_tensor_value_info("x", ONE, [1, 4, 6]), h.make_tensor_value_info("y", ONE, None)
    model = h.make_model(h.make_graph(nodes, "g", ports[:1], ports[1:], stored), ir_version=8)
    model.opset_import[0].version = 17
    x = np.arange(24, dtype=np.float32).reshape(1, 4, 6)
    (y,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert sorted(y.ravel()) == sorted(x.ravel())
    assert (op in having(RESHAPE) or op == "Identity") == np.array_equal(y.ravel(), x.ravel())


@pytest.mark.parametrize("op", sorted(having(BROADCASTS)))
def test_inputs_broadcast(op: str) -> None:
    """Two inputs of which either is longer along one axis; Where has a condition besides."""
    kind = {"And": bool, "Or": bool, "Xor": bool}.get(op, np.uint8 if "Bit" in op else np.float32)
    inputs = {"a": np.ones((3, 1), kind), "b": np.ones((1, 4), kind)}
    inputs = {"c": np.ones((3, 1), bool), **inputs} if op == "Where" else inputs
    attributes = {"BitShift": {"direction": "LEFT"}, "Mod": {"fmod": 1}}.get(op, {})
    ports = [h.make_tensor_value_info(n, h.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in inputs.items()]
    y = h.make_value_info("y", onnx.TypeProto())
    model = h.make_model(h.make_graph([h.make_node(op, list(inputs), ["y"], **attributes)], "g", ports, [y]))
    model.ir_version, model.opset_import[0].version = 8, 18
    (made,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    assert made.shape == (3, 4)


@pytest.mark.parametrize("op", ["Reshape", "Flatten", "Transpose"])
def test_a_weight_behind_a_view_is_a_weight(op: str, tmp_path: Path) -> None:
    """A row of a name that says nothing, of ones as before training, is a norm's scale behind any view."""
    stored = [nh.from_array(np.ones((4, 1), np.float32), "c"), nh.from_array(np.zeros(4, np.float32), "d")]
    stored.append(nh.from_array(np.array([4]), "shape"))
    nodes = [
        h.make_node(op, ["c", "shape"] if op == "Reshape" else ["c"], ["viewed"]),
        *([] if op == "Reshape" else [h.make_node("Reshape", ["viewed", "shape"], ["row"])]),
        h.make_node("LayerNormalization", ["x", "viewed" if op == "Reshape" else "row", "d"], ["y"]),
    ]
    ports = [h.make_tensor_value_info(name, ONE, [2, 4]) for name in "xy"]
    model = h.make_model(h.make_graph(nodes, "g", ports[:1], ports[1:], stored), ir_version=8)
    model.opset_import[0].version = 17
    onnx.save(model, tmp_path / "m.onnx")
    made = build(tmp_path / "m.onnx", Options(), tmp_path / "m.py")
    assert made.report.parameters == 8


def saved(graph: onnx.GraphProto, path: Path, opset: int = 17) -> Path:
    model = h.make_model(graph, ir_version=8)
    model.opset_import[0].version = opset
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("op", ["Reshape", "Flatten", "Squeeze"])
def test_the_mean_of_the_input_is_no_weight(op: str, tmp_path: Path) -> None:
    """Nor behind any view of the input."""
    numbers = np.random.default_rng(0).normal(size=(12, 5)).astype("f")
    shape, given = ([2, 1, 12], [1]) if op == "Squeeze" else ([2, 3, 4], [2, 12])
    stored = [
        nh.from_array(numbers[:, 0].copy(), "c"),
        nh.from_array(numbers, "d"),
        nh.from_array(np.array(given), "s"),
    ]
    nodes = [
        h.make_node(op, ["x"] if op == "Flatten" else ["x", "s"], ["rows"]),
        h.make_node("Sub", ["rows", "c"], ["centred"]),
        h.make_node("MatMul", ["centred", "d"], ["y"]),
    ]
    ports = h.make_tensor_value_info("x", ONE, shape), h.make_tensor_value_info("y", ONE, [2, 5])
    path = saved(h.make_graph(nodes, "g", ports[:1], ports[1:], stored), tmp_path / "m.onnx")
    assert build(path, Options(), tmp_path / "m.py").report.parameters == 60


def test_boxes_that_a_pool_steps_over_are_not_trained(tmp_path: Path) -> None:
    """The gradient by the corners of MaxRoiPool is 0 wherever there is one."""
    boxes = np.array([[0, 0, 0, 5, 5], [0, 1, 2, 6, 7]], np.float32)
    node = h.make_node("MaxRoiPool", ["x", "boxes"], ["y"], pooled_shape=[2, 2])
    ports = h.make_tensor_value_info("x", ONE, [1, 2, 8, 8]), h.make_tensor_value_info("y", ONE, [2, 2, 2, 2])
    graph = h.make_graph([node], "g", ports[:1], ports[1:], [nh.from_array(boxes, "boxes")])
    assert build(saved(graph, tmp_path / "m.onnx"), Options(), tmp_path / "m.py").report.parameters == 0


def test_one_hot_elements_may_be_negative() -> None:
    """They are those of its values, and index from the end where these are below 0."""
    values = ir.Value(name="values", const_value=ir.tensor(np.array([-1, 1])))
    depth, x = ir.Value(name="depth", const_value=ir.tensor(np.array(3))), ir.Value(name="x")
    made = ir.Node("", "OneHot", [x, depth, values], version=17).outputs[0]
    assert not never_negative(made)
    values.const_value = ir.tensor(np.array([0, 1]))
    assert never_negative(made)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_what_is_interpolated_is_rounded_again(mode: str, tmp_path: Path) -> None:
    """Between two quantisers of one scale, a resized tensor is on the grid only if its elements were copied."""
    numbers = {"scale": np.float32(0.1), "zero": np.int8(0), "sizes": np.array([1, 1, 2, 2], np.float32)}
    stored = [nh.from_array(np.asarray(value), name) for name, value in numbers.items()]
    grid = ["scale", "zero"]
    nodes = [
        h.make_node("QuantizeLinear", ["x", *grid], ["a"]), h.make_node("DequantizeLinear", ["a", *grid], ["b"]),
        h.make_node("Resize", ["b", "", "sizes"], ["c"], mode=mode),
        h.make_node("QuantizeLinear", ["c", *grid], ["d"]), h.make_node("DequantizeLinear", ["d", *grid], ["e"]),
        h.make_node("Relu", ["e"], ["y"]),
    ]  # fmt: skip
    ports = h.make_tensor_value_info("x", ONE, [1, 1, 4, 4]), h.make_tensor_value_info("y", ONE, [1, 1, 8, 8])
    path = saved(h.make_graph(nodes, "g", ports[:1], ports[1:], stored), tmp_path / "m.onnx")
    source = build(path, Options(quantized="qat"), tmp_path / "m.py").source
    body = source[source.index("class M(") :].partition("\nWEIGHTS = ")[0]
    assert body.count("self.quant(") == (1 if mode == "nearest" else 2)


def test_an_operator_of_another_domain_has_no_traits_of_its_namesake() -> None:
    assert is_a(ir.Node("", "Reshape", []), VIEW) and not is_a(ir.Node("my.own", "Reshape", []), VIEW)


@pytest.mark.parametrize(("said", "trained"), [("", 0), (', weights="w"', 4), (', weights="w", still="w"', 0)])
def test_a_plugin_says_which_inputs_are_weights(said: str, trained: int, tmp_path: Path) -> None:
    """Whatever their elements are: these are evenly spaced, as no weights are."""
    plugin = tmp_path / "ops.py"
    plugin.write_text(
        f'import onnxgen\n\n\n@onnxgen.op("Scale", domain="com.acme"{said}, infer=lambda n: [n.input(0)])\n'
        'def scale(b, x, w):\n    return b("x * w", x=x, w=w)\n'
    )
    stored = [nh.from_array(np.arange(4, dtype=np.float32), "c")]
    ports = [h.make_tensor_value_info(name, ONE, [2, 4]) for name in "xy"]
    node = h.make_node("Scale", ["x", "c"], ["y"], domain="com.acme")
    model = h.make_model(h.make_graph([node], "g", ports[:1], ports[1:], stored), ir_version=8)
    model.opset_import[0].version = 17
    model.opset_import.append(h.make_opsetid("com.acme", 1))
    onnx.save(model, tmp_path / "m.onnx")
    made = build(tmp_path / "m.onnx", Options(plugins=(str(plugin),)), tmp_path / "m.py")
    assert made.report.parameters == trained


def test_a_matrix_of_zeros_that_multiplies_is_a_weight(tmp_path: Path) -> None:
    """LoRA's second matrix before training; the triangle of a cumulative sum is none."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        m (float[5, 4] x) => (float[5, 6] y) { a = MatMul (x, A) b = MatMul (a, B) c = MatMul (b, T) y = Tanh (c) }
    """
    model = onnx.parser.parse_model(text)
    first = np.random.default_rng(0).standard_normal((4, 2))
    stored = {"A": first, "B": np.zeros((2, 6)), "T": np.tri(6)}
    model.graph.initializer.extend(nh.from_array(array.astype(np.float32), name) for name, array in stored.items())
    onnx.save(model, tmp_path / "m.onnx")
    trained = build(tmp_path / "m.onnx", Options(paranoid=True), tmp_path / "m.py").report.trainable
    assert {name: is_trained for name, (is_trained, _) in trained.items()} == {"A": True, "B": True, "T": False}
