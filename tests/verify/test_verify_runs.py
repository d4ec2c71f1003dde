"""Runs that `verify` must not take for a difference: loops that run on, sizes that break a promise, scatters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import parser
from torch import Tensor, nn

import onnxgen
from onnxgen import OnnxgenError
from onnxgen.verify import answering, check
from onnxgen.verify.oracle import Oracle
from onnxgen.verify.report import VerifyReport
from onnxgen.verify.sizes import Sizes

LOOP = """(float[n, 4] x) => (float[n, 4] y) <int64 m = {9223372036854775807}, bool t = {1}> {
    y = Loop (m, t, x) <body = b (int64 i, bool c, float[n, 4] s) => (bool c2, float[n, 4] s2) {
        factor = Constant <value_float = 0.5> ()  s2 = Mul (s, factor)  r = ReduceSum <keepdims = 0> (s2)
        bound = Constant <value_float = BOUND> ()  c2 = CONDITION (r, bound) }> }"""


def saved(tmp_path: Path, text: str) -> Path:
    onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g {text}'), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def report(tmp_path: Path, text: str) -> VerifyReport:
    path = saved(tmp_path, text)
    onnxgen.generate(path, tmp_path / "net.py")
    return onnxgen.verify(path, tmp_path / "net.py")


# ---- loops -----------------------------------------------------------------------------------------------------------


def test_a_loop_that_the_inputs_keep_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two inputs are waited for, not more."""
    asked, ask = list[object](), answering._ask

    def counted(oracle: Oracle, sizes: Sizes, feeds: dict[str, Any]) -> list[Any]:
        asked.append(feeds)
        return ask(oracle, sizes, feeds)

    monkeypatch.setattr(answering, "LOOP_SECONDS", 0.5)
    monkeypatch.setattr(answering, "_ask", counted)
    with pytest.raises(OnnxgenError, match="a loop of the file runs on: onnxruntime, .* -> .*--inputs FILE"):
        report(tmp_path, LOOP.replace("BOUND", "9.0").replace("CONDITION", "Less"))
    assert len(asked) == 2


def test_a_loop_that_only_the_module_keeps_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            while x.shape[0]:
                x = torch.relu(x)
            return x

    monkeypatch.setattr(check, "LOOP_SECONDS", 0.5)
    path = saved(tmp_path, LOOP.replace("BOUND", "1.0").replace("CONDITION", "Greater"))
    with pytest.raises(OnnxgenError, match="a loop of the module runs on .* onnxruntime took .* -> .*--inputs FILE"):
        onnxgen.verify(path, Endless())


def test_a_loop_that_ends_is_compared(tmp_path: Path) -> None:
    assert report(tmp_path, LOOP.replace("BOUND", "1.0").replace("CONDITION", "Greater")).agrees


# ---- names of dims ---------------------------------------------------------------------------------------------------

RELIES = {
    "rows that broadcast": """(float[n, 4] a, float[n, 5] b) => (float[x, 5] y) <float[4, 5] w = {W}, STORED> {
        p = MatMul (a, w)  q = ReduceMean <keepdims = 1> (b, zero)  s = Add (p, q)  d = Shape (b)
        k = Gather (d, first)  f = Cast <to = 1> (k)  y = Mul (s, f) }""",
    "keys and values": """(float[b, s, 4] q, float[b, s, 4] k, float[b, s, 4] v) => (float[b, s, 4] y) <STORED> {
        t = Transpose <perm = [0, 2, 1]> (k)  p = MatMul (q, t)  d = Shape (k)  g = Gather (d, second)
        f = Cast <to = 1> (g)  r = Div (p, f)  w = Softmax (r)  y = MatMul (w, v) }""",
}
STORED = "int64[1] zero = {0}, int64 first = {0}, int64 second = {1}"
SAID = {"rows that broadcast": "axis 0 of a and axis 0 of b", "keys and values": "axis 1 of q, axis 1 of k and axis 1"}


@pytest.mark.parametrize("name", RELIES)
def test_a_promise_that_the_source_relies_on(name: str, tmp_path: Path) -> None:
    """onnxruntime takes other sizes, and the source has the file's: equal, and one line says which dims."""
    weight = ", ".join(f"{(i * 37 % 19 - 9) / 9:.3f}" for i in range(20))
    found = report(tmp_path, RELIES[name].replace("STORED", STORED).replace("W}", weight + "}"))
    said = [note for note in found.notes if "by one name" in note]
    assert found.agrees and len(said) == 1 and SAID[name] in said[0], found.notes


def test_no_promise_is_told_of_a_module_that_differs(tmp_path: Path) -> None:
    """It differs with other sizes, too, which says nothing of them."""

    class Wrong(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return (q @ k.mT / k.shape[1]).softmax(-1) @ v + 1

    found = onnxgen.verify(saved(tmp_path, RELIES["keys and values"].replace("STORED", STORED)), Wrong())
    assert found.differs and not any("by one name" in note for note in found.notes)


def test_a_promise_that_nothing_relies_on(tmp_path: Path) -> None:
    """The module computes the same as onnxruntime, or onnxruntime refuses other sizes: nothing is said."""
    text = "(float[n, 4] a, float[n, 4] b, float[n, 4] c) => (float[n, 4] y, float[n, 4] z) {"
    found = report(tmp_path, text + " y = Relu (a)  t = Tanh (b)  z = Add (t, c) }")
    assert found.agrees and not found.notes


# ---- scatters --------------------------------------------------------------------------------------------------------

TWICE = {
    "elements": "(float[n, 5] x, float[n, 3] u) => (float[n, 5] y) <int64[1, 3] i = {2, 2, 0}> {"
    " s = Shape (u)  e = Expand (i, s)  v = Mul (u, u)  y = ScatterElements <axis = 1> (x, e, v) }",
    "rows": "(float[5, 4] x, float[3, 4] u) => (float[5, 4] y) <int64[3, 1] i = {2, 2, 0}> {"
    " v = Mul (u, u)  y = ScatterND (x, i, v) }",
    "drawn": "(float[2, 3] x, int64[2, 8] i, float[2, 8] u) => (float[2, 3] y) {"
    " v = Mul (u, u)  y = ScatterElements <axis = 1> (x, i, v) }",
}


@pytest.mark.parametrize("name", TWICE)
def test_an_element_that_is_written_twice(name: str, tmp_path: Path) -> None:
    """PyTorch gives each written value a gradient, the differences only the last one. Both inputs are compared."""
    found = report(tmp_path, TWICE[name])
    assert found.agrees and found.gradients.held == 2 and "writes one element several times" in found.notes[-1]


def test_a_wrong_gradient_beside_such_a_scatter_is_told(tmp_path: Path) -> None:
    class Wrong(nn.Module):
        def forward(self, x: Tensor, u: Tensor) -> Tensor:
            return x.index_put((torch.tensor([2, 2, 0]),), u * u.detach())

    assert "gradient of input u" in str(onnxgen.verify(saved(tmp_path, TWICE["rows"]), Wrong()).problems())


# ---- inputs that only onnx.reference takes ---------------------------------------------------------------------------


def test_inputs_that_onnxruntime_and_the_module_refuse(tmp_path: Path) -> None:
    """Parts that do not sum up to the axis: numpy does not mind, but that is no difference."""
    text = "(float[n, 8] x, int64[1] s, int64[1] r) => (float[n, b] y, float[n, c] z) {"
    with pytest.raises(OnnxgenError, match="onnxruntime refused all, and the module others .* -> .*--inputs FILE"):
        report(tmp_path, text + " q = Concat <axis = 0> (s, r)  y, z = Split <axis = 1> (x, q) }")
