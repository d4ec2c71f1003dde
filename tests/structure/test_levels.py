"""The levels of a pyramid are the turns of a loop, in whatever order a file computes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onnxgen
from tests.structure.test_structure import made
from tests.support.exported import held
from tests.zoo.export import Case


def images(batch: int = 2) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(1)),)


class Pyramid(nn.Module):
    """Three maps, each half as large as the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down, self.last = nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(4, 6, 3, 2, 1), nn.Conv2d(6, 8, 3, 2, 1)

    def maps(self, x: Tensor) -> list[Tensor]:
        x = torch.relu(self.stem(x))
        y = torch.relu(self.down(x))
        return [x, y, torch.relu(self.last(y))]


class Boxes(Pyramid):
    """Each operator for all levels, and then the next; two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.ModuleList(nn.Conv2d(c, 10, 3, padding=1) for c in (4, 6, 8))
        self.boxes = nn.ModuleList(nn.Conv2d(c, 12, 3, padding=1) for c in (4, 6, 8))

    def head(self, heads: nn.ModuleList, maps: list[Tensor], size: int) -> Tensor:
        found = [head(x) for head, x in zip(heads, maps)]
        found = [x.permute(0, 2, 3, 1) for x in found]
        return torch.cat([x.flatten(1).unflatten(1, (-1, size)) for x in found], dim=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.maps(x)
        return self.head(self.scores, maps, 5).softmax(-1), self.head(self.boxes, maps, 4)


class Interleaved(Boxes):
    """Both heads of a level before the next map, as SSD's files have them."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[list[Tensor], list[Tensor]] = [], []
        for layer, score, box in zip((self.stem, self.down, self.last), self.scores, self.boxes):
            x = torch.relu(layer(x))
            for head, size, kept in ((score, 5, found[0]), (box, 4, found[1])):
                kept.append(head(x).permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, size)))
        return torch.cat(found[0], dim=1).softmax(-1), torch.cat(found[1], dim=1)


@pytest.mark.parametrize("network", [Boxes, Interleaved])
@pytest.mark.parametrize("case", [Case("legacy", 17, False), Case("dynamo", 18, False)], ids=str)
def test_levels_are_turns(network: type[Boxes], case: Case, tmp_path: Path) -> None:
    forward = made(network, tmp_path, images, case).rpartition("def forward")[2]
    assert "in zip(self.scores, " in forward and "in zip(self.boxes, " in forward
    assert forward.count("permute(0, 2, 3, 1)") == 2


class Collected(nn.Module):
    """A loop collects maps, and each goes to a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, 1, 1)
        self.downs = nn.ModuleList(nn.Sequential(nn.Conv2d(4, 4, 3, 2, 1), nn.ReLU()) for _ in range(3))
        self.heads = nn.ModuleList(nn.Conv2d(4, 5, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        maps = [x]
        for down in self.downs:
            x = down(x)
            maps.append(x)
        found = [head(x) for head, x in zip(self.heads, maps)]
        return torch.cat([torch.sigmoid(x).flatten(2) for x in found], dim=2)


@pytest.mark.parametrize("case", [Case("legacy", 17, False), Case("dynamo", 18, False)], ids=str)
def test_items_that_a_loop_collected_are_taken_one_by_one(case: Case, tmp_path: Path) -> None:
    forward = made(Collected, tmp_path, images, case).rpartition("def forward")[2]
    assert "in zip(self.heads, " in forward and forward.count("sigmoid") == 1
    assert "features[" in forward or "features" in forward.partition("self.heads, ")[2]


class Shared(Pyramid):
    """One norm for all levels, from the smallest to the largest: its statistics depend on the order of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = nn.ModuleList(nn.Conv2d(c, 4, 1) for c in (4, 6, 8))
        self.norm = nn.BatchNorm2d(4, momentum=0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.maps(x)
        sides = [side(x) for side, x in zip(self.sides, maps)]
        c, b, a = (torch.sigmoid(self.norm(x)).flatten(2) for x in reversed(sides))
        return torch.cat([a, b, c], dim=2), maps[-1]


def test_calls_of_a_module_keep_their_order(tmp_path: Path) -> None:
    network, path = Shared(), tmp_path / "net.onnx"
    kept = {"do_constant_folding": False, "training": torch.onnx.TrainingMode.PRESERVE}
    torch.onnx.export(network.train(), images(), str(path), dynamo=False, **kept)
    ours = onnxgen.load(path).train()
    torch.testing.assert_close(ours(*images()), network(*images()))
    (mean,) = (b for name, b in ours.named_buffers() if name.endswith("running_mean"))
    torch.testing.assert_close(mean, network.norm.running_mean)


class Pooled(nn.Module):
    """Spatial pyramid pooling (He et al. 2014, arXiv 1406.4729), as YOLO has it."""

    def __init__(self, paddings: tuple[int, ...] = (2, 4, 6)) -> None:
        super().__init__()
        self.stem, self.paddings = nn.Conv2d(3, 4, 3, 1, 1), paddings

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        pooled = [nn.functional.max_pool2d(x, k, 1, p) for k, p in zip((5, 9, 13), self.paddings)]
        if self.paddings == (2, 4, 6):
            return torch.cat([x, *pooled], dim=1)
        return torch.cat([part[:, :, :12, :12] for part in pooled], dim=1)


@pytest.mark.parametrize("case", [Case("legacy", 17, False), Case("dynamo", 18, False)], ids=str)
def test_a_padding_follows_from_the_kernel(case: Case, tmp_path: Path) -> None:
    forward = made(Pooled, tmp_path, images, case).rpartition("def forward")[2]
    assert "for i in (5, 9, 13)" in forward and "padding=i // 2" in forward, forward


def test_other_paddings_are_numbers_of_their_own(tmp_path: Path) -> None:
    forward = made(lambda: Pooled((2, 4, 5)), tmp_path, images, Case("legacy", 17, False)).rpartition("def forward")[2]
    assert "zip((5, 9, 13), (2, 4, 5))" in forward and "//" not in forward, forward


class Octaves(nn.Module):
    """A transform with variable resolution: half the signal for each octave, with half the hop, joined one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.real, self.imag = nn.Parameter(torch.randn(3, 1, 8)), nn.Parameter(torch.randn(3, 1, 8))
        self.lowpass = nn.Conv1d(1, 1, 4, stride=2, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        bands: Tensor | None = None
        for octave in range(6):  # the last is not as the others are
            padded = F.pad(x, (4, 4), mode="reflect" if octave < 5 else "replicate")
            turn = 1 if octave % 3 else -1  # which part is first is chance
            parts = [F.conv1d(padded, k, stride=64 >> octave) for k in (self.real, self.imag)[::turn]]
            band = torch.stack(parts[::turn], dim=-1)
            bands = band if bands is None else torch.cat([band, bands], dim=1)
            x = self.lowpass(x)
        assert bands is not None
        return bands * bands.amax((1, 2, 3), keepdim=True)


def test_a_step_that_halves_is_a_number_of_the_turn(tmp_path: Path) -> None:
    """Parameters have no state: two turns may read them in another order."""

    def signal(batch: int = 2) -> tuple[Tensor, ...]:
        return (torch.randn(batch, 1, 512, generator=torch.Generator().manual_seed(1)),)

    forward = made(Octaves, tmp_path, signal, Case("legacy", 17, False)).rpartition("def forward")[2]
    assert "(4, 8, 16, 32, 64)" in forward, forward
    assert forward.count("torch.cat(") == 1 and forward.count("conv1d(") == 4, forward
    assert "return x * x.amax(" in forward, "where the octaves come together, the main chain goes on"


class Stages(nn.Module):
    """A U-Net (Ronneberger et al. 2015, arXiv 1505.04597) whose first map of odd sizes is resized by no factor."""

    def __init__(self, widths: tuple[int, ...] = (4, 6, 8, 10)) -> None:
        super().__init__()
        pairs = [*zip(widths, widths[1:])]
        self.stem, self.out = nn.Conv2d(3, widths[0], 3, 1, 1), nn.Conv2d(widths[0], 2, 1)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairs)
        self.reduce = nn.ModuleList(nn.Conv2d(b, a, 1) for a, b in reversed(pairs))
        self.up = nn.ModuleList(nn.Conv2d(2 * a, a, 3, padding=1) for a, _ in reversed(pairs))

    def forward(self, x: Tensor) -> Tensor:
        skips = [torch.relu(self.stem(x))]
        for down in self.down:
            skips.append(torch.relu(down(F.max_pool2d(skips[-1], 2))))
        x = skips.pop()
        for reduce, up in zip(self.reduce, self.up):
            skip = skips.pop()
            x = F.interpolate(x, skip.shape[-2:], mode="bilinear", align_corners=False)
            x = torch.relu(up(torch.cat([skip, reduce(x)], dim=1)))
        return self.out(x)


class Transposed(Stages):
    """The same, but maps grow in a transposed convolution, and skips are added."""

    def __init__(self) -> None:
        super().__init__()
        self.reduce = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in ((8, 10), (6, 8), (4, 6)))
        self.up = nn.ModuleList(nn.Conv2d(a, a, 3, padding=1) for a in (8, 6, 4))

    def forward(self, x: Tensor) -> Tensor:
        x, skips = torch.relu(self.stem(x)), list[Tensor]()
        for down in self.down:
            skips.append(x)
            x = torch.relu(down(F.max_pool2d(x, 2)))
        for grow, up, skip in zip(self.reduce, self.up, reversed(skips)):
            x = torch.relu(up(skip + grow(x)))
        return self.out(x)


def odd(batch: int = 2) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, 20, 28, generator=torch.Generator().manual_seed(1)),)


def even(batch: int = 2) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, 16, 24, generator=torch.Generator().manual_seed(1)),)


@pytest.mark.parametrize("case", [Case("legacy", 17, False), Case("dynamo", 18, False)], ids=str)
def test_stages_of_a_decoder_are_turns(case: Case, tmp_path: Path) -> None:
    for network, inputs in ((Stages, odd), (Transposed, even)):
        (folder := tmp_path / network.__name__).mkdir()
        forward = made(network, folder, inputs, case).rpartition("def forward")[2]
        assert "in zip(self.reduce, self.up, reversed(features[:-1])):" in forward
        assert "features = [x]" in forward and "self.up[" not in forward
        assert ("size=feature.shape[2:]" in forward) == (network is Stages)


class Paired(nn.Module):
    """Each level has a list of its own: a layer and a resize, as in U-Nets of diffusion models."""

    def __init__(self) -> None:
        super().__init__()
        pairs = [(4, 4), (4, 8), (8, 16)]
        self.downs = nn.ModuleList(
            nn.ModuleList([nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 4, 2, 1)]) for a, b in pairs
        )
        self.ups = nn.ModuleList(
            nn.ModuleList([nn.ConvTranspose2d(b, b, 4, 2, 1), nn.Conv2d(2 * b, a, 3, padding=1)])
            for a, b in reversed(pairs)
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for layer, down in self.downs:
            x = layer(x).tanh()
            kept.append(x)
            x = down(x)
        for up, layer in self.ups:
            x = layer(torch.cat([up(x), kept.pop()], 1)).tanh()
        return x


@pytest.mark.parametrize("case", ["legacy-17", "dynamo-18"])
def test_a_loop_goes_backwards_over_what_an_earlier_one_collects(case: str) -> None:
    forward = held(Paired().eval(), [torch.rand(1, 4, 16, 16)], case).source.partition("def forward")[2]
    assert "in self.downs:" in forward and "zip(self.ups, reversed(" in forward and "self.ups[" not in forward
