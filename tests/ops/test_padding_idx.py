"""The row of zeros that an `nn.Embedding` keeps for padding is not trained, as in the network that was exported."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from onnxgen.runtime.load import load
from onnxgen.verify import verify


class Bag(nn.Module):
    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.words, self.fc = nn.Embedding(20, 8, padding), nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.fc(self.words(ids).sum(1))
        return found


def exported(net: nn.Module, path: Path) -> Path:
    ids = torch.tensor([[1, 2, 3, 0], [0, 1, 2, 2]])
    torch.onnx.export(net.eval(), (ids,), path, dynamo=False, opset_version=17, input_names=["ids"])
    return path


@pytest.mark.parametrize("padding", [0, 3, None])
def test_padding_is_not_trained(padding: int | None, tmp_path: Path) -> None:
    net = Bag(padding)
    made = load(exported(net, tmp_path / "net.onnx"))
    assert isinstance(made.words, nn.Embedding) and made.words.padding_idx == padding
    for model in (made, net):
        model(torch.tensor([[1, 2, 3, 0]])).sum().backward()
    torch.testing.assert_close(made.words.weight.grad, net.words.weight.grad)


@pytest.mark.parametrize("rows", [[], [0, 2], [0, 1, 2, 3], [9]])
def test_rows_that_do_not_tell(rows: list[int], tmp_path: Path) -> None:
    """Tokens that were never seen, a table that is not trained yet, and a row far behind, which may be either."""
    net = Bag(None)
    with torch.no_grad():
        net.words.weight[rows] = 0.0
    made = load(exported(net, tmp_path / "net.onnx"))
    assert isinstance(made.words, nn.Embedding) and made.words.padding_idx is None


def test_gradients_are_compared_without_it(tmp_path: Path) -> None:
    from onnxgen.pipeline import generate

    path = exported(Bag(1), tmp_path / "net.onnx")
    generate(path, tmp_path / "net.py")
    assert verify(path, tmp_path / "net.py").agrees
