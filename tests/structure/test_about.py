"""What the docstring of a class says about it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from onnxgen.pipeline import generate
from tests.zoo import ZOO
from tests.zoo.export import export, quiet


def documented(path: Path) -> dict[str, str]:
    """The docstrings of the classes in a module, in one line each."""
    classes = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef))
    return {node.name: " ".join((ast.get_docstring(node) or "").split()) for node in classes}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet18", ["Residual block: two 3x3 convolutions."]),
        (
            "vit",
            ["Self-attention.", "Feed-forward network.", "Residual block: self-attention, feed-forward network."],
        ),
        ("mobilenet_v3", ["Squeeze and excitation.", "depthwise convolution"]),
    ],
)
def test_networks_of_the_zoo(name: str, said: list[str], tmp_path: Path) -> None:
    export(ZOO[name], tmp_path / "net.onnx")
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    found = documented(tmp_path / "net.py")
    for text in said:
        assert any(text in doc for doc in found.values()), found


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.third(nn.functional.silu(self.first(x)) * self.second(x))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        y = self.b(self.a(x))
        x = y * 2
        return torch.sin(x + y) + other  # `x` is no input here


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.twice = Gate(), Twice()

    def forward(self, x: Tensor) -> Tensor:
        return self.twice(self.gate(x), x)


@pytest.mark.parametrize("dynamo", [False, True])
def test_only_what_a_class_does_is_said(dynamo: bool, tmp_path: Path) -> None:
    with quiet():
        torch.onnx.export(Net(), (torch.randn(2, 6),), tmp_path / "net.onnx", dynamo=dynamo)
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    found = documented(tmp_path / "net.py")
    assert found["Gate"] == "Gated network."
    assert found["Twice"] == "Two linear layers."


class Pooled(nn.Module):
    """Learned queries look at the input: attention, but not of the input to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(2, 3, 8))
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(self.queries), self.k(x), self.v(x)
        return self.out(nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0])


def test_what_looks_at_something_else_is_no_self_attention(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(8, 8), Pooled()).eval()
    with quiet():
        torch.onnx.export(net, (torch.randn(2, 5, 8),), tmp_path / "net.onnx", dynamo=False)
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    (said,) = (text for text in documented(tmp_path / "net.py").values() if "ttention" in text)
    assert said.startswith("Attention")


class Places(nn.Module):
    """Its numbers are made where its weights are: a layer that is asked for its device is called once all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.net = nn.Embedding(9, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, count: int) -> Tensor:
        return self.net(self.table(torch.arange(count)))[:, None] * count


class Placed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places, self.fc = Places(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + self.places(x.shape[0])


def test_a_layer_that_is_asked_where_it_is_counts_once(tmp_path: Path) -> None:
    with quiet():
        x, axes = torch.randn(2, 5, 8), {"x": {0: "batch"}}
        names = {"input_names": ["x"], "dynamic_axes": axes}
        torch.onnx.export(Placed().eval(), (x,), tmp_path / "net.onnx", dynamo=False, **names)
    source = generate(tmp_path / "net.onnx", tmp_path / "net.py").source
    assert ".weight.device" in source
    assert documented(tmp_path / "net.py")["Places"] == "Embedding, two linear layers."


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return self.layers[0](x) * self.layers[1](other)


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.listed = Gate(), Listed()

    def forward(self, x: Tensor) -> Tensor:
        return self.listed(self.gate(x), x)


def test_layers_of_a_list_that_are_called_one_by_one_are_said_once(tmp_path: Path) -> None:
    with quiet():
        torch.onnx.export(Around(), (torch.randn(2, 6),), tmp_path / "net.onnx", dynamo=False)
    source = generate(tmp_path / "net.onnx", tmp_path / "net.py").source
    assert "self.layers[0](" in source and "self.layers[1](" in source
    assert documented(tmp_path / "net.py")["Listed"] == "Two linear layers."
