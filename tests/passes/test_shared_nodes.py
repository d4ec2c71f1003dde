"""Layers beside each other take the activation of one value: exporters compute it once, in the first of them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from onnx import parser
from torch import Tensor

from onnxgen.pipeline import generate
from onnxgen.verify import verify
from tests.support.real import imported
from tests.zoo.export import quiet


class ResBlock(nn.Module):
    def __init__(self, kernel_size: int, act: str) -> None:
        super().__init__()
        self.act = act
        self.conv1 = nn.Conv1d(8, 8, kernel_size, padding=kernel_size // 2)
        self.conv2 = nn.Conv1d(8, 8, kernel_size, padding=kernel_size // 2)

    def forward(self, x: Tensor) -> Tensor:
        act = F.mish if self.act == "mish" else lambda t: F.leaky_relu(t, 0.1)
        return x + self.conv2(act(self.conv1(act(x))))


class Branches(nn.Module):
    """The part of HiFi-GAN between two resizes (https://arxiv.org/abs/2010.05646, section 2.2)."""

    def __init__(self, act: str) -> None:
        super().__init__()
        self.pre = nn.Conv1d(4, 8, 3, padding=1)
        self.resblocks = nn.ModuleList([ResBlock(k, act) for k in (3, 5, 7)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.pre(x)
        return self.resblocks[0](x) + self.resblocks[1](x) + self.resblocks[2](x)


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("act", ["leaky", "mish"])
def test_each_branch_computes_its_activation(tmp_path: Path, act: str, dynamo: bool) -> None:
    path = tmp_path / "net.onnx"
    with quiet():
        torch.onnx.export(Branches(act).eval(), (torch.randn(1, 4, 16),), path, dynamo=dynamo)
    source = generate(path, tmp_path / "net.py").source
    assert source.count("(nn.Module):") == 2 and "resblocks[2](x)" in source
    assert verify(path).agrees


class Chain(nn.Module):
    """The second block takes what the first activates, and what the first returns."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Given(), Given()])

    def forward(self, x: Tensor) -> Tensor:
        kept, out = self.blocks[0](x, x)
        return self.blocks[1](kept, out)[1]


class Given(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.gain = nn.Parameter(torch.rand(4, 1))

    def forward(self, kept: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.tanh(self.gain * kept)
        return kept, kept + self.conv(x)


@pytest.mark.parametrize("dynamo", [False, True])
def test_what_is_trained_stays_where_it_is(tmp_path: Path, dynamo: bool) -> None:
    """A value that a trained tensor makes is none that each layer computes."""
    path = tmp_path / "net.onnx"
    with quiet():
        torch.onnx.export(Chain().eval(), (torch.randn(1, 4, 8),), path, dynamo=dynamo)
    generate(path, tmp_path / "net.py")
    assert verify(path).agrees


class TimeBlock(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1, self.time = nn.Conv2d(before, after, 3, padding=1), nn.Linear(12, after)
        self.conv2, self.norm = nn.Conv2d(after, after, 3, padding=1), nn.GroupNorm(2, after)
        self.skip = nn.Identity() if before == after else nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        out = self.conv1(x) + self.time(F.silu(time))[:, :, None, None]
        return self.conv2(F.silu(self.norm(out))) + self.skip(x)


class Diffusion(nn.Module):
    """Blocks in several places of a network take one embedding of time (https://arxiv.org/abs/2006.11239)."""

    def __init__(self) -> None:
        super().__init__()
        self.downs = nn.ModuleList([TimeBlock(3, 8), TimeBlock(8, 16)])
        self.mid, self.up = TimeBlock(16, 16), TimeBlock(16, 8)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        for down in self.downs:
            x = down(x, time)
        return self.up(self.mid(x, time), time)


@pytest.mark.parametrize("dynamo", [False, True])
def test_blocks_in_several_places_activate_what_they_take(tmp_path: Path, dynamo: bool) -> None:
    path = tmp_path / "net.onnx"
    with quiet():
        given = torch.randn(2, 3, 8, 8), torch.randn(2, 12)
        torch.onnx.export(Diffusion().eval(), given, path, dynamo=dynamo)
    source = generate(path, tmp_path / "net.py").source
    assert source.count("(nn.Module):") == 2 and source.count("self.time(F.silu(") == 1
    assert verify(path).agrees


@pytest.mark.parametrize("drawn", ["Dropout (h, half, yes)", "RandomNormalLike (h)", "Bernoulli (h)"])
def test_what_is_drawn_once_is_drawn_once(tmp_path: Path, drawn: str) -> None:
    """Two layers take one draw: a copy in each would draw twice."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> net (float[n, 64] x) => (float[n, 64] y) {{
        half = Constant <value = float {{0.5}}> ()  yes = Constant <value = bool {{1}}> ()
        ["/pre/Sigmoid"] h = Sigmoid (x)
        ["/layers.0/Draw"] d = {drawn}
        ["/layers.0/act/Relu"] a = Relu (d)
        ["/layers.1/act/Relu"] b = Relu (d)
        ["/Sub"] y = Sub (a, b) }}"""
    onnx.save(parser.parse_model(text), tmp_path / "net.onnx")
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    made = imported(tmp_path / "net.py").Net().train()
    assert bool((made(torch.randn(4, 64)) == 0).all())
