"""Constants that follow a rule: buffers with the bits of the original, written by a formula if there is one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from onnx import parser
from torch import Tensor, nn

from onnxgen.passes.regular import is_spectrum, rule_of
from onnxgen.pipeline import generate
from tests.support.exported import exported
from tests.support.real import imported
from tests.zoo.export import quiet


def sinusoids(count: int, width: int, halved: bool = False) -> Tensor:
    angles = torch.arange(count)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    parts = angles.sin(), angles.cos()
    return torch.cat(parts, 1) if halved else torch.stack(parts, 2).flatten(1)


def centres(height: int, width: int, stride: int) -> Tensor:
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return (torch.stack([x, y], -1).reshape(-1, 2).float() + 0.5) * stride


def on_grid(side: int, width: int) -> Tensor:
    """Sines and cosines of rows, then of columns, as masked autoencoders have them, after a class token's zeros."""
    one = sinusoids(side, width // 2, halved=True)
    both = torch.cat([one[:, None].expand(-1, side, -1), one[None].expand(side, -1, -1)], -1)
    return torch.cat([torch.zeros(1, width), both.flatten(0, 1)])


LEVELS = torch.cat([centres(8, 8, 8), centres(4, 4, 16), centres(2, 2, 32)])
FLAT = torch.stack(torch.meshgrid(torch.arange(3.0), torch.arange(4.0), indexing="ij"))
RULES = {
    "evenly": [torch.linspace(0, 1, 12), torch.linspace(-3, 0.7, 16), torch.arange(8) * 0.1, torch.arange(9.0)[None]],
    "geometric": [1 / 10000 ** (torch.arange(0, 32, 2) / 32)],
    "grid": [centres(5, 7, 4), LEVELS, LEVELS.T[None], FLAT],
    "sines": [sinusoids(64, 16), sinusoids(40, 12, halved=True)[None, None], on_grid(6, 16)],
    "strides": [torch.tensor([8.0, 16.0]).repeat_interleave(32)],
    "diagonal": [torch.eye(5) * 2, torch.eye(4)[[0, 2, 2, 1]] * 3],
    "diagonal, zeros": [torch.ones(6, 6).tril() * -3],
    "mask": [torch.full((6, 6), float("-inf")).triu(1)],
}


@pytest.mark.parametrize(("said", "table"), [(said, t) for said, tables in RULES.items() for t in tables])
def test_a_rule_is_found_and_a_small_change_breaks_it(said: str, table: Tensor) -> None:
    rule = rule_of(ir.tensor(table.numpy()))
    assert rule is not None and all(word in rule.reason for word in said.split(", "))
    trained = table + 0.02 * torch.randn(table.shape, generator=torch.Generator().manual_seed(0))
    assert rule_of(ir.tensor(trained.numpy())) is None


def test_no_rule_is_found_by_chance() -> None:
    chance = np.random.default_rng(0)
    for shape in [(4,), (5,), (4, 2), (2, 4), (3, 5), (9, 2), (6, 6), (12, 4)] * 100:
        drawn = chance.normal(size=shape) * chance.choice([0.02, 1])
        assert rule_of(ir.tensor(drawn.astype(np.float32))) is None
        assert rule_of(ir.tensor(drawn.astype(np.float16))) is None


class Constants(nn.Module):
    """Its file has constants of many kinds, and parameters that have the same names and shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.scale = nn.Linear(2, 16), nn.Parameter(torch.randn(16))
        self.table = nn.Parameter(torch.randn(64, 16))
        self.dfl = nn.Conv2d(16, 1, 1, bias=False).requires_grad_(False)
        self.dfl.weight.data[:] = torch.arange(16.0).view(1, 16, 1, 1)
        self.register_buffer("xs", torch.linspace(0, 1, 16))
        self.register_buffer("freqs", torch.linspace(0.5, 7, 16))
        self.register_buffer("positions", sinusoids(64, 16))
        self.register_buffer("anchors", LEVELS[:64])
        self.register_buffer("share", torch.eye(16) * 0.1)
        self.register_buffer("mean", torch.tensor([0.3, 0.7]))
        self.register_buffer("centres", centres(8, 8, 4), persistent=False)
        self.register_buffer("strides", torch.tensor([8.0, 16.0]).repeat_interleave(32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x[..., :1], x[..., 1:]], -1) - self.mean
        x = (
            self.embed(torch.cat([x - self.anchors, x * self.centres], 1)[:, 32:96]) * self.scale
            + self.positions
            + self.table
        )
        x = (x * self.xs + self.freqs) @ (self.share + x.transpose(-1, -2) @ x * 0.01)
        return self.dfl((x / self.strides[:, None]).softmax(-1).transpose(1, 2)[..., None])


@pytest.mark.parametrize("dynamo", [False, True], ids=["legacy", "dynamo"])
def test_constants_of_a_network(tmp_path: Path, dynamo: bool) -> None:
    torch.manual_seed(0)
    model, x = Constants().eval(), torch.rand(2, 64, 2)
    with quiet():
        torch.onnx.export(model, (x,), tmp_path / "net.onnx", dynamo=dynamo, opset_version=18)
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    text = (tmp_path / "net.py").read_text()
    ours = imported(tmp_path / "net.py").Model.from_pretrained().eval()
    assert torch.allclose(ours(x), model(x), rtol=1e-4, atol=1e-4)
    trained = {name for name, p in ours.named_parameters() if p.requires_grad}
    assert trained == {name for name, p in model.named_parameters() if p.requires_grad}
    theirs, found = model.state_dict(), ours.state_dict()
    for name in theirs:
        assert torch.equal(found[name], theirs[name]), name
    assert set(found) == set(theirs)
    grid = next(b for name, b in ours.named_buffers() if name in ("grid", "centres"))
    assert torch.equal(grid, model.centres)
    for formula in ("torch.linspace(0.0, 1.0, 16", "torch.linspace(0.5, 7.0, 16", "make_grid(", "torch.eye(16"):
        assert formula in text
    assert ("repeat_interleave" in text) and "constants.grid" not in text


def test_running_statistics_are_not_trained(tmp_path: Path) -> None:
    """Their names tell, also where no BatchNormalization is left that reads them, or nothing does."""
    graph = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17], producer_name: "pytorch">
        net (float[2, 3] x) => (float[2, 3] y, float[3] "norm.running_var")
        <float[3] "norm.running_mean" = {0.3, -0.1, 0.9}, float[3] "norm.running_var" = {1.5, 0.7, 0.2},
         float[3] "norm.weight" = {0.4, 1.1, 0.9}>
        { c = Sub(x, "norm.running_mean") y = Mul(c, "norm.weight") }""")
    onnx.save(graph, tmp_path / "net.onnx")
    found = generate(tmp_path / "net.onnx", tmp_path / "net.py").report.trainable
    assert {name for name, (yes, _) in found.items() if yes} == {"norm.weight"}


# ---- kernels ---------------------------------------------------------------------------------------------------------


def sinc(taps: int = 17) -> Tensor:
    return (0.5 * torch.sinc(0.5 * (torch.arange(taps) - taps // 2)) * torch.hann_window(taps, False))[None, None]


def blur() -> Tensor:
    line = torch.tensor([1.0, 3.0, 3.0, 1.0])
    return (line[:, None] * line / 64).expand(3, 1, 4, 4).contiguous()


def fourier(length: int = 16) -> Tensor:
    made = torch.fft.fft(torch.eye(length))[: length // 2 + 1]
    return (torch.cat([made.real, made.imag]) * torch.hann_window(length))[:, None]


class Filtered(nn.Module):
    """A filter that `forward` calls by itself, and a layer."""

    def __init__(self, kernel: Tensor, name: str, is_buffer: bool) -> None:
        super().__init__()
        self.name = name
        if is_buffer:
            self.register_buffer(name, kernel)
        else:
            setattr(self, name, nn.Parameter(kernel))
        self.conv = nn.Conv1d(len(kernel), 2, 3) if kernel.ndim == 3 else nn.Conv2d(len(kernel), 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        kernel = getattr(self, self.name)
        call = F.conv1d if kernel.ndim == 3 else F.conv2d
        return self.conv(call(x, kernel, groups=x.shape[1]))


def state_of(net: nn.Module, case: str, folder: Path) -> tuple[set[str], set[str]]:
    """The keys of the parameters and of the buffers of what is generated."""
    width = 3 if net.get_buffer(net.name).ndim == 4 else 1
    x = torch.randn(2, width, *([20] * (net.get_buffer(net.name).ndim - 2)))
    onnx.save(exported(net.eval(), [x], case), folder / "m.onnx")
    generate(folder / "m.onnx", folder / "model.py")
    made = imported(folder / "model.py").Model.from_pretrained()
    return {n for n, p in made.named_parameters() if p.requires_grad}, {n for n, _ in made.named_buffers()}


KERNELS = {"sinc": sinc, "blur": blur, "fourier": fourier}
LAYER = {"conv.weight", "conv.bias"}


@pytest.mark.parametrize("name", ["kernel", "lowpass_filter"])
@pytest.mark.parametrize("kind", KERNELS)
def test_a_kernel_that_nobody_trained_is_a_buffer(kind: str, name: str, tmp_path: Path) -> None:
    """The legacy exporter tells no buffer from a parameter: the name is no layer's, and the kernel is its own mirror
    image."""
    net = Filtered(KERNELS[kind](), name, is_buffer=True)
    assert state_of(net, "legacy-17", tmp_path) == (LAYER, {name})


@pytest.mark.parametrize("kind", KERNELS)
def test_a_kernel_that_was_trained_is_a_parameter(kind: str, tmp_path: Path) -> None:
    kernel = KERNELS[kind]()
    net = Filtered(kernel + 1e-3 * torch.rand_like(kernel), "kernel", is_buffer=True)
    assert state_of(net, "legacy-17", tmp_path) == ({"kernel", *LAYER}, set())


@pytest.mark.parametrize("kernel", [sinc(), torch.ones(1, 1, 5), torch.zeros(1, 1, 5), torch.randn(1, 1, 1)])
def test_a_layer_keeps_what_it_begins_with(kernel: Tensor, tmp_path: Path) -> None:
    """A kernel that is called a weight is a layer's, and one number tells nothing."""
    is_told = bool((kernel != kernel[..., :1]).any())
    net = Filtered(kernel, "low_weight" if is_told else "kernel", is_buffer=True)
    assert state_of(net, "legacy-17", tmp_path)[1] == set()


def transform(bins: int, length: int, padded: int = 0) -> Tensor:
    """The kernels of a Fourier transform under Hann's window, as torch computes it of unit impulses."""
    impulses = torch.eye(length)
    window = F.pad(torch.hann_window(length - 2 * padded), (padded, padded))
    bands = torch.fft.rfft(impulses * window)[:, :bins].T
    return torch.cat([bands.real, bands.imag]).unsqueeze(1)


TRANSFORMS = {
    "whole": transform(33, 64),
    "padded": transform(33, 64, padded=8),
    "some bins": transform(20, 64),
    "cosines": transform(33, 64)[:33],
    "sines": -transform(33, 64)[33:],
    "an odd number of bins": transform(32, 62),
    "a frame is the channels": transform(33, 64).transpose(1, 2),
}


@pytest.mark.parametrize("kind", TRANSFORMS)
def test_a_fourier_transform(kind: str) -> None:
    kernels = TRANSFORMS[kind].numpy()
    assert is_spectrum(ir.tensor(kernels))
    assert not is_spectrum(ir.tensor(kernels + np.float32(0.02) * np.random.default_rng(0).random(kernels.shape, "f")))
    assert not is_spectrum(ir.tensor(np.random.default_rng(0).permutation(kernels)))
    assert not is_spectrum(ir.tensor(np.zeros_like(kernels))) and not is_spectrum(ir.tensor(kernels[:6]))


@pytest.mark.parametrize("name", ["kernel", "stft.conv_real.weight"])
@pytest.mark.parametrize("trained", [False, True])
def test_a_layer_that_is_a_fourier_transform_is_not_trained(trained: bool, name: str, tmp_path: Path) -> None:
    """Its name tells nothing: libraries of sound have layers for it, whose weights they freeze."""
    kernels = transform(17, 32).numpy()
    kernels = kernels + trained * np.float32(0.05) * np.random.default_rng(0).random(kernels.shape, "f")
    graph = parser.parse_graph("g (float[N, 1, 96] x) => (float[] y) { y = Conv <strides = [16]> (x, kernel) }")
    graph.node[0].input[1] = name
    graph.initializer.append(onnx.numpy_helper.from_array(kernels, name))
    graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "net.onnx")
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    model = imported(tmp_path / "net.py").Model.from_pretrained()
    assert any(p.requires_grad for p in model.parameters()) == trained
    frames = torch.randn(2, 1, 96)
    torch.testing.assert_close(model(frames), F.conv1d(frames, torch.from_numpy(kernels), stride=16))
