"""Little networks as ONNX files, for tests of what happens when one changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def net(path: Path, seed: int = 0, width: int = 4, data: str = "") -> Path:
    """Write a layer of `width` outputs with weights by `seed`; with `data` they lie in that file, relative to `path`.

    Two seeds give files of one size that differ in their weights alone.
    """
    weight = np.random.default_rng(seed).standard_normal((8, width)).astype(np.float32)
    tensor = numpy_helper.from_array(weight, "fc.weight")
    if data:
        file = path.parent / data
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(weight.tobytes())
        tensor = TensorProto(name="fc.weight", data_type=TensorProto.FLOAT, dims=weight.shape)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=data)
    node = helper.make_node("MatMul", ["x", "fc.weight"], ["y"], name="/fc/MatMul")
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", width])]
    graph = helper.make_graph([node], "net", inputs, outputs, [tensor])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    )
    return path


def weights(path: Path) -> np.ndarray:
    """The weights that a file written by `net` has, by onnx itself."""
    model = onnx.load(path)
    return numpy_helper.to_array(model.graph.initializer[0])
