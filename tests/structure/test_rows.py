"""Rows of layers that differ in numbers are one class; names that exporters count are no names."""

from __future__ import annotations

import ast
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onnxgen.pipeline import generate
from onnxgen.structure.layout import Layout, _repeated
from tests.structure.test_structure import classes, made
from tests.support.real import imported
from tests.zoo.export import Case, quiet


def conv_bn(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    layers = [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.SiLU()]
    return nn.Sequential(*layers)


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 8, 2)
        self.levels = nn.ModuleList(nn.Sequential(conv_bn(a, b, 2), conv_bn(b, b)) for a, b in ((8, 12), (12, 16)))
        self.head = nn.Linear(28, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        pooled = []
        for level in self.levels:
            x = level(x)
            pooled.append(x.mean((2, 3)))
        return self.head(torch.cat(pooled, dim=1))


@pytest.mark.parametrize("case", [Case("legacy", 17, True), Case("dynamo", 18, False)], ids=str)
def test_rows_share_a_class(case: Case, tmp_path: Path) -> None:
    source = made(Tower, tmp_path, case=case)
    own = classes(source)["ConvBlock"]
    assert own.count("nn.Conv2d(") == 1 and "def forward" not in own
    assert source.count("nn.Conv2d(") == 1 and source.count("= ConvBlock(") + source.count(" ConvBlock(") >= 5


def transposed_bn(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    layers = [nn.ConvTranspose2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.SiLU()]
    return nn.Sequential(*layers)


def test_a_row_of_other_layers_is_a_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(globals(), "conv_bn", transposed_bn)
    how: dict[str, Any] = {"dynamo": False, "training": torch.onnx.TrainingMode.TRAINING, "opset_version": 17}
    torch.onnx.export(Tower(), (torch.zeros(2, 3, 8, 8),), str(tmp_path / "net.onnx"), **how)
    own = classes(generate(tmp_path / "net.onnx", tmp_path / "net.py").source)["Block"]
    assert own.count("nn.ConvTranspose2d(") == 1 and "def forward" not in own


@pytest.mark.parametrize("case", [Case("legacy", 17, False), Case("dynamo", 18, False)], ids=str)
def test_what_no_key_depends_on_leaves_no_gap(case: Case, tmp_path: Path) -> None:
    """The exporter folds the norm into the convolution. Behind it there is no key that its number would change."""
    source = made(Tower, tmp_path, case=case)
    assert "nn.Identity()" not in source and "nn.SiLU()" in source


def vectors(batch: int = 2) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 4, generator=torch.Generator().manual_seed(1)),)


class Tall(nn.Module):
    """Equal layers behind and before others, and equal blocks that are all there is."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x) + 1)
        return x


def test_equal_items_in_a_row_are_written_once(tmp_path: Path) -> None:
    source = made(Tall, tmp_path, vectors)
    assert source.count("nn.Linear(") == 3 and "*[nn.Linear(" in source and "for _ in range(3)]" in source


class Tables(nn.Module):
    """A table and a layer for each column, an MLP, and heads that begin with the same value."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(a, b) for a, b in ((7, 4), (12, 6), (31, 16), (100, 6)))
        layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh())]
        self.net = nn.Sequential(*layers, nn.Linear(32, 5))
        self.heads = nn.ModuleList(nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, n)) for n in (1, 2, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.net(torch.cat([table(x[:, i]) for i, table in enumerate(self.tables)], dim=1))
        return torch.cat([head(x) for head in self.heads], dim=1)


def numbers(batch: int = 2) -> tuple[Tensor, ...]:
    return (torch.randint(0, 7, (batch, 4), generator=torch.Generator().manual_seed(1)),)


@pytest.mark.parametrize("case", [Case("legacy", 17, True), Case("dynamo", 18, False)], ids=str)
def test_lists_of_what_is_alike_are_comprehensions(case: Case, tmp_path: Path) -> None:
    source = " ".join(made(Tables, tmp_path, numbers, case).split())
    assert "[nn.Embedding(a, b) for a, b in ((7, 4), (12, 6), (31, 16), (100, 6))]" in source
    assert re.search(
        r"for _ in range\(4\): layers\.append\(nn\.Linear\([\w\[\]]+, [\w\[\]]+\)\) layers\.append\(nn\.Tanh\(\)\)",
        source,
    )
    assert re.search(r"\[table\((\w+)\) for table, \1 in zip\(self\.tables, x\.unbind\((1|-1)\)\)\]", source)
    assert "[head(x) for head in self.heads]" in source


def test_drawn_rows_keep_keys_and_outputs(tmp_path: Path) -> None:
    """Rows of drawn layers and sizes, some of which occur once or never change."""
    for seed in range(4):
        drawn = random.Random(seed)
        kinds = drawn.sample([nn.ReLU, nn.Hardswish, nn.Tanh, nn.ELU], 2)
        widths = [3, *(drawn.choice((4, 6, 8)) for _ in range(6))]
        blocks = []
        for a, b in zip(widths, widths[1:]):
            layers = [nn.Conv2d(a, b, drawn.choice((1, 3)), padding=drawn.choice((1, 2))), nn.BatchNorm2d(b)]
            blocks.append(nn.Sequential(*layers, drawn.choice(kinds)()))
        net = nn.ModuleDict({"a": nn.Sequential(*blocks[:2]), "b": nn.Sequential(*blocks[2:])})
        model = nn.Sequential(net["a"], net["b"]).eval()
        inputs = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
        path = tmp_path / f"net{seed}.onnx"
        with quiet():
            torch.onnx.export(model, (inputs,), path, dynamo=False, training=torch.onnx.TrainingMode.PRESERVE)
        generated = generate(path, tmp_path / f"net{seed}.py")
        assert "def forward(self, x: Tensor)" in generated.source  # `input.1` is no name
        ours = imported(tmp_path / f"net{seed}.py").Model.from_pretrained().eval()
        assert list(ours.state_dict()) and set(ours.state_dict()) <= set(model.state_dict())
        torch.testing.assert_close(ours(inputs), model(inputs), rtol=1e-4, atol=1e-5)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([2.5]))
        self.table = nn.Parameter(torch.randn(4, 5))
        self.gain = nn.Parameter(torch.rand(4, 1))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return (first.unsqueeze(1) + self.table).tanh() * self.gain * self.scale + second


def test_counted_names_are_no_names(tmp_path: Path) -> None:
    """The legacy exporter calls arguments `onnx::Unsqueeze_0`; a table is drawn, and factors are ones."""
    with quiet():
        args = (torch.rand(2, 5), torch.rand(1, 5))
        torch.onnx.export(Pair(), args, tmp_path / "pair.onnx", dynamo=False, opset_version=17)
    source = generate(tmp_path / "pair.onnx", tmp_path / "pair.py").source
    assert "def forward(self, x: Tensor, " in source and "onnx_" not in source.partition("class Pair")[2]
    assert "nn.init.trunc_normal_(self.table, std=0.02)" in source and "gain = nn.Parameter(torch.ones(4, 1))" in source
    made = imported(tmp_path / "pair.py").Model()
    assert 0.005 < made.table.std() < 0.05 and made.table.requires_grad and bool((made.gain == 1).all())


class Speech(nn.Module):
    """Hardtanh in an nn.Sequential, between layers: what the exporter writes is Clip."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Hardtanh(0, 20), nn.Conv2d(4, 2, 3), nn.Hardtanh(-1, 20)]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3))


def test_clamps_of_a_sequence_are_layers(tmp_path: Path) -> None:
    source = made(Speech, tmp_path)
    assert "nn.Hardtanh(0, 20)" in source and "nn.Hardtanh(-1, 20)" in source and "clamp" not in source


class Growing(nn.Module):
    """Each layer takes two channels more than the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3 + 2 * i, 2, 3, padding=1) for i in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x).relu()], dim=1)
        return x


def test_widths_that_grow_evenly_are_a_range(tmp_path: Path) -> None:
    source = made(Growing, tmp_path, lambda batch=2: (torch.randn(batch, 3, 4, 4),), case=Case("legacy", 17, False))
    assert "[nn.Conv2d(in_channels, 2, kernel_size=3, padding=1) for in_channels in range(3, 18, 2)]" in source


def test_equal_items_among_others_are_written_once_if_they_are_short_or_many() -> None:
    """An item that fits a line with its loop, from three on; a longer one from five on; all of a list sooner."""
    short, long = (f"Block({'8' * (length - 7)})" for length in (48, 49))
    for text, count, others, once in (
        (short, 3, 1, True), (short, 2, 1, False), (long, 4, 1, False), (long, 5, 1, True), (long, 2, 0, True),
        ("nn.Tanh()", 2, 0, False), ("nn.Tanh()", 3, 0, True),
    ):  # fmt: skip
        items = [ast.parse(item, mode="eval").body for item in [text] * count + ["Other()"] * others]
        found = ", ".join(map(ast.unparse, _repeated(Layout([], {}, ast.unparse), items)))
        assert found.startswith(f"*[{text} for _ in range({count})]" if once else f"{text}, {text}"), found
