"""A fault of structure costs a plainer text, never a wrong one: each test puts such a fault in."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.cli import BUG, run
from onnxgen.code.quote import call
from onnxgen.errors import STRICT, WrongTranslation
from onnxgen.lowering import dropout
from onnxgen.options import Options
from onnxgen.output import compose as generated
from onnxgen.pipeline import generate
from onnxgen.structure import runs
from tests.backend.road import imported

Network = tuple[Path, nn.Module]


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.hardswish(self.layers(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(3), Block(4)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.second(self.first(x)).mean((2, 3)))


@pytest.fixture
def network(tmp_path: Path) -> Network:
    torch.manual_seed(0)
    net = Net().eval()
    torch.onnx.export(net, (torch.randn(1, 3, 8, 8),), tmp_path / "net.onnx", dynamo=False, opset_version=17)
    return tmp_path / "net.onnx", net


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Sequential takes another activation than the graph has."""
    monkeypatch.setattr(runs, "LAYER_OF", {**runs.LAYER_OF, "F.relu": "nn.GELU"})


def test_a_fault_is_left_out_with_a_note(network: Network, wrong: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT, "0")
    path, net = network
    report = generate(path).report
    assert report.plain and any("left plain" in note and report.plain[0] in note for note in report.notes)
    made, x = imported(path.with_suffix(".py")).Model.from_pretrained().eval(), torch.randn(2, 3, 8, 8)
    assert "GELU" not in path.with_suffix(".py").read_text()
    assert torch.equal(made(x[:1]), net(x[:1])) and made.state_dict().keys() == net.state_dict().keys()


def test_strict_makes_it_an_error(network: Network, wrong: None) -> None:
    """`tests/conftest.py` sets it."""
    with pytest.raises(WrongTranslation, match=r"first.* is not what the graph computes"):
        generate(network[0])
    assert not network[0].with_suffix(".py").exists()


def test_the_command_calls_it_a_bug(network: Network, wrong: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([str(network[0])]) == BUG
    assert "is not what the graph computes" in capsys.readouterr().err
    assert sorted(p.name for p in network[0].parent.iterdir()) == ["net.onnx"]


def test_what_is_wrong_even_when_it_is_plain_is_refused(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault outside of structure: the text loses an activation."""
    monkeypatch.setenv(STRICT, "0")
    render = generated.render

    def wrong_text(*given: Any) -> tuple[str, ast.Module]:
        source = render(*given)[0].replace("F.hardswish(", "(")
        return source, ast.parse(source)

    monkeypatch.setattr(generated, "render", wrong_text)
    with pytest.raises(WrongTranslation, match="the network"):
        generate(network[0])
    assert not network[0].with_suffix(".py").exists()


def test_nothing_is_left_plain_without_a_fault(network: Network) -> None:
    report = generate(network[0]).report
    assert report.plain == [] and onnx.load(network[0]).graph.node and report.stages["validate"] > 0


def test_dropout_changes_nothing_else(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    generate(network[0], options=Options(dropout={"first": 0.2}), force=True)
    monkeypatch.setattr(dropout, "call", lambda function, *given: call("nn.AlphaDropout", *given))
    with pytest.raises(WrongTranslation, match="dropout changed"):
        generate(network[0], options=Options(dropout={"first": 0.3}), force=True)
