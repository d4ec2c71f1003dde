"""Networks of numbered layers alone: the class is an `nn.Sequential`, as its author's was."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.structure.test_structure import LEGACY, images, made
from tests.zoo import Entry
from tests.zoo.export import Case, export
from tests.zoo.road import Road


def plain() -> nn.Module:
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(4 * 7 * 7, 5), nn.LogSoftmax(dim=1))


@pytest.mark.parametrize("case", [LEGACY, Case("legacy", 17, True), Case("dynamo", 18, False)], ids=str)
def test_a_chain(case: Case, tmp_path: Path) -> None:
    source = made(plain, tmp_path, case=case)
    assert "(nn.Sequential):" in source and "return super().forward(x)" in source
    assert (
        source.count("nn.Linear(196, 5)") == 1
        and "nn.MaxPool2d(kernel_size=2)" in source
        and "nn.LogSoftmax(dim=1)" in source
    )


class Reads(nn.Sequential):
    """Numbered layers with a forward of their own."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self[0](x))
        x = x + self[1](x)
        return self[2](x.mean((2, 3)))


def test_a_forward_of_its_own(tmp_path: Path) -> None:
    source = made(Reads, tmp_path)
    assert "class Net(nn.Sequential):" in source and "self[2](" in source and "get_submodule" not in source


class Mixed(nn.Module):
    """A numbered name beside others is no list's item."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("0", nn.Conv2d(3, 4, 3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.get_submodule("0")(x).mean((2, 3)))


def test_a_number_among_names(tmp_path: Path) -> None:
    assert "nn.Sequential" not in made(Mixed, tmp_path)


def test_activations_at_the_end_belong_to_their_sequence(tmp_path: Path) -> None:
    """A file without names of nodes: each block's last activation is its own, not the caller's."""
    blocks = [
        nn.Sequential(nn.Conv2d(3 if i == 0 else 4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for i in (0, 1)
    ]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(*blocks)
            self.head = nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.blocks(x))

    axes = {0: "batch"}
    entry, case = Entry(Net, images, ("x",), ("y",), {"x": axes, "y": axes}), Case("legacy", 17, True)
    original = export(entry, tmp_path / "net.onnx", case.exporter, case.opset, case.training)
    proto = onnx.load(tmp_path / "net.onnx")
    for node in proto.graph.node:
        node.name = ""
    onnx.save(proto, tmp_path / "net.onnx")
    road = Road("net", entry, case, tmp_path / "net.onnx", original, tmp_path)
    road.check()
    assert [type(m) for m in road.model.blocks[1]] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
    assert isinstance(road.model.blocks, nn.Sequential)


class Heads(nn.Module):
    """Long rows of layers that differ in their last number."""

    def __init__(self) -> None:
        super().__init__()
        for name, size in (("hm", 2), ("wh", 8), ("ax", 16)):
            layers = [layer for _ in range(3) for layer in (nn.Conv2d(3, 3, 3, padding=1), nn.ReLU())]
            self.add_module(name, nn.Sequential(*layers, nn.Conv2d(3, size, 1)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.hm(x), self.wh(x), self.ax(x)], dim=1)


def test_long_rows_are_a_class_even_if_they_are_few(tmp_path: Path) -> None:
    source = made(Heads, tmp_path)
    assert source.count("(nn.Sequential):") == 1 and source.count("nn.Conv2d(") == 4


class Conv(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.conv(x))


class Split(nn.Module):
    def __init__(self, size: int, count: int) -> None:
        super().__init__()
        self.cv1 = Conv(size, size)
        self.m = nn.ModuleList(Conv(size // 2, size // 2, 3) for _ in range(count))
        self.cv2 = Conv(size // 2 * (2 + count), size)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.cv1(x).chunk(2, 1))
        for block in self.m:
            parts.append(block(parts[-1]))
        return self.cv2(torch.cat(parts, 1))


class Unlike(nn.Module):
    """A list of blocks and of what they are made of; the blocks have lists of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        layers = [Conv(3, 8, 3, 2), Split(8, 1), Conv(8, 16, 3, 2), Split(16, 3), Conv(16, 8), Split(8, 2)]
        self.model = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def test_an_item_of_a_list_has_the_class_of_the_same_layer_in_other_items(tmp_path: Path) -> None:
    source = made(Unlike, tmp_path)
    assert re.findall(r"class (\w+)", source) == ["ConvNormAct", "Block", "Net"] and "*features]" in source


class Pair(nn.Module):
    """Two lists, and a row of layers between them."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self.mid = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1))
        self.m = nn.ModuleList(Conv(4, 4, 3) for _ in range(first))
        self.n = nn.ModuleList(Conv(4, 4, 3) for _ in range(second))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(x.chunk(2, 1))
        for block in self.m:
            parts.append(block(parts[-1]))
        x = self.mid(torch.cat(parts, 1)[:, :8])
        parts = list(x.chunk(2, 1))
        for block in self.n:
            parts.append(block(parts[-1]))
        return torch.cat(parts, 1)[:, :8]


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.blocks = nn.ModuleList([Pair(1, 1), Pair(2, 3), Pair(3, 2), Pair(1, 2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return x


def test_two_lists_of_one_item_beside_a_row_of_layers(tmp_path: Path) -> None:
    source = made(Pairs, tmp_path)
    assert len(re.findall(r"class \w+", source)) == 3 and source.count("for ") >= 4


class Gaps(nn.Module):
    """A list with functions between the layers, that is no chain."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleList([Conv(3, 8, 3, 2), nn.Upsample(scale_factor=2), nn.Identity(), Conv(11, 4)])

    def forward(self, x: Tensor) -> Tensor:
        up = self.model[1](self.model[0](x))
        return self.model[3](torch.cat([up, x], dim=1))


def test_a_function_that_was_an_item_is_one_again(tmp_path: Path) -> None:
    source = made(Gaps, tmp_path)
    assert "nn.Upsample(scale_factor=2)" in source and "self.model[:2](" in source and "interpolate" not in source
