"""Inputs that become constants: with their values onnxruntime computes what the module does, and its export, too."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper, parser

import onnxgen
from onnxgen import Options, generate, verify
from onnxgen.errors import OnnxgenError
from onnxgen.record.sidecar import read_header
from onnxgen.training.model import open_model

F = np.float32
WEIGHT, BIAS = np.arange(12, dtype=F).reshape(4, 3) / 10, np.array([1, -1, 0.5], F)

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 4] x, int64 sr, float[3] shift, bool[1] on, float[n, k] wide) => (float[n, 3] y, float[n, k] z) {
   rate = Constant <value_int = 16000> ()
   is_rate = Equal(sr, rate)
   h = If (is_rate) <
      then_branch = one () => (float[n, 3] a) { p = MatMul(x, weight) a = Add(p, bias) },
      else_branch = two () => (float[n, 3] b) { q = MatMul(x, other) b = Relu(q) }
   >
   moved = Add(h, shift)
   y = Where(on, moved, h)
   z = Identity(wide)
}"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    model = parser.parse_model(TEXT)
    for name, array in (("weight", WEIGHT), ("bias", BIAS), ("other", -WEIGHT)):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


GIVEN: dict[str, Any] = {"sr": 16000, "shift": (0.5, 1, -2), "on": True}
FEEDS: dict[str, Any] = {"sr": np.array(16000), "shift": np.array([0.5, 1, -2], F), "on": np.array([True])}
X, OPEN = np.random.default_rng(0).normal(size=(5, 4)).astype(F), np.zeros((5, 2), F)


def answer(path: Path, **feeds: Any) -> Any:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}
    return session.run(None, {name: value for name, value in {**FEEDS, **feeds}.items() if name in wanted})[0]


@pytest.mark.parametrize("sr", [16000, 8000])
def test_an_input_vanishes(path: Path, sr: int) -> None:
    generate(path, path.with_suffix(".py"), Options(const={**GIVEN, "sr": sr}))
    network = open_model(path.with_suffix(".py"))
    assert list(inspect.signature(network.forward).parameters) == ["x", "wide"]
    text = path.with_suffix(".py").read_text()
    assert "if " not in text[text.index("class ") : text.index("return")], "one branch is left"
    found = network(torch.from_numpy(X), torch.from_numpy(OPEN))[0]
    np.testing.assert_allclose(found.detach(), answer(path, x=X, wide=OPEN, sr=np.array(sr)), rtol=1e-5, atol=1e-6)
    assert {p.numel() for p in network.parameters()} == ({12, 3} if sr == 16000 else {12}), "none of them is trained"
    assert verify(path, path.with_suffix(".py")).agrees, "the sidecar records them"


def test_verify_sees_another_value(path: Path) -> None:
    module = path.with_suffix(".py")
    generate(path, module, Options(const=GIVEN))
    other = Options(const={**GIVEN, "shift": 0.25})
    assert not verify(path, module, options=other).agrees
    generate(path, module, other)
    assert verify(path, module).agrees


def test_what_is_exported_has_its_inputs(path: Path, tmp_path: Path) -> None:
    generate(path, path.with_suffix(".py"), Options(const=GIVEN))
    network = open_model(path.with_suffix(".py"))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 1
    report = onnxgen.export(path.with_suffix(".py"), weights=network, out=tmp_path / "new.onnx")
    assert report.method == "written back" and report.verified is not None and not report.verified.differs
    ports = [[value.name for value in onnx.load(file).graph.input] for file in (path, tmp_path / "new.onnx")]
    assert ports[0] == ports[1] == ["x", "sr", "shift", "on", "wide"]
    found = network(torch.from_numpy(X), torch.from_numpy(OPEN))[0].detach()
    np.testing.assert_allclose(answer(tmp_path / "new.onnx", x=X, wide=OPEN), found, rtol=1e-5, atol=1e-5)
    was, now = (answer(file, x=X, wide=OPEN, sr=np.array(8000)) for file in (path, tmp_path / "new.onnx"))
    np.testing.assert_array_equal(was, now)  # what the constant leaves out stays as it is
    assert {tensor.name for tensor in onnx.load(tmp_path / "new.onnx").graph.initializer} == {"weight", "bias", "other"}


def test_a_changed_network_is_exported_without_them(path: Path, tmp_path: Path) -> None:
    module = path.with_suffix(".py")
    generate(path, module, Options(const=GIVEN))
    text = module.read_text()
    module.write_text(re.sub(r"return (.*), ", r"return torch.tanh(\1), ", text, count=1))
    assert module.read_text() != text
    report = onnxgen.export(module, out=tmp_path / "new.onnx")
    assert report.method == "exported anew" and report.verified is not None and not report.verified.differs
    assert [value.name for value in onnx.load(tmp_path / "new.onnx").graph.input] == ["x", "wide"]


def test_open_sizes_are_fixed_with_them(path: Path) -> None:
    options = Options(const={"wide": 2}, input_shapes={"wide": (1, 2), "sr": ()})
    generate(path, path.with_suffix(".py"), options)
    assert verify(path, path.with_suffix(".py"), options=Options(input_shapes={"x": (1, 4)})).agrees
    assert "wide" not in read_header(path.with_suffix(".safetensors"))[0]["signature"].split("outputs")[0]


def test_a_part_of_the_network(path: Path) -> None:
    generate(path, path.with_suffix(".py"), Options(inputs=("h",), outputs=("y",), const={"shift": 1, "on": 1}))
    found = open_model(path.with_suffix(".py"))(torch.ones(2, 3))
    assert found.tolist() == [[2, 2, 2]] * 2
    assert verify(path, path.with_suffix(".py")).agrees


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another name": ({"sr2": 1}, "--const: sr2 is no input of the model -> did you mean"),
    "a weight": ({"weight": 1}, "--const: weight is stored in the file"),
    "a part of a number": ({"sr": 0.5}, "--const sr: the input is int64, which 0.5 is not"),
    "too large": ({"sr": 1 << 63}, f"--const sr: the input is int64, which {1 << 63} is not"),
    "too large for a float": ({"shift": 1e40}, "--const shift: the input is float, which 1e+40 is not"),
    "no truth": ({"on": 2}, "--const on: the input is bool, which 2 is not"),
    "too few": ({"shift": (1, 2)}, "--const shift: 2 numbers, but the input has 3 elements, [3]"),
    "open sizes": ({"wide": 1}, "--const wide: the sizes [n, k] of the input are open; fix them, too, with --input-"),
    "all of them": ({**GIVEN, "x": 0, "wide": 0}, "--const gives all inputs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(path: Path, case: str) -> None:
    const, what = REFUSED[case]
    shapes = {"x": (1, 4), "wide": (1, 2)} if case == "all of them" else {}
    with pytest.raises(OnnxgenError, match=re.escape(what)) as error:
        generate(path, path.with_suffix(".py"), Options(const=const, input_shapes=shapes))
    assert len(error.value.problems) == 1 and "\n" not in str(error.value)


def test_every_problem_is_told(path: Path) -> None:
    with pytest.raises(OnnxgenError) as error:
        generate(path, path.with_suffix(".py"), Options(const={"sr2": 1, "sr": 0.5, "on": 1}))
    assert len(error.value.problems) == 2


@pytest.mark.parametrize("version", [3, 8])
def test_older_files_declare_stored_tensors_as_inputs(path: Path, version: int) -> None:
    model = onnx.load(path)
    model.ir_version = version
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in model.graph.initializer
    )
    onnx.save(model, path)
    generate(path, path.with_suffix(".py"), Options(const=GIVEN))
    assert verify(path, path.with_suffix(".py")).agrees
