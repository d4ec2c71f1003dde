"""What is said of a file that was exported for inference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper as h
from torch import Tensor, nn

from onnxgen import Options
from onnxgen.cli import run
from onnxgen.pipeline import build
from tests.zoo import ZOO
from tests.zoo.export import export, quiet

VI = h.make_tensor_value_info


def notes(path: Path, options: Options | None = None) -> str:
    return "; ".join(build(path, options or Options(), path.with_suffix(".py")).report.notes)


@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_folded_batch_norms(exporter: str, training: bool, tmp_path: Path) -> None:
    """One convolution without a bias and one with; the linear layers have no BatchNorm."""
    export(ZOO["cnn"], tmp_path / "m.onnx", exporter, 18 if exporter == "dynamo" else 17, training)
    folded = [n.op_type for n in onnx.load(tmp_path / "m.onnx").graph.node].count("BatchNormalization") == 0
    assert folded != training
    assert ("BatchNorm is folded into the weights of 2 layers" in notes(tmp_path / "m.onnx")) == folded


def save(path: Path, weight: str, first: object, producer: str = "pytorch", other: str = "fc.bias") -> Path:
    """A convolution of a batch of `first`; the weights' names tell the exporter."""
    shapes = {weight: (2, 3, 1, 1), other: (2, 1, 1)}
    tensors = [onnx.numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in shapes.items()]
    nodes = [h.make_node("Conv", ["x", weight], ["h"]), h.make_node("Add", ["h", other], ["y"])]
    inputs = [VI("x", onnx.TensorProto.FLOAT, [first, 3, 4, 4])]
    graph = h.make_graph(nodes, "g", inputs, [VI("y", onnx.TensorProto.FLOAT, None)], tensors)
    opsets = [h.make_opsetid("", 17)]
    onnx.save(h.make_model(graph, opset_imports=opsets, ir_version=8, producer_name=producer), path)
    return path


@pytest.mark.parametrize(
    ("weight", "producer", "other", "folded"),
    [
        ("onnx::Conv_41", "pytorch", "fc.bias", True),
        ("41", "pytorch", "fc.bias", True),
        ("41", "pytorch", "42", False),  # nothing in this file has a name
        ("41", "CNTK", "fc.bias", False),
        ("model/conv/Conv2D_weights_fused_bn", "tf2onnx", "b", True),
        ("conv.weight", "pytorch", "fc.bias", False),
        ("onnx::MatMul_41", "pytorch", "fc.bias", False),
    ],
)
def test_names_that_exporters_give(weight: str, producer: str, other: str, folded: bool, tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", weight, "n", producer, other)
    assert ("BatchNorm is folded into the weights of 1 layer;" in notes(path)) == folded


def test_a_batch_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "m.onnx", "conv.weight", 1)
    assert "exported for a batch of 1 (x)" in notes(path)
    assert run([str(path)]) == 0 and "note: exported for a batch of 1 (x)" in capsys.readouterr().out
    path = save(tmp_path / "m.onnx", "conv.weight", "n")
    assert notes(path) == "" and notes(path, Options(input_shapes={"x": (1, 3, 4, 4)})) == ""
    assert notes(save(tmp_path / "m.onnx", "conv.weight", 2)) == ""


class Positions(nn.Module):
    """Looks up its tables for the length of the example."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 8), nn.Embedding(64, 8)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        return found


def test_a_table_that_was_cut(tmp_path: Path) -> None:
    path, ids = tmp_path / "m.onnx", torch.ones(2, 5, dtype=torch.int64)
    with quiet():
        torch.onnx.export(Positions(), (ids,), path, dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert "places.weight [5, 8]: only what was looked up in a table" in notes(path)
    torch.onnx.export(Positions(), (ids,), path, dynamo=False, dynamic_axes={"x": {0: "n", 1: "m"}}, input_names=["x"])
    assert "a table" not in notes(path)


class Normed(nn.Module):
    """A convolution whose weight is normalised: its exporter stores the product without a name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 3)), nn.Conv1d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(self.first(x).relu())
        return found


class Attending(nn.Module):
    """A vector that each step is compared with: it is no row of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query = nn.Linear(8, 8), nn.Parameter(torch.ones(1, 8))

    def forward(self, x: Tensor) -> Tensor:
        return ((self.key(x) * self.query).sum(-1, keepdim=True).softmax(1) * x).sum(1)


@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
@pytest.mark.parametrize(("network", "shape"), [(Normed, (2, 3, 9)), (Attending, (2, 5, 8))])
def test_what_was_neither_folded_nor_cut_is_not_told(
    network: type[nn.Module], shape: tuple[int, ...], exporter: str, tmp_path: Path
) -> None:
    batch: dict[str, Any] = {"dynamic_axes": {"x": {0: "n"}}, "input_names": ["x"]}
    if exporter == "dynamo":
        batch = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    with quiet():
        torch.onnx.export(
            network().eval(), (torch.ones(shape),), tmp_path / "m.onnx", dynamo=exporter == "dynamo", **batch
        )
    assert notes(tmp_path / "m.onnx") == ""


@pytest.mark.parametrize(("sizes", "told"), [([2, 12], True), ([-1, 12], False), ([0, 12], False)])
def test_sizes_of_the_example(sizes: list[int], told: bool, tmp_path: Path) -> None:
    nodes = [h.make_node("Relu", ["x"], ["r"]), h.make_node("Reshape", ["r", "sizes"], ["rows"])]
    nodes.append(h.make_node("Sigmoid", ["rows"], ["y"]))
    ports = [VI("x", onnx.TensorProto.FLOAT, ["batch", 3, 4])], [VI("y", onnx.TensorProto.FLOAT, None)]
    graph = h.make_graph(nodes, "g", *ports, [onnx.numpy_helper.from_array(np.array(sizes), "sizes")])
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    assert ("exported for fixed sizes (rows [2, 12])" in notes(tmp_path / "m.onnx")) == told
