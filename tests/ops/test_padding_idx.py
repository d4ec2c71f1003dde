"""The row that an `nn.Embedding` keeps for padding is not trained where the file says which it is, and only there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from onnxgen.pipeline import generate
from onnxgen.runtime.load import load
from onnxgen.verify import verify
from tests.ops.harness import run_model
from tests.support.exported import exported

IDS = torch.tensor([[1, 2, 3, 0], [0, 1, 2, 2]])


class Bag(nn.Module):
    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.words, self.fc = nn.Embedding(20, 8, padding), nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.fc(self.words(ids).sum(1))
        return found


def remade(net: nn.Module, case: str) -> nn.Module:
    return run_model(exported(net.eval(), [IDS], case), {"i0": IDS.numpy()}).model


def assert_trains_the_same(made: nn.Module, net: nn.Module) -> None:
    """One step of each, by the gradients of the table."""
    for model in (made, net):
        model.zero_grad()
        model(IDS).sum().backward()
    tables = [dict(model.named_parameters())["words.weight"].grad for model in (made, net)]
    torch.testing.assert_close(*tables)


@pytest.mark.parametrize("padding", [0, 3, -1, None])
@pytest.mark.parametrize("zeros", [False, True])
def test_the_recorded_call_has_the_row(padding: int | None, zeros: bool) -> None:
    """Also of a row that is not zeros, and of none, though a row is."""
    net = Bag(padding)
    with torch.no_grad():
        net.words.weight[0] = 0.0 if zeros else 1.0
    made = remade(net, "dynamo-18")
    assert isinstance(made.words, nn.Embedding) and made.words.padding_idx == net.words.padding_idx
    assert_trains_the_same(made, net)


@pytest.mark.parametrize("rows", [[], [0], [3], [0, 2], [9]])
@pytest.mark.parametrize("case", ["legacy-17", "dynamo-18"])
def test_rows_of_zeros_do_not_tell(rows: list[int], case: str) -> None:
    """A file of the older exporter has no other trace of padding, and such a row is trained like any other."""
    net = Bag(None)
    with torch.no_grad():
        net.words.weight[rows] = 0.0
    made = remade(net, case)
    assert isinstance(made.words, nn.Embedding) and made.words.padding_idx is None
    assert_trains_the_same(made, net)


@pytest.mark.parametrize("row,wanted", [(2, 2), (-1, None), (40, None)])
def test_an_operator_that_has_the_row(row: int, wanted: int | None, tmp_path: Path) -> None:
    """onnxruntime's TorchEmbedding. -1 stands for none."""
    table = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    stored = [numpy_helper.from_array(table, "words.weight"), numpy_helper.from_array(np.array(row), "row")]
    node = helper.make_node("TorchEmbedding", ["words.weight", "ids", "row"], ["y"], domain="com.microsoft")
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [2, 3])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, 4])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", [ids], [out], stored), opset_imports=opsets, ir_version=9)
    onnx.save(model, tmp_path / "net.onnx")
    made = load(tmp_path / "net.onnx")
    assert isinstance(made.words, nn.Embedding) and made.words.padding_idx == wanted
    found = made(torch.tensor([[0, 1, 2], [5, 2, 1]]))
    np.testing.assert_array_equal(found.detach().numpy(), table[[[0, 1, 2], [5, 2, 1]]])


def test_gradients_are_compared_without_it(tmp_path: Path) -> None:
    onnx.save(exported(Bag(1).eval(), [IDS], "dynamo-18"), tmp_path / "net.onnx")
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    assert "padding_idx=1" in (tmp_path / "net.py").read_text()
    assert verify(tmp_path / "net.onnx", tmp_path / "net.py").agrees
