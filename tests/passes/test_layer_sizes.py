"""Tensors of layers with a wrong rank or size: one line, as onnxruntime refuses them, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgen
from onnxgen import OnnxgenError

Shapes = list[tuple[int, ...]]
LAYERS: dict[str, tuple[tuple[int, ...], Shapes, dict[str, Any]]] = {
    "Conv": ((2, 4, 8, 8), [(6, 2, 3, 3), (6,)], {"group": 2}),
    "ConvTranspose": ((2, 4, 8, 8), [(4, 3, 3, 3), (6,)], {"group": 2}),
    "BatchNormalization": ((2, 4, 8), [(4,), (4,), (4,), (4,)], {}),
    "InstanceNormalization": ((2, 4, 8), [(4,), (4,)], {}),
    "LSTM": ((5, 2, 4), [(1, 12, 4), (1, 12, 3), (1, 24)], {"hidden_size": 3}),
    "GRU": ((5, 2, 4), [(1, 9, 4), (1, 9, 3), (1, 18)], {"hidden_size": 3}),
    "RNN": ((5, 2, 4), [(1, 3, 4), (1, 3, 3), (1, 6)], {"hidden_size": 3}),
    "FusedConv": ((2, 4, 8, 8), [(6, 4, 3, 3), (6,)], {"activation": "Relu"}),
}
CASES = [
    *(("Conv", 1, s) for s in ((6, 1), (1, 6), (0,), (5,))),
    *(("Conv", 0, s) for s in ((6, 3, 3, 3), (6, 4, 3, 3), (6, 2, 3), (6, 2), (6, 2, 0, 3), (6, 2, 3, 3, 3))),
    *(("ConvTranspose", 0, s) for s in ((4, 3, 3), (8, 3, 3, 3))),
    *(("ConvTranspose", 0, s) for s in ((3, 3, 3, 3), (5, 3, 3, 3))),
    *(("ConvTranspose", 1, s) for s in ((6, 1), (1, 6))),
    *(("BatchNormalization", i, s) for i in range(4) for s in ((4, 1), (1, 4), (3,))),
    *(("InstanceNormalization", i, s) for i in range(2) for s in ((4, 1), (1, 4), (5,))),
    *(("LSTM", 0, s) for s in ((2, 12, 4), (1, 13, 4), (1, 24, 4), (1, 12, 0), (1, 12, 5))),
    *(("LSTM", 1, s) for s in ((1, 13, 3), (1, 12, 1), (1, 12, 2), (3, 12, 1), (1, 12, 0))),
    *(("LSTM", 2, s) for s in ((2, 24), (1, 48), (1, 23), (1, 24, 1), (24,))),
    *(("GRU", 0, s) for s in ((2, 9, 4), (1, 18, 4))),
    *(("GRU", 2, s) for s in ((1, 36), (1, 17))),
    *(("RNN", i, s) for i, s in ((0, (1, 6, 4)), (1, (1, 3, 2)), (2, (1, 12)))),
    *(("FusedConv", 1, s) for s in ((6, 1), (1, 6))),
]


def network(op: str, at: int, shape: tuple[int, ...] | None) -> onnx.ModelProto:
    """A layer whose stored tensor `at` has another shape; None: all are right."""
    x, shapes, attributes = LAYERS[op]
    shapes = [shape if i == at and shape is not None else s for i, s in enumerate(shapes)]
    random = np.random.default_rng(0)
    stored = [numpy_helper.from_array(random.random(s).astype(np.float32), f"w{i}") for i, s in enumerate(shapes)]
    domain = "com.microsoft" if op.startswith("Fused") else ""
    node = helper.make_node(op, ["x", *(w.name for w in stored)], ["y"], "layer", domain=domain, **attributes)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)]
    graph = helper.make_graph(
        [node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], stored
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def runs(proto: onnx.ModelProto, op: str) -> bool:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        session.run(None, {"x": np.ones(LAYERS[op][0], np.float32)})
    except Exception:
        return False
    return True


@pytest.mark.parametrize(("op", "at", "shape"), CASES)
def test_what_onnxruntime_refuses_is_one_line(op: str, at: int, shape: tuple[int, ...], tmp_path: Path) -> None:
    proto = network(op, at, shape)
    assert not runs(proto, op)
    onnx.save(proto, tmp_path / "net.onnx")
    with pytest.raises(OnnxgenError) as caught:
        onnxgen.generate(tmp_path / "net.onnx", tmp_path / "net.py")
    assert caught.value.exit_code == 2 and len(caught.value.problems) == 1


@pytest.mark.parametrize("given", [{"group": 0}, {"group": -1}, {"strides": [0, 1]}, {"dilations": [1, -1]}])
def test_attributes_that_are_no_counts(given: dict[str, Any], tmp_path: Path) -> None:
    proto = network("Conv", 0, None)
    (name,) = given
    kept = [a for a in proto.graph.node[0].attribute if a.name != name]
    del proto.graph.node[0].attribute[:]
    proto.graph.node[0].attribute.extend([*kept, helper.make_attribute(name, given[name])])
    assert not runs(proto, "Conv")
    onnx.save(proto, tmp_path / "net.onnx")
    with pytest.raises(OnnxgenError, match=f"layer .*attribute '{name}' has to be 1 or more") as caught:
        onnxgen.generate(tmp_path / "net.onnx", tmp_path / "net.py")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("op", LAYERS)
def test_right_sizes_are_converted(op: str, tmp_path: Path) -> None:
    proto = network(op, 0, None)
    onnx.save(proto, tmp_path / "net.onnx")
    onnxgen.generate(tmp_path / "net.onnx", tmp_path / "net.py")
    assert runs(proto, op) and onnxgen.verify(tmp_path / "net.onnx", tmp_path / "net.py").agrees


def reshaped(to: list[int]) -> onnx.ModelProto:
    """Images [n, 3, h, 8], pooled by 8: [n, 3, h/8, 1], reshaped."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["h"], "pool", kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Shape", ["h"], ["s"], start=0, end=1),
        helper.make_node("Concat", ["s", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["h", "to"], ["y"], "layer"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["n", 3, "h", 8]), ("y", None)))
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(np.array(to), "rest")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("height", "to"), [(16, [2, 3]), (24, [2, 3]), (16, [4, 2]), (24, [-1, 9])])
def test_an_input_shape_at_which_the_file_does_not_run_is_one_line(height: int, to: list[int], tmp_path: Path) -> None:
    onnx.save(reshaped(to), tmp_path / "net.onnx")
    session = ort.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    options = onnxgen.Options(input_shapes={"x": (-1, 3, height, 8)})
    try:
        session.run(None, {"x": np.ones((5, 3, height, 8), np.float32)})
    except Exception:
        with pytest.raises(OnnxgenError, match=rf"node layer .*does not run with --input-shape x=-1,3,{height},8: "):
            onnxgen.generate(tmp_path / "net.onnx", tmp_path / "net.py", options)
    else:
        onnxgen.generate(tmp_path / "net.onnx", tmp_path / "net.py", options)
    onnxgen.generate(tmp_path / "net.onnx", tmp_path / "net.py")
