"""What a loop carries and never changes: exporters of other frameworks carry every weight of its body."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
import torch

from onnxgen import generate, load

HEAD = '<ir_version: 9, opset_import: ["": 18]>'
BODY = """<float[2,2] w = {{1, 2, -3, 4}}, float[2] b = {{5, 6}}, int64 n = {{3}}, bool go = {{1}}, float zero = {{0}}>
{{ y, w1, b1, dead = Loop<body = body (int64 i, bool c, float[k,2] h, float[2,2] wi, float[2] bi, float zi)
     => (bool c2, float[k,2] h2, float[2,2] w2, float[2] b2, float[k,2] z2)
   {{ c2 = Identity(c)  m = MatMul(h, wi)  a = Add(m, bi)  h2 = Tanh(a)
      {passing}  b2 = Identity(bi)  z2 = Neg(h2) }}>(n, go, x, w, b, zero)
   {after} }}"""


def source(text: str, folder: Path) -> str:
    """Generate a graph's module, compare it with onnxruntime, and return its source."""
    model = onnx.parser.parse_model(HEAD + text)
    path = folder / "net.onnx"
    onnx.save(model, path)
    generate(path, folder / "net.py", force=True)
    x = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    expected = ort.InferenceSession(path).run(None, {"x": x})
    with torch.no_grad():
        made = load(path)(torch.from_numpy(x))
    for one, other in zip(made if isinstance(made, tuple) else [made], expected, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), other, rtol=1e-5)
    return (folder / "net.py").read_text()


def test_a_weight_that_a_loop_carries_is_that_of_a_layer(tmp_path: Path) -> None:
    body = BODY.format(passing="w2 = Identity(wi)", after="z = Identity(y)")
    made = source("g (float[N,2] x) => (float[N,2] z) " + body, tmp_path)
    assert made.count("nn.Linear(2, 2)") == 1
    loop = made[made.index("for _ in range(3)") :]
    assert len(re.findall(r" = ", loop[: loop.index("return")])) == 1  # what nobody reads is not carried


def test_a_weight_that_the_loop_changes_stays_a_state(tmp_path: Path) -> None:
    body = BODY.format(passing="w2 = Neg(wi)", after="z = MatMul(y, w1)")
    made = source("g (float[N,2] x) => (float[N,2] z) " + body, tmp_path)
    assert "nn.Linear" not in made


@pytest.mark.parametrize("outputs", ["float[2,2] w1", "float[2] b1"])
def test_a_state_that_is_a_result_of_the_network(outputs: str, tmp_path: Path) -> None:
    body = BODY.format(passing="w2 = Identity(wi)", after="z = Identity(y)")
    source(f"g (float[N,2] x) => (float[N,2] z, {outputs}) " + body, tmp_path)


def test_what_comes_out_of_the_loop_unchanged_is_used_behind_it(tmp_path: Path) -> None:
    body = BODY.format(passing="w2 = Identity(wi)", after="q = MatMul(y, w1)  z = Add(q, b1)")
    made = source("g (float[N,2] x) => (float[N,2] z) " + body, tmp_path)
    assert made.count("nn.Linear(2, 2)") == 1


def test_states_of_scans_and_of_loops_in_loops(tmp_path: Path) -> None:
    made = source(
        """g (float[3,2] x) => (float[2] s, float[3,2] ys)
        <float[2,2] w = {1, 2, -3, 4}, float[2] h = {0, 1}, int64 n = {2}, bool go = {1}>
        { s, w1, ys = Scan<num_scan_inputs = 1, body = outer (float[2] hi, float[2,2] wi, float[2] row)
            => (float[2] h2, float[2,2] w2, float[2] y)
          { u = Add(hi, row)
            h2, w2 = Loop<body = inner (int64 i, bool c, float[2] hj, float[2,2] wj)
                => (bool c2, float[2] h3, float[2,2] w3)
              { c2 = Identity(c)  m = MatMul(hj, wj)  h3 = Tanh(m)  w3 = Identity(wj) }>(n, go, u, wi)
            y = Identity(h2) }>(h, w, x) }""",
        tmp_path,
    )
    assert "tanh(hi @ self.w)" in made  # neither loop carries it


def test_a_state_whose_rank_the_first_iteration_decides(tmp_path: Path) -> None:
    """Before its `while`, Paddle gives a variable that the body makes a number: the loop runs at least once."""
    made = source(
        """g (float[N,2] x) => (float[N,1] z)
        <float none = {0}, int64 n = {4}, bool go = {1}, int64[1] zero = {0}, int64[1] one = {1}>
        { y, h = Loop<body = body (int64 i, bool c, float seen, float[k,2] s)
            => (bool c2, float[k,2] t, float[k,2] s2)
          { c2 = Identity(c)  t = Tanh(s)  s2 = Add(t, s) }>(n, go, none, x)
          z = Slice(y, zero, one, one) }""",
        tmp_path,
    )
    assert "for _ in range(4)" in made


def test_a_state_that_is_a_scan_output_too(tmp_path: Path) -> None:
    made = source(
        """g (float[N,2] x) => (float[N,2] y, float[2,2] z, float[2,2] w1)
        <float[2,2] w = {1, 2, -3, 4}, int64 n = {2}, bool go = {1}, int64[1] first = {0}>
        { y, w1, ws = Loop<body = body (int64 i, bool c, float[k,2] h, float[2,2] wi)
            => (bool c, float[k,2] h2, float[2,2] wi, float[2,2] wi)
          { m = MatMul(h, wi)  h2 = Tanh(m) }>(n, go, x, w)
          z = ReduceSum<keepdims = 0>(ws, first) }""",
        tmp_path,
    )
    assert made.count("nn.Linear(2, 2") == 1


def test_a_loop_that_changes_nothing_is_gone(tmp_path: Path) -> None:
    made = source(
        """g (float[3,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, -3, 4}, float[2,2] v = {3, 1, 2, 5}, bool go = {1}>
        { y = If(go) <then_branch = t () => (float[2,2] y1) { y1 = Identity(w) },
            else_branch = e () => (float[2,2] y2)
            { w1, dead = Scan(v, w, x, x) <num_scan_inputs = 2,
                body = body (float[2,2] wi, float[2,2] d, float[2] r, float[2] q) => (float[2,2] w2, float[2,2] d2)
                { w2 = Identity(wi)  d2 = Identity(wi) }>
              y2 = Identity(w1) }> }""",
        tmp_path,
    )
    assert made.count("nn.Parameter") == 1 and "for _ in" not in made
