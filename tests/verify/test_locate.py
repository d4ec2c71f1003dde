"""`--locate` names the node that was changed, where another node has the same result, or only places changed."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from onnxgen.pipeline import generate
from onnxgen.verify import verify

NORM = """
    <ir_version: 8, opset_import: ["" : 17]>
    norm (float[3, 5, 8] x) => (float[3, 5, 8] y) <float two = {2.0}, float tiny = {1e-5}> {
        mean = ReduceMean <axes = [-1]> (x)
        top = Sub (x, mean)
        centred = Sub (x, mean)
        square = Pow (centred, two)
        variance = ReduceMean <axes = [-1]> (square)
        safe = Add (variance, tiny)
        deviation = Sqrt (safe)
        y = Div (top, deviation)
    }
"""
PRODUCTS = """
    <ir_version: 8, opset_import: ["" : 17]>
    products (float[4, 4] a, float[4, 4] b) => (float[4, 4] y, float[4, 4] z) {
        y = MatMul (a, b)
        z = MatMul (a, b)
    }
"""
HEADS = """
    <ir_version: 8, opset_import: ["" : 17]>
    heads (float[2, 6, 8] x) => (float[2, 6, 8] y) <int64[4] split = {2, 6, 2, 4}, int64[3] join = {2, 6, 8}> {
        parts = Reshape (x, split)
        heads = Transpose <perm = [0, 2, 1, 3]> (parts)
        keys = Transpose <perm = [0, 2, 3, 1]> (parts)
        scores = MatMul (heads, keys)
        weights = Softmax <axis = 3> (scores)
        mixed = MatMul (weights, heads)
        back = Transpose <perm = [0, 2, 1, 3]> (mixed)
        joined = Reshape (back, join)
        y = Tanh (joined)
    }
"""
JOINED = """
    <ir_version: 8, opset_import: ["" : 17]>
    joined (float[4, 1, 3] x) => (float[4, 1, 6] y) {
        a = Tanh (x)
        b = Sigmoid (x)
        y = Concat <axis = 2> (a, b)
    }
"""

CUBE = """
    <ir_version: 8, opset_import: ["" : 17]>
    cube (float[4, 4, 4] q, float[4, 4, 4] x, float[4, 4, 4] v) => (float[4, 4, 4] y) <float[1] half = {0.5}> {
        k = Tanh (x)
        moved = Transpose <perm = [1, 0, 2]> (k)
        keys = Transpose <perm = [0, 2, 1]> (moved)
        scaled = Mul (q, half)
        scores = MatMul (scaled, keys)
        weights = Softmax <axis = 2> (scores)
        y = MatMul (weights, v)
    }
"""


def _swap(node: onnx.NodeProto) -> None:
    node.input[:] = list(reversed(node.input))


def _other_axes(node: onnx.NodeProto) -> None:
    node.attribute[0].ints[:] = [0, 2, 3, 1]


def _other_three_axes(node: onnx.NodeProto) -> None:
    node.attribute[0].ints[:] = [2, 1, 0]


def _other_axis(node: onnx.NodeProto) -> None:
    node.attribute[0].i = 1


CASES: dict[str, tuple[str, str, Callable[[onnx.NodeProto], None]]] = {
    "one of two nodes with the same inputs": (NORM, "top", _swap),
    "an operation with all inputs right": (NORM, "y", _swap),
    "an output that is another's": (PRODUCTS, "z", _swap),
    "elements in another order": (HEADS, "back", _other_axes),
    "keys of an attention that is one function": (CUBE, "moved", _other_three_axes),
    "a shape": (JOINED, "y", _other_axis),
}


@pytest.mark.parametrize("case", CASES)
def test_the_changed_node_is_located(case: str, tmp_path: Path) -> None:
    text, name, change = CASES[case]
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, tmp_path / "model.onnx")
    change(next(node for node in model.graph.node if node.name == name))
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "other.onnx")
    generate(tmp_path / "other.onnx", tmp_path / "other.py")
    report = verify(tmp_path / "model.onnx", tmp_path / "other.py", locate=True)
    assert report.differs and report.located is not None
    assert report.located.node == name
