"""Graphs that `test_random_graphs` once found wrong, each as small as it gets, in ONNX's text syntax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from onnxgen.errors import OnnxgenError
from tests.ops.harness import run_node
from tests.support.graphs import Case
from tests.whole.test_random_graphs import hold

SIZES = {"N": (2, 1, 3), "L": (3, 5, 4)}
HEAD = '<ir_version: 8, opset_import: ["": 17]>\ngraph '
KINDS = {1: "float32", 7: "int64", 9: "bool", 11: "float64"}


def case(text: str) -> Case:
    """The graph of a text, with inputs at three sizes of its dims N and L."""
    model = onnx.parser.parse_model(HEAD + text)
    numbers = np.random.default_rng(0)
    feeds: list[dict[str, Any]] = [{}, {}, {}]
    for info in model.graph.input:
        tensor = info.type.tensor_type
        for i, feed in enumerate(feeds):
            shape = [SIZES[d.dim_param][i] if d.dim_param else d.dim_value for d in tensor.shape.dim]
            array = numbers.integers(-9, 9, shape).astype(KINDS[tensor.elem_type])
            feed[info.name] = array / 4 if array.dtype.kind == "f" else array
    return Case(0, model, feeds)


GRAPHS = {
    "a call between the layers of a list, inside another's argument": """
        (float[N, 1, 6, 6] x) => (float[] y)
        <float[2, 1, 3, 3] "net.0.weight" = {1, 2, 0, 1, 3, 0, 1, -1, 0, 1, 2, 0, 1, 0, 1, 1, -2, 0},
         float[1, 2, 2, 2] "net.2.weight" = {1, 2, -1, 1, 3, 0, 1, -1}>
        { a = Conv(x, "net.0.weight")  b = Relu(a)  y = Conv<pads = [1, 1, 0, 0]>(b, "net.2.weight") }""",
    "same padding between the layers of a list": """
        (float[N, 1, 6, 6] x) => (float[] y)
        <float[1, 1, 2, 2] "net.0.weight" = {1, 2, 0, 1}, float[1, 1, 2, 2] "net.1.weight" = {1, 2, -1, 1}>
        { a = Conv(x, "net.0.weight")  y = Conv<auto_pad = "SAME_LOWER">(a, "net.1.weight") }""",
    "some axes made one between the layers of a list": """
        (float[N, 2, 3, 2, 2] x) => (float[] y)
        <float[2, 2] "net.0.weight" = {1, 2, -1, 1}, float[2, 3] "net.2.weight" = {1, 2, 0, 1, 3, -1},
         int64[4] s = {0, 6, 2, 2}>
        { a = MatMul(x, "net.0.weight")  b = Reshape(a, s)  y = MatMul(b, "net.2.weight") }""",
    "all axes made one after the layers of a list": """
        (float[N, 2] x) => (float[] y)
        <float[2, 2] "net.0.weight" = {1, 2, -1, 1}, int64[1] s = {-1}>
        { a = MatMul(x, "net.0.weight")  b = Reshape(a, s)  y = Relu(b) }""",
    "a scalar that is joined with itself": """
        (float[1, 1] x, int64 n) => (float[] y) <int64[1] zero = {0}>
        { a = Unsqueeze(n, zero)  b = Unsqueeze(n, zero)  c = Concat<axis = 0>(a, b)  d = Cast<to = 1>(c)
          y = Add(x, d) }""",
    "a Split with one output": """
        (float[N, 4] x) => (float[] y) <int64[2] i = {3, 1}>
        { a = Split<axis = 1>(x)  y = Gather<axis = 1>(a, i) }""",
    "a Split with one output, of a size that is computed": """
        (float[N, 4] x, int64[1] n) => (float[] y) <int64[1] one = {1}, int64[1] four = {4}, int64[2] i = {3, 1}>
        { z = Mul(n, n)  o = Min(z, one)  p = Sub(o, o)  f = Add(p, four)
          a = Split<axis = 1>(x, f)  y = Gather<axis = 1>(a, i) }""",
    "reshape to rank 0": """
        (float[1, 1] x) => (float[] y) <int64[0] shape = {}> { y = Reshape(x, shape) }""",
    "an input is an output without a shape": """
        (float[N, 2, 3] x) => (float[] y, float[] x) { y = Flatten<axis = 2>(x) }""",
    "a Constant called as a buffer is an output": """
        (float[N, 2] x) => (float[a, b] y, int64[c] "a.b.bias")
        { "a.b.bias" = Constant <value = int64[1] {3}> ()  y = Relu(x) }""",
    "a tensor's path begins another's": """
        (float[N, 2] x) => (float[] y)
        <float[2] "a.weight" = {1.5, 2}, float[2] "a.weight.bias" = {3, 4.5}, float[2] "a.weight.bias.0" = {2, 0.5}>
        { s = Mul(x, "a.weight")  t = Mul(s, "a.weight.bias")  y = Mul(t, "a.weight.bias.0") }""",
    "a layer's path is a tensor's": """
        (float[N, 2] x) => (float[] y)
        <float[2, 2] "a.weight" = {1.5, 2, 1, 1}, float[2, 2] "a.weight.weight" = {3, 4.5, 2, 2}>
        { s = MatMul(x, "a.weight")  t = Relu(s)  y = MatMul(t, "a.weight.weight") }""",
    "a layer without a bias, and a bias of its name elsewhere": """
        (float[N, 2] x) => (float[] y)
        <float[2, 2] "a.weight" = {1.5, 2, 1, 1}, float[2] "a.bias" = {3, 4.5}>
        { s = MatMul(x, "a.weight")  t = Relu(s)  y = Mul(t, "a.bias") }""",
    "a named scope's path is a tensor's": """
        (float[N, 2] x) => (float[] y)
        <float[2] "a.0" = {1.5, 2}, float[2] "a.0.b.0" = {3, 4.5}, float[2] "a.1" = {3, 4.5}>
        { s = Mul(x, "a.0")  t = Mul(s, "a.0.b.0")  y = Mul(t, "a.1") }""",
    "statistics that are trained elsewhere": """
        (float[N, 2, L] x) => (float[] y) <float[2] "a.bias" = {1.5, 2}, float[2] w = {3, 4.5}, float[2] v = {3, 4.5}>
        { y = BatchNormalization(x, w, "a.bias", "a.bias", v) }""",
    "statistics of a single element": """
        (float[N, 2, 1, 1] x) => (float[a, b, c, d] y) <float[2] "a.weight" = {1.5, 2}, float[2] "a.bias" = {3, 4.5}>
        { y = InstanceNormalization(x, "a.weight", "a.bias") }""",
    "a branch that is never taken has a weight": """
        (float[N, 2] x) => (float[a, b] y) <float[2] "a.w" = {1.5, 2}, float[2] "a.v" = {3, 4.5}, bool c = {1}>
        { z = Relu("a.v")  y = If (c) <
            then_branch = p () => (float[N, 2] p1) { p1 = Mul(x, "a.w") },
            else_branch = q () => (float[N, 2] q1) { q1 = Mul(x, z) }> }""",
    "a slope of rank 2 and one element": """
        (float[N, 2] x) => (float[a, b] y) <float[1, 1] w = {0.25}> { y = PRelu(x, w) }""",
    "only the size is asked of what a submodule makes": """
        (float[N, 2] x) => (int64[2] y) <float[2] "a.w" = {1.5, 2}> {
            ["/a/Mul"] s = Mul(x, "a.w")  ["/a/NonZero"] z = NonZero(s)  y = Shape(z) }""",
    "only the size is asked of what a loop collects": """
        (float[N, 2] x) => (float[a, b] v, int64[2] y) <int64 n = {3}, bool c = {1}> {
            s = Abs(x)  z = NonZero(s)  y = Shape(z)
            v = Loop (n, c, x) <body = p (int64 i, bool go, float[r, q] p0) => (bool go2, float[r, q] p1) {
                go2 = Identity(go)  p1 = Neg(p0) }> }""",
    "a submodule needs a size that the whole makes after its first statement": """
        (float[N, 2] x) => (float[a, b] y, float[d, e] f)
        <float[2] "a.w" = {1.5, 2}, int64[1] k = {1}, int64[1] o = {0}> {
            ["/a/Mul"] s = Mul(x, "a.w")  z = NonZero(s)  t = Shape(z)  u = Gather(t, k)  v = Concat<axis = 0>(u, u)
            ["/a/Constant"] w = ConstantOfShape(v)  ["/a/Mul_1"] y = Mul(s, s)  f = Relu(w) }""",
    "only the size is asked of what is collected": """
        (float[N, 2] x, int64 k) => (float[a, b, c] f) <int64 one = {1}, bool c = {1}> {
            a = Abs(k)  n = Add(a, one)
            v, w = Loop (n, c, x) <
                body = p (int64 i, bool go, float[r, q] p0) => (bool o, float[r, q] p1, float[r, q] p2) {
                    o = Identity(go)  p1 = Neg(p0)  p2 = Mul(p0, p1) }>
            t = Shape(w)  f = ConstantOfShape(t) }""",
    "a branch has statements of a submodule that could not be one": """
        (float[N, 2] x, bool c) => (float[a, b] z)
        <float[2] "a.0.b.w" = {1.5, 2}, float[2] "a.1.b.v" = {3, 4.5}, float[2] "a.w" = {3, 4.5}> {
            ["/a/a.0/b/Mul"] s = Mul(x, "a.0.b.w")  t = Relu(s)
            ["/a/If"] y = If (c) <
                then_branch = p () => (float[N, 2] p1) { ["/a/Mul"] p1 = Mul(t, "a.w") },
                else_branch = q () => (float[N, 2] q1) { q1 = Neg(t) }>
            u = Exp(y)  ["/a/a.1/b/Mul"] z = Mul(u, "a.1.b.v") }""",
    "a branch has statements of a submodule that the whole calls later": """
        (float[N, 2] x, bool c) => (float[a, b] y, float[a, b] z) <float[2] "a.w" = {1.5, 2}, float[2] "a.v" = {3, 4.5}>
        { ["/a/If"] y = If (c) <
            then_branch = p () => (float[N, 2] p1) { ["/a/Mul"] p0 = Mul(x, "a.w") ["/a/Relu"] p1 = Relu(p0) },
            else_branch = q () => (float[N, 2] q1) { q1 = Neg(x) }>
          ["/a/Mul_1"] s = Mul(x, "a.v")  ["/a/Sub"] z = Sub(s, "a.w") }""",
}


@pytest.mark.parametrize("text", GRAPHS.values(), ids=GRAPHS)
def test_agrees_with_onnxruntime(text: str, tmp_path: Path) -> None:
    assert hold(case(text), tmp_path), "onnxruntime refuses this graph"


def test_a_mask_of_integers_is_added_to_the_scores() -> None:
    q, k, v = (np.random.default_rng(i).standard_normal((1, 2, 3, 4)).astype("float32") for i in range(3))
    run_node("Attention", [q, k, v, np.array([[0, 1, -2]] * 3, "int32")], opset=23)


def test_channels_that_do_not_fit_are_a_problem_of_the_node() -> None:
    ones = np.ones(2, "float32")
    with pytest.raises(OnnxgenError, match="3 channels, but i1 has 2 elements"):
        run_node("BatchNormalization", [np.ones((2, 3), "float32"), ones, ones, ones, ones], initializers={1, 2, 3, 4})
