"""Blocks take their widths as arguments, and work with others; what depends on a number keeps its numbers."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.structure.test_structure import classes, images, made, rows
from tests.support.real import imported
from tests.zoo.export import Case


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(8), Attention(), nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 20), nn.GELU(), nn.Linear(20, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Layer(), Layer())


def test_a_block_works_with_other_widths(tmp_path: Path) -> None:
    source = made(Encoder, tmp_path, rows)
    assert "Layer(8, hidden_dim, num_heads)" in source and "Attention(dim, num_heads)" in source
    module = imported(tmp_path / "generated.py")
    layer = next(made for name, made in vars(module).items() if name.endswith("Layer"))
    assert layer(12, 36, 4)(torch.randn(2, 5, 12)).shape == (2, 5, 12)


class Stack(nn.Module):
    """A table of widths."""

    def __init__(self) -> None:
        super().__init__()
        pairs = ((12, 16), (16, 24), (24, 24), (24, 32))
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Conv2d(a, b, 3), nn.ReLU()) for a, b in pairs])
        self.last = nn.Conv2d(32, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(x))


class Tabled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 12, 1), Stack()

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.body(self.stem(x)))


def test_a_table_of_widths_keeps_its_numbers(tmp_path: Path) -> None:
    assert "nn.Conv2d(16, " in classes(made(Tabled, tmp_path, images))["Body"]


class Split(nn.Module):
    """`forward` has a number that is a part of the width."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 24), nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.inner(x).split([16, 8], dim=-1)
        return self.outer(torch.cat([torch.sin(b), torch.cos(a)], dim=-1))


class Around(nn.Module):
    """A class that makes such a one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.split = nn.LayerNorm(8), Split()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.split(self.norm(x))


class Held(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Around(), Around())


def test_what_forward_depends_on_keeps_its_numbers_and_so_does_who_makes_it(tmp_path: Path) -> None:
    split, block, _ = classes(made(Held, tmp_path, rows)).values()
    assert "def __init__(self):" in split and "def __init__(self):" in block


class Weighed(nn.Module):
    """A constant beside a layer of its width."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        table = torch.rand(5, 8, generator=torch.Generator().manual_seed(3))
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.fc(x) * self.table)


class Pair(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Weighed(), Weighed())


def test_who_has_a_constant_keeps_the_width(tmp_path: Path) -> None:
    block, _ = classes(made(Pair, tmp_path, rows, Case("dynamo", 18, False))).values()
    assert "constant(" in block and "nn.Linear(8, 8)" in block
