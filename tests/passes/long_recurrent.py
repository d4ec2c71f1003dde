"""Drawn networks with recurrent layers and cells: every key, no more lines than the original has, trained and exported.

ONNXGEN_DRAWN=0-40 chooses the seeds.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

import onnxgen
from benchmarks.authors.__main__ import lines, stripped
from tests.support.exported import assert_same_gradients, exported
from tests.support.real import imported

FIRST, LAST = map(int, os.environ.get("ONNXGEN_DRAWN", "0-6").split("-"))


class LayerNet(nn.Module):
    def __init__(self, kind: str, result: str, size: int, hidden: int, **options: Any) -> None:
        super().__init__()
        self.net = getattr(nn, kind)(size, hidden, **options)
        self.fc = nn.Linear(hidden * (2 if options["bidirectional"] else 1), 2)
        self.result = result

    def forward(self, x: Tensor, state: Any = None) -> Any:
        y, h = self.net(x, state)
        if self.result == "all":
            return self.fc(y), h
        if self.result == "y":
            return self.fc(y)
        if self.result == "last":
            return self.fc(y[:, -1] if self.net.batch_first else y[-1])
        h = h[0] if isinstance(h, tuple) else h
        return self.fc(torch.cat([h[-2], h[-1]], -1) if self.net.bidirectional else h[-1])


class CellNet(nn.Module):
    def __init__(self, kind: str, size: int, hidden: int, bias: bool, feeds_back: bool) -> None:
        super().__init__()
        self.cell = getattr(nn, f"{kind}Cell")(size, hidden, bias=bias)
        self.fc = nn.Linear(hidden, size)
        self.hidden = hidden
        self.feeds_back = feeds_back

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.size(0), self.hidden)
        c = torch.zeros(x.size(0), self.hidden)
        given = x[:, 0]
        found = []
        for t in range(3):
            if isinstance(self.cell, nn.LSTMCell):
                h, c = self.cell(given if self.feeds_back else x[:, t], (h, c))
            else:
                h = self.cell(given if self.feeds_back else x[:, t], h)
            given = self.fc(h)
            found.append(given)
        return torch.stack(found, 1)


def drawn(seed: int) -> tuple[nn.Module, list[Any]]:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    kind = chance.choice(["RNN", "RNN", "LSTM", "GRU"])
    batch, length = chance.choice([1, 2, 3]), chance.choice([3, 5, 8])
    size, hidden = chance.choice([(3, 4), (4, 4), (8, 16), (64, 64), (40, 40)])
    if chance.random() < 0.3:
        net: nn.Module = CellNet(kind, size, hidden, chance.random() < 0.8, chance.random() < 0.5)
        return net, [torch.randn(batch, length, size)]
    options = {
        "num_layers": chance.choice([1, 1, 2, 3]), "bidirectional": chance.random() < 0.4,
        "batch_first": chance.random() < 0.5, "bias": chance.random() < 0.8,
    }  # fmt: skip
    options |= {"nonlinearity": "relu"} if kind == "RNN" and chance.random() < 0.4 else {}
    options |= {"dropout": 0.2} if options["num_layers"] > 1 and chance.random() < 0.4 else {}
    net = LayerNet(kind, chance.choice(["all", "y", "last", "h"]), size, hidden, **options)
    inputs = [torch.randn(batch, length, size) if options["batch_first"] else torch.randn(length, batch, size)]
    if kind != "LSTM" and chance.random() < 0.4:
        inputs.append(torch.randn(options["num_layers"] * (2 if options["bidirectional"] else 1), batch, hidden))
    return net, inputs


@pytest.mark.parametrize("exporter", ["legacy-17", "dynamo-18"])
@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_networks(seed: int, exporter: str, tmp_path: Path) -> None:
    model, inputs = drawn(seed)
    training = seed % 3 == 0 and "dropout" not in str(model)  # the legacy exporter refuses a Dropout in a layer
    proto = exported(model.train(training), inputs, exporter + "-train" * training)
    onnx.save(proto, tmp_path / "net.onnx")
    onnxgen.generate(tmp_path / "net.onnx", tmp_path / "net.py")
    module = imported(tmp_path / "net.py")
    sys.modules[module.__name__] = module  # where `inspect` looks for a class's source
    ours = module.Model.from_pretrained().eval()
    assert ours.state_dict().keys() == model.eval().state_dict().keys()
    assert all(torch.equal(a, ours.state_dict()[key]) for key, a in model.state_dict().items())
    assert isinstance(model, CellNet) or lines(stripped(ours)) <= lines(stripped(model))
    with torch.no_grad():
        for made, wanted in zip(_flat(ours(*inputs)), _flat(model(*inputs)), strict=True):
            torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-5)
    assert_same_gradients(ours, model, inputs)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    onnxgen.export(tmp_path / "net.py", weights=ours, out=tmp_path / "back.onnx")  # compares with onnxruntime
    nodes = [node.op_type for node in onnx.load(tmp_path / "back.onnx").graph.node]
    assert nodes == [node.op_type for node in proto.graph.node]


def _flat(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [t for part in result for t in _flat(part)]
