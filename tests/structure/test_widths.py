"""Blocks take their widths as arguments, and work with others; what depends on a number keeps its numbers."""

from __future__ import annotations

import ast
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.structure.literals import Slot
from onnxgen.structure.parameters import Parameters, Use
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


def test_a_table_of_widths_is_the_network_s(tmp_path: Path) -> None:
    source = classes(made(Tabled, tmp_path, images))
    assert "nn.Conv2d(widths[0], widths[1], " in source["Body"] and "Body(widths, " in source["Net"]


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


def test_what_forward_splits_into_is_stored(tmp_path: Path) -> None:
    split, *_ = classes(made(Held, tmp_path, rows)).values()
    assert "self.split_sizes = " in split and ".split(self.split_sizes, dim=-1)" in split


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


class Inner(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x))


class Part(nn.Module):
    """Blocks in a row, of which the results of all stand side by side with what they take: a C2f."""

    def __init__(self, channels: int, out: int, depth: int) -> None:
        super().__init__()
        self.cv1, half = nn.Conv2d(channels, out, 1), out // 2
        self.m = nn.ModuleList([Inner(half) for _ in range(depth)])
        self.cv2 = nn.Conv2d((2 + depth) * half, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = [*self.cv1(x).chunk(2, 1)]
        for m in self.m:
            parts.append(m(parts[-1]))
        return torch.relu(self.cv2(torch.cat(parts, 1)))


class Rows(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(Part(3, 16, 1), Part(16, 24, 3), Part(24, 32, 2), Part(32, 16, 1))


def test_a_width_follows_from_the_depth(tmp_path: Path) -> None:
    source = made(Rows, tmp_path, images)
    assert "nn.Conv2d((depth + 2) * out_channels // 2, out_channels, kernel_size=1)" in source
    module = imported(tmp_path / "generated.py")
    assert module.Part(6, 10, 4)(torch.randn(2, 6, 8, 8)).shape == (2, 10, 8, 8)


def test_what_another_width_follows_from_is_a_parameter() -> None:
    """hidden_channels = 2 * channels, and channels = 2 * num_features: one of them is written by the other alone."""
    widths = {"hidden_channels": (16, 36), "channels": (8, 18), "num_features": (4, 9)}
    uses = [Use({i: Slot(ast.Constant(n), name) for i, n in enumerate(two)}) for name, two in widths.items()]
    parameters = Parameters([0, 1], uses, {}, [])
    assert not any(base.bases for group in parameters.all for base in group.bases)
    assert [group.rule for group in parameters.all] == ["2 * {}", "{}", "{}"]
