"""TensorFlow's Conv1D: a convolution of images with one row."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from tests.ops.harness import assert_same, run_model, run_onnxruntime

CONV = "strides = [1, 2], dilations = [1, 2], pads = [0, 1, 0, 2]"


CASES = [
    (f"a = Unsqueeze(x, two)  b = Conv<{CONV}>(a, w)  c = Squeeze(b, two)  y = Add(c, s)", 1, "nn.Conv1d(4, 6"),
    ('a = Unsqueeze(x, two)  b = Conv<auto_pad = "SAME_UPPER">(a, w, t)  y = Squeeze(b, two)', 1, "nn.Conv1d("),
    (
        "t1 = Transpose<perm = [0, 2, 1]>(x)  a = Unsqueeze(t1, one)  t2 = Transpose<perm = [0, 3, 1, 2]>(a)"
        "  b = Conv<group = 2>(t2, w)  y = Squeeze(b, two)",
        1,
        "nn.Conv1d(",
    ),
    (
        "a = Unsqueeze(x, two)  b = Conv<pads = [1, 0, 1, 0]>(a, w)  c = ReduceMax<keepdims = 0>(b, two)  y = Relu(c)",
        1,
        "nn.Conv2d(",
    ),
    ("a = Unsqueeze(x, two)  b = Conv<pads = [1, 0, 1, 0]>(a, w)  y = Squeeze(b, two)", 3, "nn.Conv2d("),
]


@pytest.mark.parametrize(("nodes", "rows", "layer"), CASES)
def test_convolutions_of_one_row(nodes: str, rows: int, layer: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[n, 4, k] x) => (float[n, 6, l] y)
        <int64[1] one = {{1}}, int64[1] two = {{2}}> {{ {nodes} }}"""
    )
    random = np.random.default_rng(0)
    shapes = {"w": (6, 2 if "group" in nodes else 4, rows, 3), "s": (1, 6, 1), "t": (6,)}
    weights = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    model.graph.initializer.extend(
        numpy_helper.from_array(w, name)
        for name, w in weights.items()
        if any(name in n.input for n in model.graph.node)
    )
    feed = {"x": random.standard_normal((2, 4, 9)).astype(np.float32)}
    ran = run_model(model, feed)
    assert_same(ran.outputs[0], run_onnxruntime(model, feed)[0], 1e-5, 1e-5)
    assert layer in ran.source and ("squeeze" in ran.forward) == ("Conv2d" in layer)
