"""Rows of an embedding that are added without a lookup, because an exporter folded the positions."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from tests.structure.test_structure import classes, made
from tests.zoo.export import Case

DYNAMO = Case("dynamo", 18, False)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.position_embeddings = nn.Embedding(5, 8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + self.position_embeddings(torch.arange(5)))
        return self.head(x)


def tokens(batch: int = 2) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 5, 8, generator=torch.Generator().manual_seed(1)),)


def test_positions_are_an_embedding(tmp_path: Path) -> None:
    source = made(Tokens, tmp_path, tokens, DYNAMO)
    assert [*classes(source)] == ["Tokens"]
    assert "self.position_embeddings = nn.Embedding(5, 8)" in source
    assert "x + self.position_embeddings.weight" in source


class Scaled(nn.Module):
    """A table beside another tensor of its module, and a row that is a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 8))
        self.scale = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.scale + self.weight) + x


class Other(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.row = Scaled(), Scaled(), nn.Module()
        self.row.weight = nn.Parameter(torch.randn(1, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) + self.row.weight


def test_a_module_with_more_than_a_table_keeps_its_class(tmp_path: Path) -> None:
    source = made(Other, tmp_path, tokens, DYNAMO)
    assert "nn.Embedding" not in source and "self.weight" in classes(source)["Scaled"]
