"""A value carried around a loop keeps its place, even where the loop never reads what it carries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tests.support.real import run


@pytest.mark.parametrize("turns", [0, 3])
def test_overwritten_state(turns: int, tmp_path: Path) -> None:
    """state = x; for each turn: state = turn * ones; then reshape(state), which uses it once."""
    onnxruntime = pytest.importorskip("onnxruntime")
    float_vector = helper.make_tensor_value_info("state", TensorProto.FLOAT, [4])
    body = helper.make_graph(
        [
            helper.make_node("Cast", ["i"], ["number"], to=TensorProto.FLOAT),
            helper.make_node("Expand", ["number", "four"], ["next"]),
            helper.make_node("Identity", ["keep"], ["keep_on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("keep", TensorProto.BOOL, []),
            float_vector,
        ],
        [
            helper.make_tensor_value_info("keep_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [4]),
        ],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Neg", ["x"], ["start"]),
            helper.make_node("Loop", ["turns", "", "start"], ["last"], body=body),
            helper.make_node("Reshape", ["last", "square"], ["y"]),
        ],
        "overwritten",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
            helper.make_tensor_value_info("turns", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2])],
        [
            helper.make_tensor("square", TensorProto.INT64, [2], [2, 2]),
            helper.make_tensor("four", TensorProto.INT64, [1], [4]),
        ],
    )
    path = tmp_path / "loop.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    feeds = {"x": np.arange(4, dtype=np.float32), "turns": np.array(turns)}
    expected = onnxruntime.InferenceSession(path).run(None, feeds)[0]
    torch.testing.assert_close(run(path, tmp_path, feeds).outputs[0], torch.from_numpy(expected))
