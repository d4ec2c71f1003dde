"""Lists of modules are looped over: their results are lists, which other loops go over, whole or from the last item."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.structure.test_structure import made, rows
from tests.support.exported import held_graph
from tests.zoo.export import Case

CASES = pytest.mark.parametrize("case", [Case("legacy", 17, False), Case("dynamo", 18, False)], ids=str)
WIDTHS = (4, 6, 8)


def images(batch: int = 2) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(1)),)


def convolutions(kernel: int, pairs: Sequence[tuple[int, int]], stride: int = 1) -> nn.ModuleList:
    return nn.ModuleList(nn.Conv2d(a, b, kernel, stride, kernel // 2) for a, b in pairs)


class Maps(nn.Module):
    """Maps of three sizes, which a 1x1 convolution for each brings to 4 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = convolutions(3, [*zip((3, *WIDTHS), WIDTHS)], stride=2)
        self.lateral = convolutions(1, [(a, 4) for a in WIDTHS])

    def maps(self, x: Tensor) -> list[Tensor]:
        found = []
        for stage in self.stages:
            x = torch.relu(stage(x))
            found.append(x)
        return [lateral(x) for lateral, x in zip(self.lateral, found)]


class TopDown(Maps):
    """A feature pyramid (Lin et al. 2017, arXiv 1612.03144)."""

    def __init__(self) -> None:
        super().__init__()
        self.smooth, self.head = convolutions(3, [(4, 4)] * 3), nn.Conv2d(4, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.maps(x)
        for i in (1, 0):
            maps[i] = maps[i] + F.interpolate(maps[i + 1], scale_factor=2)
        return torch.cat([self.head(smooth(x)).flatten(2) for smooth, x in zip(self.smooth, maps)], dim=2)


@CASES
def test_a_pyramid_is_summed_from_its_smallest_map(case: Case, tmp_path: Path) -> None:
    forward = made(TopDown, tmp_path, images, case).rpartition("def forward")[2]
    assert "[lateral(feature) for lateral, feature in zip(self.lateral, features)]" in forward
    assert "in reversed(outputs" in forward and "zip(self.smooth, reversed(features))" in forward
    assert forward.count("F.interpolate(") == 1 and "[0]" not in forward


class DownAndUp(Maps):
    """A path aggregation network (Liu et al. 2018, arXiv 1803.01534)."""

    def __init__(self) -> None:
        super().__init__()
        self.merge, self.down = convolutions(3, [(8, 4)] * 2), convolutions(3, [(4, 4)] * 2, stride=2)
        self.join, self.heads = convolutions(3, [(8, 4)] * 2), convolutions(1, [(4, 5), (4, 6), (4, 7)])

    def forward(self, x: Tensor) -> Tensor:
        maps = self.maps(x)
        inner = [maps[2]]
        for merge, x in zip(self.merge, (maps[1], maps[0])):
            inner.insert(0, merge(torch.cat([F.interpolate(inner[0], scale_factor=2), x], dim=1)))
        outer = [inner[0]]
        for down, join, x in zip(self.down, self.join, inner[1:]):
            outer.append(join(torch.cat([down(outer[-1]), x], dim=1)))
        return torch.cat([torch.sigmoid(head(x)).flatten(1) for head, x in zip(self.heads, outer)], dim=1)


@CASES
def test_both_ways_through_a_pyramid_are_loops(case: Case, tmp_path: Path) -> None:
    forward = made(DownAndUp, tmp_path, images, case).rpartition("def forward")[2]
    assert "zip(self.merge, reversed(outputs" in forward and "zip(self.down, self.join, reversed(features" in forward
    assert "in zip(self.heads, features" in forward and "[0]" not in forward


class Refine(Maps):
    """The smallest map is refined alone, the others each with the result before (as in Lin et al. 2016's RefineNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.refine = nn.ModuleList(Fuse(is_last=n == 2) for n in range(3))

    def forward(self, x: Tensor) -> Tensor:
        maps = self.maps(x)
        x = self.refine[2](maps[2])
        for refine, y in zip(self.refine[1::-1], maps[1::-1]):
            x = refine(x, y)
        return x


class Fuse(nn.Module):
    def __init__(self, is_last: bool) -> None:
        super().__init__()
        self.first = nn.Identity() if is_last else nn.Conv2d(4, 4, 3, 1, 1)
        self.last = nn.Conv2d(4, 4, 3, 1, 1)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        x = x + torch.relu(self.first(y)) if y is not None else x
        return F.interpolate(torch.relu(self.last(x)), scale_factor=2)


@CASES
def test_the_items_that_are_called_alike_are_a_part_of_the_list(case: Case, tmp_path: Path) -> None:
    forward = made(Refine, tmp_path, images, case).rpartition("def forward")[2]
    assert "in zip(reversed(self.refine[:-1]), reversed(outputs[:-1])):" in forward and "self.refine[2](" in forward


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = nn.Linear(8, 6), nn.ModuleList(nn.Linear(6, 2) for _ in range(5))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = torch.relu(self.body(x))
        return tuple(head(x) for head in self.heads)


@CASES
def test_results_of_many_heads_are_one_expression(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    torch.onnx.export(Heads().eval(), rows(), str(path), dynamo=case.exporter == "dynamo")
    (x,), model = rows(), onnx.load(path)
    source = held_graph(model, {model.graph.input[0].name: x.numpy()}).source
    assert "self.heads[" not in source and "for head in self.heads]" in source


class Dilated(nn.Module):
    """Gated convolutions (van den Oord et al. 2016, arXiv 1609.03499): what the last adds to its input is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.dilated = nn.ModuleList(nn.Conv1d(5, 8, 3, padding=2**n, dilation=2**n) for n in range(4))
        self.skips = nn.ModuleList(nn.Conv1d(4, 6, 1) for _ in range(4))
        self.adds = nn.ModuleList(nn.Conv1d(4, 5, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(())
        for n, (dilated, skip) in enumerate(zip(self.dilated, self.skips)):
            a, b = dilated(x).chunk(2, dim=1)
            y = torch.tanh(a) * torch.sigmoid(b)
            total = total + skip(y) if n else skip(y)
            x = x + self.adds[n](y) if n < 3 else x
        return torch.relu(total)


class Neck(nn.Module):
    """Each layer takes what the one before made, and a value is added to that of all but the last."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.neck = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for down in self.down:
            found.append(x)
            x = torch.tanh(down(x))
        for neck, y in zip(self.neck, reversed(found)):
            x = torch.relu(neck(x)) + y
        return torch.sigmoid(self.neck[3](x))


@CASES
def test_turns_of_a_chain_go_over_lists_without_an_item_at_an_end(case: Case, tmp_path: Path) -> None:
    for network, lists in ((Dilated, "(self.adds, self.dilated[1:], self.skips[1:])"), (Neck, "(self.neck[:-1], ")):
        (folder := tmp_path / network.__name__).mkdir()
        forward = made(network, folder, rows, case).rpartition("def forward")[2]
        assert f"in zip{lists}" in forward


class Pairs(Maps):
    """Two results of each level, one kind after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = convolutions(1, [(4, 9)] * 3)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        found = [head(torch.tanh(x)).split((4, 5), dim=1) for head, x in zip(self.heads, self.maps(x))]
        return *(torch.sigmoid(a) for a, _ in found), *(b.flatten(2) for _, b in found)


@CASES
def test_several_results_of_each_turn_are_lists(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    torch.onnx.export(Pairs().eval(), images(), str(path), dynamo=case.exporter == "dynamo")
    (x,), model = images(), onnx.load(path)
    source = held_graph(model, {model.graph.input[0].name: x.numpy()}).source
    assert source.count("torch.sigmoid(") == 1 and "self.heads[" not in source and "return *outputs" in source


class Two(nn.Module):
    """Two results that are used in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        a, b = (layer(x) for layer in self.layers)
        return torch.sin(a) * b - b / 2


def test_two_results_of_different_use_have_names(tmp_path: Path) -> None:
    assert "self.layers[1](x)" in made(Two, tmp_path, rows)


class Gated(nn.Module):
    """An autoencoder of gated layers with skips (Défossez et al. 2019, arXiv 1909.01174)."""

    def __init__(self) -> None:
        super().__init__()
        pairs = [(5, 4), (4, 6), (6, 8)]
        self.encoder = nn.ModuleList(
            nn.Sequential(nn.Conv1d(a, b, 3, padding=1), nn.ReLU(), nn.Conv1d(b, 2 * b, 1), nn.GLU(dim=1))
            for a, b in pairs
        )
        self.decoder = nn.ModuleList(
            nn.Sequential(nn.Conv1d(b, 2 * b, 3, padding=1), nn.GLU(dim=1), nn.Conv1d(b, a, 3, padding=1), nn.ReLU())
            for a, b in reversed(pairs)
        )

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for encoder in self.encoder:
            x = encoder(x)
            skips.append(x)
        x = torch.sin(x)
        for decoder in self.decoder:
            x = decoder(x + skips.pop())
        return x


@CASES
def test_gated_linear_units_are_layers_of_their_row(case: Case, tmp_path: Path) -> None:
    source = made(Gated, tmp_path, rows, case)
    assert "nn.GLU(dim=1)" in source and "F.glu" not in source
    assert "for decoder, hidden_state in zip(self.decoder, reversed(hidden_states)):" in source
