"""Properties of operators: what the tables say is what onnxruntime computes, and what rooms make of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper as h
from onnx import numpy_helper as nh

from onnxgen.graph.catalogue import having
from onnxgen.graph.traits import BROADCASTS, RESHAPE, VIEW
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
