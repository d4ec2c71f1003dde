"""samples/plugin: a real export of a `torch.autograd.Function`; its PyTorch original is the oracle."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import numpy_helper

from onnxgen import OnnxgenError, Options
from onnxgen.cli import run as command
from onnxgen.pipeline import build, generate
from tests.conftest import ROOT
from tests.support.real import imported

SAMPLE = ROOT / "samples" / "plugin"
PLUGIN = Options(plugins=[str(SAMPLE / "ops")])


@pytest.fixture
def original() -> dict[str, Any]:
    """What samples/plugin/make_onnx.py has."""
    return runpy.run_path(str(SAMPLE / "make_onnx.py"))


@pytest.fixture(autouse=True)
def path() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before
    sys.modules.pop("wave_net", None)


def with_weights(network: torch.nn.Module, path: Path) -> torch.nn.Module:
    """The original with the tensors of an ONNX file, whose names are its state dict's."""
    tensors = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in onnx.load(path).graph.initializer}
    network.load_state_dict(tensors)
    return network


def assert_equal(module: torch.nn.Module, network: torch.nn.Module) -> None:
    """Outputs, and the gradient of every parameter: the original has a backward of its own."""
    x = torch.linspace(-7, 7, 50)[:, None]
    outputs = [m(x) for m in (module, network)]
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-5)
    for output in outputs:
        output.square().mean().backward()
    ours, theirs = ({n: p.grad for n, p in m.named_parameters()} for m in (module, network))
    assert ours.keys() == theirs.keys()
    for name, grad in theirs.items():
        torch.testing.assert_close(ours[name], grad, rtol=1e-4, atol=1e-5)


def test_it_computes_and_trains_as_the_original(original: dict[str, Any], tmp_path: Path) -> None:
    generate(SAMPLE / "wave.onnx", tmp_path / "net.py", PLUGIN)
    source = (tmp_path / "net.py").read_text()
    assert source.count("class Snake(") == 1 and "self.act1 = Snake(32)" in source
    network = with_weights(original["Wave"](), SAMPLE / "wave.onnx")
    assert_equal(imported(tmp_path / "net.py").Model.from_pretrained(), network)


def test_what_was_trained_is_in_the_original_graph(original: dict[str, Any], tmp_path: Path) -> None:
    tune = runpy.run_path(str(SAMPLE / "tune.py"))["tune"]
    before, after = tune(tmp_path, steps=40)
    assert after < before / 2
    first, tuned = onnx.load(SAMPLE / "wave.onnx").graph, onnx.load(tmp_path / "tuned.onnx").graph
    assert [n.SerializeToString() for n in first.node] == [n.SerializeToString() for n in tuned.node]
    network = with_weights(original["Wave"](), tmp_path / "tuned.onnx")
    x = torch.linspace(-6, 6, 256)[:, None]
    higher = 1.2 * torch.sin(2 * x) + 0.3 * x + 0.5
    assert torch.nn.functional.mse_loss(network(x), higher).item() == pytest.approx(after, rel=1e-3)


def test_a_fresh_export(original: dict[str, Any], tmp_path: Path) -> None:
    """Of the torch that is installed."""
    torch.manual_seed(3)
    network = original["Wave"]()
    with torch.no_grad():
        network.act1.a.uniform_(0.5, 2)
    original["export"](network, tmp_path / "wave.onnx")
    with pytest.raises(OnnxgenError, match=r"\(2 nodes: /act1/Snake, /act2/Snake\)"):
        build(tmp_path / "wave.onnx", Options(), tmp_path / "net.py")
    generate(tmp_path / "wave.onnx", tmp_path / "net.py", PLUGIN)
    assert_equal(imported(tmp_path / "net.py").Model.from_pretrained(), network)


def test_a_tensor_that_is_computed_takes_the_function(tmp_path: Path) -> None:
    model = onnx.load(SAMPLE / "wave.onnx")
    (node,) = [n for n in model.graph.node if n.name == "/act1/Snake"]
    node.input[1] = "doubled"
    model.graph.node.insert(0, onnx.helper.make_node("Add", ["act1.a", "act1.a"], ["doubled"]))
    onnx.save(model, tmp_path / "wave.onnx")
    source = build(tmp_path / "wave.onnx", PLUGIN, tmp_path / "net.py").source
    assert source.count("return snake(x, ") == 2 and "self.act2 = Snake(32)" in source


def test_other_powers_are_refused(tmp_path: Path) -> None:
    model = onnx.load(SAMPLE / "wave.onnx")
    for node in model.graph.node:
        for attribute in node.attribute if node.domain else ():
            attribute.i = 3
    onnx.save(model, tmp_path / "wave.onnx")
    with pytest.raises(OnnxgenError, match="a sine to the power of 3 is not known -> export it with power 2"):
        build(tmp_path / "wave.onnx", PLUGIN, tmp_path / "net.py")


def test_the_readmes_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wave, ops = str(SAMPLE / "wave.onnx"), str(SAMPLE / "ops")
    assert command([wave, "-o", str(tmp_path / "a.py")]) == 2
    line = capsys.readouterr().err.partition(" -> ")[0]
    assert line in (SAMPLE / "README.md").read_text()
    assert command([wave, "-o", str(tmp_path / "a.py"), "--plugin", f"{ops}/"]) == 0
    assert command([wave, "-o", str(tmp_path / "b.py"), "--allow-unsupported"]) == 0
    assert "def snake(self, x: Tensor, a: Tensor, *, power: int)" in (tmp_path / "b.py").read_text()
