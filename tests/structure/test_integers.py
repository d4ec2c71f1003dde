"""A network whose matrices are integers with scales reads as one with torch's layers."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.pipeline import generate

WIDTH, HEADS = 8, 2


class Integers(nn.Module):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.register_buffer("weight_q", torch.randint(-9, 9, (rows, columns)).to(torch.int8))
        self.weight_scale = nn.Parameter(torch.rand(1, columns) + 0.1)

    def matrix(self) -> Tensor:
        return self.weight_q.float() * self.weight_scale


class Table(Integers):
    def forward(self, ids: Tensor) -> Tensor:
        return self.matrix()[ids]


class Linear(Integers):
    def __init__(self, rows: int, columns: int) -> None:
        super().__init__(rows, columns)
        self.bias = nn.Parameter(torch.randn(columns))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix() + self.bias


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings, self.kind_embeddings = Table(20, WIDTH), Table(3, WIDTH)

    def forward(self, ids: Tensor, kinds: Tensor) -> Tensor:
        return self.word_embeddings(ids) + self.kind_embeddings(kinds)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = Linear(WIDTH, 3 * WIDTH), Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.query, self.key, self.value))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings, self.layer = Embeddings(), nn.ModuleList(Layer() for _ in range(4))

    def forward(self, ids: Tensor, kinds: Tensor) -> Tensor:
        x = self.embeddings(ids, kinds)
        for layer in self.layer:
            x = layer(x)
        return x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Encoder()

    def forward(self, ids: Tensor, kinds: Tensor) -> Tensor:
        return self.inner(ids, kinds)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("integers") / "net.onnx"
    example = (torch.randint(20, (2, 5)), torch.randint(3, (2, 5)))
    options = {"dynamo": False, "opset_version": 17, "do_constant_folding": False}
    torch.onnx.export(Net().eval(), example, str(path), input_names=["ids", "kinds"], **options)
    _lose_names_of_lookups(path)
    return generate(path).source


def _lose_names_of_lookups(path: Path) -> None:
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "Gather":
            node.name = ""
    onnx.save(model, path)


def test_sizes_are_called_as_those_of_torchs_layers(source: str) -> None:
    assert "torch.zeros(in_features, out_features, dtype=torch.int8)" in source
    assert "torch.zeros(num_embeddings, embedding_dim, dtype=torch.int8)" in source
    assert "size" not in source[source.index("class ") : source.index("class Net")]


def test_a_table_looks_up_its_rows_itself(source: str) -> None:
    assert "self.word_embeddings(ids) + self.kind_embeddings(kinds)" in source


def test_tables_are_no_second_class_of_the_name_of_what_has_them(source: str) -> None:
    assert "class EmbeddingTable(" in source and "class Embeddings(" in source and "class Embeddings2(" not in source


def test_the_number_of_heads_is_an_argument(source: str) -> None:
    assert "num_heads=2" in source and "(self.num_heads, -1)" in source


def test_what_only_holds_the_network_says_so(source: str) -> None:
    assert "class Backbone(" in source and "class Inner(" not in source


def test_docstrings_say_what_is_computed(source: str) -> None:
    assert '"""Linear layer."""' in source and '"""Two embeddings."""' in source
