"""Small generated models with the inputs that a test needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from onnxgen import generate
from onnxgen.training import open_model

Dims = Sequence[int | str]


def network(folder: Path, *, classes: int = 3, rows: int = 7, **inputs: tuple[str, Dims]) -> nn.Module:
    """Return a generated model with `inputs`, (dtype, dims) by name: a linear layer over the mean of each.

    An int64 input called `ids` goes through an embedding with `rows` rows. The output is `scores` [n, classes].
    """
    rng, nodes, means = np.random.default_rng(0), [], []
    weights = {"fc.weight": rng.normal(size=(classes, len(inputs))), "fc.bias": rng.normal(size=classes)}
    for name, (dtype, dims) in inputs.items():
        value = name
        if name == "ids":
            weights["embed.weight"] = rng.normal(size=(rows, 4))
            nodes.append(helper.make_node("Gather", ["embed.weight", name], ["embedded"]))
            value, dims = "embedded", (*dims, 4)
        elif dtype != "float32":
            nodes.append(helper.make_node("Cast", [name], [f"{name}_float"], to=TensorProto.FLOAT))
            value = f"{name}_float"
        axes = list(range(1, len(dims)))
        if axes:
            nodes.append(helper.make_node("ReduceMean", [value], [f"{name}_mean"], axes=axes, keepdims=0))
            value = f"{name}_mean"
        nodes.append(helper.make_node("Unsqueeze", [value, "one"], [f"{name}_row"]))
        means.append(f"{name}_row")
    nodes.append(helper.make_node("Concat", means, ["all"], axis=1))
    nodes.append(helper.make_node("Gemm", ["all", "fc.weight", "fc.bias"], ["scores"], transB=1))
    types = {name: getattr(TensorProto, _ONNX.get(dtype, dtype.upper())) for name, (dtype, _) in inputs.items()}
    batch = next(iter(inputs.values()))[1][0]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(n, types[n], list(dims)) for n, (_, dims) in inputs.items()],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, classes])],
        [numpy_helper.from_array(np.array([1]), "one")]
        + [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "small.onnx")
    generate(folder / "small.onnx", folder / "small.py", force=True)
    return open_model(folder / "small.py")


_ONNX = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "FLOAT16"}
