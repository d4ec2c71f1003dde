"""Biases that are equal before training belong to one module each, also where an exporter cut them only once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from onnxgen.runtime.load import load
from tests.export.test_shared import back
from tests.support.exported import held
from tests.zoo.export import quiet


class Decoder(nn.Module):
    """The attentions of an encoder and a decoder: the biases of one and of two across are zeros, stored once."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.MultiheadAttention(8, 2, batch_first=True)
        self.layers = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        memory, _ = self.encoder(x, x, x, need_weights=False)
        for layer in self.layers:
            x = x + layer(x, memory, memory, need_weights=False)[0]
        return x


class Messages(nn.Module):
    """A layer of a graph network: it weighs messages by a distance that fades to 0."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, edges: Tensor, distance: Tensor) -> Tensor:
        source, target = edges
        weight = (0.5 * (torch.cos(distance) + 1)).unsqueeze(-1)
        return x + weight * self.linear(x)[source] * x[target]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Messages() for _ in range(3))

    def forward(self, x: Tensor, edges: Tensor, distance: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, edges, distance)
        return x


def test_layers_prepare_their_inputs_themselves() -> None:
    """The exporter writes the weights of the messages, and the rows of the edges, once, in the first layer."""
    inputs = [torch.randn(5, 4), torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]]), torch.rand(5)]
    ran = held(Layers(), inputs)
    assert ran.source.count("(nn.Module):") == 2 and "for _ in range(3)" in ran.source


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder") / "net.onnx"
    shapes = ({0: torch.export.Dim("batch")},)
    with quiet():
        torch.onnx.export(
            Decoder().eval(), (torch.randn(2, 5, 8),), path, dynamo=True, input_names=["x"], dynamic_shapes=shapes
        )
    return path


def test_cross_attentions_have_biases_of_their_own(path: Path, tmp_path: Path) -> None:
    assert sum(v.name.endswith("in_proj_bias") for v in onnx.load(path).graph.initializer) == 1
    made = dict(load(path).named_parameters())
    assert made.keys() == dict(Decoder().named_parameters()).keys()
    dropped = {n for n in made if n.endswith("out_proj.bias")}  # zeros, for which the file has no place
    assert {n for n, value in made.items() if not value.requires_grad} == dropped
    x = np.random.default_rng(0).standard_normal((3, 5, 8)).astype(np.float32)
    with quiet():
        back(onnx.load(path), tmp_path, [x])  # each is trained, and so is the file that is exported


def test_numbers_of_a_trained_bias_stay_one_parameter(path: Path, tmp_path: Path) -> None:
    model = onnx.load(path)
    bias = next(v for v in model.graph.initializer if v.name.endswith("in_proj_bias"))
    bias.CopyFrom(onnx.numpy_helper.from_array(np.linspace(-1, 1, 24).astype(np.float32) ** 3, bias.name))
    onnx.save(model, tmp_path / "tied.onnx")
    made = load(tmp_path / "tied.onnx")
    assert not [n for n, _ in made.named_parameters() if n.startswith("layers") and n.endswith("in_proj_bias")]


def test_layers_of_an_untrained_decoder_have_biases_of_their_own(tmp_path: Path) -> None:
    """The exporter merges equal projections of the memory, too, so that the second layer's is in the first one."""
    layer = nn.TransformerDecoderLayer(8, 2, 8, batch_first=True)
    model, path = nn.TransformerDecoder(layer, 2).eval(), tmp_path / "net.onnx"
    with quiet():
        torch.onnx.export(model, (torch.randn(2, 5, 8), torch.randn(2, 7, 8)), path, dynamo=True)
    wanted = {name for name, _ in model.named_parameters() if name.endswith("in_proj_bias")}
    assert len(wanted) == 4 and wanted <= {name for name, _ in load(path).named_parameters()}
