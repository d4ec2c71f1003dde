"""Products of rows and of merged matrices, as TensorFlow's converters write Dense layers and attention."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from tests.ops.harness import Ran, assert_same, run_model, run_onnxruntime

SHAPES = {
    "w": (6, 8), "t": (8, 6), "c": (8,), "h": (2, 4), "a": (6, 2, 4), "o": (2, 3, 8), "r": (3, 2, 8),
}  # fmt: skip


def held(nodes: str, result: str, x: tuple[int, ...] = (2, 5, 6)) -> Ran:
    """What onnxruntime computes; the batch is dynamic."""
    known = ", ".join(map(str, x[1:]))
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[n, {known}] x) => (float[{result}] y)
        <int64[2] rows = {{-1, 6}}, int64[3] back = {{-1, 5, 8}}, int64[4] heads = {{-1, 5, 2, 4}},
         int64[3] wrong = {{5, -1, 8}}, int64[3] flat = {{-1, 5, 6}}, int64[3] turned = {{-1, 6, 5}},
         int64[4] full = {{-1, 2, 5, 5}}, float half = {{0.5}}> {{ {nodes} }}"""
    )
    random = np.random.default_rng(0)
    taken = {name for node in model.graph.node for name in node.input}
    weights = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items() if name in taken
    }
    model.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
    feed = {"x": random.standard_normal(x).astype(np.float32)}
    ran = run_model(model, feed)
    assert_same(ran.outputs[0], run_onnxruntime(model, feed)[0], 1e-4, 1e-5)
    return ran


@pytest.mark.parametrize(
    ("nodes", "result", "forward"),
    [
        ("a1 = Reshape(x, rows)  b = MatMul(a1, w)  c1 = Reshape(b, back)  y = Add(c1, c)", "n, 5, 8",
         ["self.linear(x)"]),
        ("a1 = Reshape(x, rows)  b = Gemm<transB = 1, beta = 0.0>(a1, t)  y = Reshape(b, back)", "n, 5, 8",
         ["self.linear(x)"]),
        ("a1 = Reshape(x, rows)  b = MatMul(a1, w)  c1 = Reshape(b, heads)  y = Add(c1, h)", "n, 5, 2, 4",
         ["self.linear(x)", ".unflatten(-1, (2, -1))"]),
        ('b = Einsum<equation = "abc,cde->abde">(x, a)  y = Add(b, h)', "n, 5, 2, 4",
         ["self.linear(x)", ".unflatten(-1, (2, -1))"]),
    ],
)  # fmt: skip
def test_a_dense_layer_of_rows_is_linear(nodes: str, result: str, forward: list[str]) -> None:
    ran = held(nodes, result)
    text = ran.forward.replace("self.fc", "self.linear")
    assert all(part in text for part in forward) and "einsum" not in text and "flatten(0" not in text
    assert len(dict(ran.model.named_parameters())) == 1 + ("Add" in nodes)


def test_heads_are_joined_before_a_matrix() -> None:
    for nodes in (
        'y = Einsum<equation = "abcd,cde->abe">(x, o)',
        "a1 = Reshape(x, rows)  b = MatMul(a1, w)  y = Reshape(b, back)",
    ):
        ran = held(nodes, "n, 5, 8", (2, 5, 2, 3))
        assert ".flatten(2)" in ran.forward and "nn.Linear(6, 8" in ran.source


@pytest.mark.parametrize(
    ("nodes", "result", "x"),
    [
        ("a1 = Reshape(x, rows)  b = MatMul(a1, w)  y = Reshape(b, wrong)", "5, n, 8", (2, 5, 6)),  # of other rows
        ('y = Einsum<equation = "abcd,dce->abe">(x, r)', "n, 5, 8", (2, 5, 2, 3)),  # of turned axes
        ('y = Einsum<equation = "abcd,cde->aeb">(x, o)', "n, 8, 5", (2, 5, 2, 3)),
    ],
)
def test_other_products_stay(nodes: str, result: str, x: tuple[int, ...]) -> None:
    held(nodes, result, x)


def test_keys_times_queries_are_queries_times_keys() -> None:
    """Keras multiplies the keys by scaled queries, and transposes what the softmax gives."""
    ran = held(
        """q = MatMul(x, w)  k = Sin(x)  a1 = MatMul(k, w)  v = Cos(q)
        q3 = Reshape(q, heads)  q4 = Mul(q3, half)  k4 = Reshape(a1, heads)  v4 = Reshape(v, heads)
        qt = Transpose<perm = [0, 2, 3, 1]>(q4)  kt = Transpose<perm = [0, 2, 1, 3]>(k4)
        vt = Transpose<perm = [0, 2, 1, 3]>(v4)
        scores = MatMul(kt, qt)  p = Softmax<axis = 2>(scores)  pt = Transpose<perm = [0, 1, 3, 2]>(p)
        y = MatMul(pt, vt)""",
        "n, 2, 5, 4",
    )  # fmt: skip
    assert "F.scaled_dot_product_attention(q, k, v)" in ran.forward and "0.5" not in ran.forward


def test_matrices_in_a_row_are_multiplied_where_they_are() -> None:
    ran = held(
        """xt = Transpose<perm = [0, 1, 3, 2]>(x)  s = Sin(xt)  a1 = Reshape(x, flat)  b = Reshape(s, turned)
        c1 = MatMul(a1, b)  y = Reshape(c1, full)""",
        "n, 2, 5, 5",
        (2, 2, 5, 6),
    )
    assert "flatten" not in ran.forward
