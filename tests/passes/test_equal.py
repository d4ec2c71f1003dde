"""What a loop's body computes several times is computed once; what it draws is drawn each time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import torch

from onnxgen import generate, load
from onnxgen.passes.no_ops import _said

LOOP = """<ir_version: 9, opset_import: ["": 18]>
g (float[N,2] x) => (float[N,2] z) <int64 n = {{3}}, bool go = {{1}}> {{
  z = Loop(n, go, x) <body = body (int64 i, bool c, float[k,2] h) => (bool c2, float[k,2] h3)
      <float one = {{1}}, float also = {{1}}, int64[1] first = {{0}}, int64[1] front = {{0}}>
    {{ c2 = Identity(c)  {nodes}  u = Unsqueeze(h2, first)  h3 = Squeeze(u, front) }}> }}"""


def forward(nodes: str, folder: Path) -> str:
    """Generate a loop with these nodes, compare it with onnxruntime if it draws nothing, and return its `forward`."""
    path = folder / "net.onnx"
    onnx.save(onnx.parser.parse_model(LOOP.format(nodes=nodes)), path)
    generate(path, folder / "net.py", force=True)
    x = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    if "Random" not in nodes:
        (expected,) = ort.InferenceSession(path).run(None, {"x": x})
        np.testing.assert_allclose(load(path)(torch.from_numpy(x)).detach().numpy(), expected, rtol=1e-5)
    source = (folder / "net.py").read_text()
    return source[source.index("def forward") : source.index("WEIGHTS =")]


def test_equal_nodes_are_one_and_what_is_returned_hides_nothing(tmp_path: Path) -> None:
    text = forward("a = Add(h, one)  b = Add(h, also)  s = Tanh(a)  t = Tanh(b)  h2 = Mul(s, t)", tmp_path)
    assert text.count("tanh(") == 1 and "squeeze" not in text


def test_the_text_of_an_attribute_tells_all_of_it() -> None:
    """Trees have their thresholds in tensors, whose usual text leaves out most numbers."""
    numbers = np.arange(5000, dtype=np.float32)
    others = [np.where(numbers == 2500, 0, numbers), numbers.astype(np.float64), numbers.reshape(50, 100)]
    one, *rest = (_said(ir.AttrTensor("t", ir.tensor(array))) for array in (numbers, *others))
    assert one == _said(ir.AttrTensor("t", ir.tensor(numbers.copy()))) and len({one, *rest}) == 4
    assert _said(ir.AttrInt64("a", 1)) != _said(ir.AttrFloat32("a", 1))


def test_others_are_not(tmp_path: Path) -> None:
    text = forward("a = Add(h, one)  b = Sub(h, one)  s = Tanh(a)  t = Tanh(b)  h2 = Mul(s, t)", tmp_path)
    assert text.count("tanh(") == 2


def test_what_is_drawn_is_drawn_each_time(tmp_path: Path) -> None:
    text = forward("s = RandomUniformLike(h)  t = RandomUniformLike(h)  h2 = Sub(s, t)", tmp_path)
    assert text.count("rand") == 2


def test_two_names_of_one_stored_tensor_stay_two_parameters(tmp_path: Path) -> None:
    """torch's exporter stores equal biases once; a branch of a merged decoder names them for each layer."""
    text = """<ir_version: 9, opset_import: ["": 18], producer_name: "pytorch">
    g (float[N,2] x, bool c) => (float[N,2] z)
    <float[2,2] "a.weight" = {1, 2, -3, 4}, float[2,2] "b.weight" = {1, 2, -3, 5}, float[2] "a.bias" = {0, 0}> {
      z = If(c) <then_branch = t () => (float[N,2] y)
            { "b.bias" = Identity("a.bias")  "d.bias" = Identity("a.bias")
              h = Gemm(x, "a.weight", "b.bias")  k = Tanh(h)  y = Gemm(k, "b.weight", "d.bias") },
          else_branch = e () => (float[N,2] y2) { y2 = Gemm(x, "a.weight", "a.bias") }> }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    names = dict(load(tmp_path / "net.onnx").named_parameters())
    assert sum(parameter.shape == (2,) for parameter in names.values()) == 3
