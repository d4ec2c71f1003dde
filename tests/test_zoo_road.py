"""Weights that an exporter merged or set apart: copied layers stay apart, tied ones together, as in the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

from onnxgen.reader.origin import seen_from, siblings
from onnxgen.twins import Twins
from onnxgen.wayback import Source
from tests.zoo import ZOO, Entry
from tests.zoo.export import Case, export
from tests.zoo.road import Road


def road(name: str, entry: Entry, case: Case, folder: Path) -> Road:
    original = export(entry, folder / "model.onnx", case.exporter, case.opset, case.training)
    return Road(name, entry, case, folder / "model.onnx", original, folder)


class Untouched(Entry):
    """A network as its constructor leaves it."""

    def make(self) -> nn.Module:
        torch.manual_seed(0)
        return self.build()


CASES = [Case("legacy", 17, False), Case("legacy", 17, True), Case("dynamo", 18, False)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_copied_layers_stay_apart(case: Case, tmp_path: Path) -> None:
    """`nn.TransformerEncoder` copies one layer: before training all copies are equal, and exporters store one."""
    encoder = ZOO["encoder"]
    entry = Untouched(encoder.build, encoder.inputs, encoder.input_names, encoder.output_names, encoder.dynamic)
    made = road("untouched_encoder", entry, case, tmp_path)
    made.check()
    parameters = list(made.model.parameters())
    optimizer = torch.optim.SGD(parameters, 0.1)
    made.model(*made.entry.inputs())[0, 0].backward()
    optimizer.step()
    state = made.model.state_dict()
    assert not torch.equal(state["encoder.layers.0.linear1.weight"], state["encoder.layers.1.linear1.weight"])


class Tied(nn.Module):
    """The output layer has the embedding's matrix; a parameter of the root is used in a submodule, another anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.body = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embed(ids)) * self.scale)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_tied_matrix_stays_one(case: Case, tmp_path: Path) -> None:
    entry = Entry(Tied, lambda n=2: (torch.arange(n * 3).reshape(n, 3),), ("ids",), ("y",), {"ids": {0: "n"}})
    made = road("", entry, case, tmp_path)
    made.check()
    model: Any = made.model
    assert model.head.weight is model.embed.weight
    assert isinstance(model.scale, nn.Parameter)


def test_siblings_differ_in_numbers_only() -> None:
    assert siblings(("layers", "0", "attn"), ("layers", "12", "attn"))
    assert not siblings(("layers", "0", "attn"), ("layers", "0", "attn"))
    assert not siblings(("encoder", "0"), ("decoder", "1")) and not siblings(("a", "0"), ("a",))
    assert seen_from(("layers", "1"), ("layers", "0", "attn", "weight")) == ("layers", "1", "attn", "weight")
    assert seen_from(("head",), ("embed", "weight")) == ("embed", "weight")
    assert seen_from(("layers", "1", "out"), ("layers", "0", "weight")) == ("layers", "1", "weight")


def source(name: str, array: np.ndarray[Any, Any]) -> Source:
    return Source.of(ir.tensor(array, name=name), name)


def test_twins_are_equal_to_the_last_element() -> None:
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    other = matrix.copy()
    other[2, 3] += 1
    named = source("embed.weight", matrix)
    twins = Twins([named, source("zeros.weight", np.zeros((3, 4), np.float32))])
    assert twins.original(source("onnx::MatMul_3", np.ascontiguousarray(matrix.T)).transpose()) is named
    assert twins.original(source("val_4", other)) is None
    assert twins.original(source("head.weight", matrix)) is None, "it has a name of its own"
    assert twins.original(source("val_5", np.zeros((3, 4), np.float32))) is None, "zeros are equal by chance"
