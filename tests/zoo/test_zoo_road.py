"""Weights that an exporter merged or set apart: copied layers stay apart, tied ones together, as in the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

from onnxgen.lowering.sharing import TiedTensors
from onnxgen.scopes.origin import seen_from, siblings
from onnxgen.weights.provenance import Source
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
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 6)
        self.outer.weight, self.outer.bias = self.inner.weight, self.inner.bias

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.outer(self.inner(self.body(self.embed(ids))) * self.scale))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_tied_matrix_stays_one(case: Case, tmp_path: Path) -> None:
    entry = Entry(Tied, lambda n=2: (torch.arange(n * 3).reshape(n, 3),), ("ids",), ("y",), {"ids": {0: "n"}})
    made = road("", entry, case, tmp_path)
    made.check()
    model: Any = made.model
    assert model.head.weight is model.embed.weight
    assert model.inner.weight is model.outer.weight and model.inner.bias is model.outer.bias
    assert isinstance(model.scale, nn.Parameter)


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(11, 6)
        self.out = nn.Linear(6, 6)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.embed_tokens(ids))


class Shared(nn.Module):
    """One table under three names, two of which are called, as in T5; the two are modules of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(11, 6)
        self.encoder, self.decoder = Half(), Half()
        self.encoder.embed_tokens.weight = self.decoder.embed_tokens.weight = self.shared.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.encoder(ids).tanh() * self.decoder(ids.transpose(0, 1)).mean((0, 1))


@pytest.mark.parametrize("case", CASES[:2], ids=str)
def test_a_weight_that_is_named_after_nobody_who_uses_it(case: Case, tmp_path: Path) -> None:
    entry = Entry(Shared, lambda n=2: (torch.arange(n * 3).reshape(n, 3),), ("ids",), ("y",), {"ids": {0: "n"}})
    made = road("", entry, case, tmp_path)
    made.check()
    model: Any = made.model
    assert model.encoder.embed_tokens.weight is model.decoder.embed_tokens.weight is model.shared.weight


class Table(nn.Module):
    """A buffer of indices that the state dict keeps, looked at in another shape; and a mask of -100."""

    def __init__(self) -> None:
        super().__init__()
        self.bias_table = nn.Parameter(torch.randn(5, 2))
        self.register_buffer("index", torch.tensor([[0, 3, 1], [2, 2, 4], [4, 0, 1]]))
        self.register_buffer("mask", torch.tensor([[0.0, -100.0, 0.0], [0.0, 0.0, -100.0], [0.0, 0.0, 0.0]]))

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias_table[self.index.view(-1)].view(3, 3, 2).permute(2, 0, 1)
        return (x + bias + self.mask).softmax(-1)


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = Table()
        self.out = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attn(x))


@pytest.mark.parametrize("case", [CASES[1], Case("dynamo", 18, True)], ids=str)
def test_buffers_of_the_state_dict_are_kept(case: Case, tmp_path: Path) -> None:
    entry = Entry(
        Tables, lambda n=2: (torch.arange(n * 18.0).reshape(n, 2, 3, 3).sin(),), ("x",), ("y",), {"x": {0: "n"}}
    )
    made = road("", entry, case, tmp_path)
    made.check()
    assert {k for k, _ in made.model.named_buffers()} == {"attn.index", "attn.mask"}


class Tempered(nn.Module):
    """A parameter that is only used by its exponential, as CLIP's scale is."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.inner = Warm()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.body(x))


class Warm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor([0.1, 0.2, 0.3]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.log_scale.exp()


def test_what_was_computed_of_a_parameter_has_not_its_name(tmp_path: Path) -> None:
    """Under that name it would take a checkpoint's logarithms for what they are the logarithms of."""
    entry = Entry(Tempered, lambda n=2: (torch.ones(n, 3),), ("x",), ("y",), {"x": {0: "n"}})
    path = tmp_path / "model.onnx"
    original = export(entry, path, "dynamo", 18)
    made = Road("", entry, Case("dynamo", 18, False), path, original, tmp_path)
    made.assert_outputs(3)
    assert set(original.state_dict()) - set(made.model.state_dict()) == {"inner.log_scale"}
    assert set(made.model.state_dict()) - set(original.state_dict()) == {"inner.exp"}


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
    tied = TiedTensors([named, source("zeros.weight", np.zeros((3, 4), np.float32))])
    assert tied.original(source("onnx::MatMul_3", np.ascontiguousarray(matrix.T)).transpose()) is named
    assert tied.original(source("val_4", other)) is None
    assert tied.original(source("head.weight", matrix)) is None, "it has a name of its own"
    assert tied.original(source("val_5", np.zeros((3, 4), np.float32))) is None, "zeros are equal by chance"
