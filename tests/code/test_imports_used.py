"""A file imports whatever any part of it uses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxgen.options import Options
from onnxgen.pipeline import build


def test_a_function_that_only_a_container_is_given(tmp_path: Path) -> None:
    nodes, weights = [], []
    for number, activation in enumerate(("Tanh", "Relu")):
        scope, weight = f"/0/0.{number}", f"0.{number}.conv.weight"
        weights.append(numpy_helper.from_array(np.full(6, 0.5 + number, np.float32), weight))
        x, y = ("x", "h") if number == 0 else ("h", "y")
        zeros = numpy_helper.from_array(np.zeros(6, np.float32))
        nodes += [
            helper.make_node("Constant", [], [f"{scope}/bias"], f"{scope}/conv/Constant", value=zeros),
            helper.make_node("LayerNormalization", [x, weight, f"{scope}/bias"], [f"{scope}/n"], f"{scope}/conv/Norm"),
            helper.make_node(activation, [f"{scope}/n"], [y], f"{scope}/{activation}"),
        ]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 5, 6]) for name in "xy"]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], weights)
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    made = build(path, Options(), tmp_path / "net.py")
    assert "Block(torch.tanh), Block(F.relu)" in made.source
    assert "import torch.nn.functional as F\n" in made.source and not made.report.plain
