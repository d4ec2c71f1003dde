"""Classes as their author would have written them: one class for variants of one block, flags, lists and loops."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo import Entry
from tests.zoo.export import Case, export
from tests.zoo.road import Road

LEGACY = Case("legacy", 17, False)


def images(batch: int = 2) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(1)),)


def rows(batch: int = 2) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 5, 8, generator=torch.Generator().manual_seed(1)),)


def made(
    build: Callable[[], nn.Module],
    folder: Path,
    inputs: Callable[..., tuple[Tensor, ...]] = images,
    case: Case = LEGACY,
) -> str:
    """The classes generated for a network, after everything that `Road` asks of them."""
    names = ["x", "mask", "positions"][: len(inputs())]
    entry = Entry(build, inputs, tuple(names), ("y",), {name: {0: "batch"} for name in [*names, "y"]})
    original = export(entry, folder / "net.onnx", case.exporter, case.opset, case.training)
    road = Road(build.__name__, entry, case, folder / "net.onnx", original, folder)
    road.check()
    source = (folder / "generated.py").read_text(encoding="utf-8")
    return source[source.index("\nclass ") : source.index("\n\nWEIGHTS = ")]


def classes(source: str) -> dict[str, str]:
    """The text of each class, by name."""
    parts = re.split(r"^class (\w+)\(nn\.\w+\):", source, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.downsample = nn.Conv2d(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv2(F.relu(self.conv1(x))) + self.downsample(x))


class Downsampled(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.blocks = nn.Sequential(Residual(4, 4), Residual(4, 8, 2), Residual(8, 8), Residual(8, 12, 2))


@pytest.mark.parametrize("case", [LEGACY, Case("dynamo", 18, False)], ids=str)
def test_an_optional_submodule_is_an_identity_elsewhere(case: Case, tmp_path: Path) -> None:
    source = made(Downsampled, tmp_path, case=case)
    block = classes(source)["Residual" if case.exporter == "dynamo" else "BasicBlock"]
    assert re.search(r"self, in_channels, out_channels, stride=1\)", " ".join(block.split()))
    assert "self.downsample = nn.Identity()\n        if stride != 1 or in_channels != out_channels:\n" in block
    assert "self.downsample(x)" in block
    assert re.search(r"for a, b in zip\(widths, widths\[1:\]\):\s+layers\.append\((\w+)\(a, a\)\)\s", source)
    assert re.search(r"layers\.append\((\w+)\(a, b, stride=2\)\)\s+self\.blocks = nn\.Sequential\(\*layers\)", source)


class Inverted(nn.Module):
    """An inverted residual: expansion, squeeze and excite, and the sum only where they make sense."""

    def __init__(
        self, inputs: int, hidden: int, outputs: int, stride: int, squeeze: bool, activation: nn.Module
    ) -> None:
        super().__init__()
        self.act = activation
        self.expand = nn.Conv2d(inputs, hidden, 1) if hidden != inputs else None
        self.depthwise = nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden)
        self.squeeze = nn.Conv2d(hidden, 2, 1) if squeeze else None
        self.excite = nn.Conv2d(2, hidden, 1) if squeeze else None
        self.project = nn.Conv2d(hidden, outputs, 1)
        self.sums = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = x
        if self.expand is not None:
            y = self.act(self.expand(y))
        y = self.act(self.depthwise(y))
        if self.squeeze is not None and self.excite is not None:
            y = y * torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        y = self.project(y)
        return x + y if self.sums else y


class Mobile(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.blocks = nn.Sequential(
            Inverted(4, 4, 6, 2, True, nn.Hardswish()),
            Inverted(6, 12, 6, 1, False, nn.Hardswish()),
            Inverted(6, 18, 6, 1, True, nn.Hardswish()),
            Inverted(6, 18, 8, 1, True, nn.ReLU()),
        )


def test_optional_chains_and_sums_are_under_flags(tmp_path: Path) -> None:
    source = made(Mobile, tmp_path)
    blocks = [classes(source)["InvertedResidual"]]
    assert list(classes(source)) == ["InvertedResidual", "Net"]
    assert "if self.use_expand:\n" in blocks[0] and "if self.residual:\n            " in blocks[0]
    assert "if self.use_squeeze:\n" in blocks[0]
    assert "activation" in blocks[0] and "activation=F.relu" in source
    assert "else:" not in blocks[0]


class Causal(nn.Module):
    """A sum where the sizes are equal, an activation elsewhere; what is padded follows from the dilation."""

    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(inputs, outputs, 3, dilation=dilation)
        self.sums = inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(F.pad(x, (self.pad, 0)))
        return x + y if self.sums else F.relu(y)


class Temporal(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Causal(5, 6, 1), Causal(6, 6, 2), Causal(6, 6, 4), Causal(6, 8, 8))


def test_what_follows_from_sizes_is_no_argument(tmp_path: Path) -> None:
    source = " ".join(made(Temporal, tmp_path, rows).split())
    assert "self, in_channels, out_channels, dilation" in source and "(channels, channels, 4)" in source
    assert "self.residual = in_channels == out_channels" in source and "2 * self.dilation" in source
    assert "if self.residual: out = x + out else: out = F.relu(out)" in source


class Numbered(nn.Module):
    """Items of one sequence are missing in some blocks, and those after them are numbered on."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(inputs, hidden, 1), nn.ReLU()] if hidden != inputs else []
        self.layers = nn.Sequential(*layers, nn.Conv2d(hidden, hidden, 3, 1, 1, groups=hidden), nn.Conv2d(hidden, 6, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Gappy(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.blocks = nn.Sequential(Numbered(4, 4), Numbered(6, 12), Numbered(6, 18))


def test_missing_items_of_a_sequence(tmp_path: Path) -> None:
    source = made(Gappy, tmp_path)
    (block,) = (text for text in classes(source).values() if "groups=" in text)
    assert "layers = []\n        if expand:\n            layers.extend(" in block
    assert "self.layers = nn.Sequential(*layers)" in block


class Shifted(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, width)
        self.conv = nn.Conv2d(width, width, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.conv(self.norm(x)))


class Assorted(nn.Module):
    """A class of any layers, as a table of rows makes them."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Unlike(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        one = Numbered(3, 9), Numbered(6, 12), Numbered(6, 18), Wide(6)
        self.stages = nn.Sequential(Assorted(*one), Assorted(Shifted(6), Shifted(6), Wide(6)))


def test_lists_of_unlike_items_are_not_one_class(tmp_path: Path) -> None:
    """One class would say more of what its instances lack than of what they have."""
    source = made(Unlike, tmp_path)
    assert len(classes(source)) == 6 and "layers = []" not in source


class Stage(nn.Module):
    def __init__(self, width: int, depth: int, shrink: bool) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Wide(width) for _ in range(depth)))
        self.downsample = nn.Conv2d(width, width + 4, 2, 2) if shrink else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(x)
        return x if self.downsample is None else self.downsample(x)


class Wide(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, 1, 1, groups=width)
        self.pointwise = nn.Conv2d(width, 4 * width, 1)
        self.project = nn.Conv2d(4 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.project(F.gelu(self.pointwise(self.depthwise(x))))


class Staged(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.stages = nn.Sequential(Stage(4, 2, True), Stage(8, 3, True), Stage(12, 1, False))


def test_stages_of_several_depths_and_sizes_that_follow(tmp_path: Path) -> None:
    source = made(Staged, tmp_path)
    found = classes(source)
    assert len(found) == 3
    assert "nn.Sequential(*[Block(channels) for _ in range(depth)])" in source
    assert "nn.Conv2d(channels, 4 * channels, kernel_size=1)" in source


class Twisted(nn.Module):
    """Both blocks have the same layers, but what they compute can't be told apart by leaving something out."""

    def __init__(self, swap: bool) -> None:
        super().__init__()
        self.a, self.b, self.swap = nn.Linear(8, 8), nn.Linear(8, 8), swap

    def forward(self, x: Tensor) -> Tensor:
        return x - self.b(self.a(x)) if self.swap else self.a(self.b(x)) - x


class Different(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Twisted(False), Twisted(True))


def test_different_bodies_stay_different_classes(tmp_path: Path) -> None:
    source = made(Different, tmp_path, rows)
    assert len(classes(source)) == 3 and "if " not in source


class Half(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow, self.norm = nn.Linear(8, width), nn.Linear(width, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.narrow(torch.tanh(self.wide(x))))


class Layered(nn.Module):
    def __init__(self, layer: type[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(layer(6), layer(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) - 1


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Layered(Half), Layered(Projected)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x)) * 2


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Pair()

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.model(x))


def test_classes_are_named_by_what_they_are_part_of(tmp_path: Path) -> None:
    found = classes(made(Whole, tmp_path, rows))
    assert {"EncoderLayer", "DecoderLayer", "Backbone", "Net"} <= set(found)


class Apart(nn.Module):
    """Two bodies of one role that do not unite."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Twisted(False), Twisted(True), Half(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


def test_classes_of_one_name_are_numbered(tmp_path: Path) -> None:
    assert list(classes(made(Apart, tmp_path, rows))) == ["Block", "Block2", "Block3", "Net"]


class Convs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(),
            nn.Conv2d(4, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(576, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))


@pytest.mark.parametrize("case", [LEGACY, Case("dynamo", 18, False)], ids=str)
def test_what_an_export_dropped_from_a_sequence_is_an_identity(case: Case, tmp_path: Path) -> None:
    source = " ".join(made(Convs, tmp_path, case=case).split())
    assert (
        "nn.Sequential( nn.Conv2d(in_channels, channels, kernel_size=3), nn.Identity(), nn.ReLU(), nn.Identity(), "
        "nn.Conv2d(channels, channels, kernel_size=3), nn.Identity(), nn.ReLU(), )" in source
    )
    assert "nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(channels * 12 * 12, num_classes))" in source
    assert "self.head(self.layers(x))" in source


class Flat(nn.Module):
    """What flattens before a sequence may be its module that lacks; not if two lack, nor with two users."""

    def __init__(self, gap: int) -> None:
        super().__init__()
        self.one, self.two = (
            nn.Sequential(*[nn.Dropout()] * gap, nn.Linear(768, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = x.sin().flatten(1)
        return self.one(x.flatten(1)) * self.two(y) + y.sum(1, keepdim=True)


@pytest.mark.parametrize(("gap", "first"), [(0, 0), (1, 1), (2, 0)])
def test_what_flattens_is_the_first_of_a_sequence_without_one(gap: int, first: int, tmp_path: Path) -> None:
    source = made(lambda: Flat(gap), tmp_path)
    assert source.count("nn.Flatten()") == first and source.count("flatten(1)") == 2 - first
    assert source.count("nn.Identity()") == 2 * gap - first


class Cached(nn.Module):
    """A layer that is given a mask and its own past, and gives back what the next step needs."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        present = torch.cat([past, self.key(x)], 1)
        return self.out(torch.softmax(x @ present.transpose(1, 2) + mask, -1) @ present) + x, present


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Linear(8, 10)
        self.layers = nn.ModuleList(Cached() for _ in range(3))

    def forward(self, x: Tensor, *pasts: Tensor) -> tuple[Tensor, ...]:
        mask, presents = self.mask(x), []
        for layer, past in zip(self.layers, pasts):
            x, present = layer(x, mask, past)
            presents.append(present)
        return x, *presents


def test_a_loop_with_pasts_and_presents(tmp_path: Path) -> None:
    def inputs(batch: int = 2) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(1)
        return tuple(torch.randn(batch, 5, 8, generator=generator) for _ in range(4))

    names = ("x", "past_0", "past_1", "past_2"), ("y", "present_0", "present_1", "present_2")
    entry = Entry(Cache, inputs, *names, {name: {0: "batch"} for name in (*names[0], *names[1])})
    original = export(entry, tmp_path / "net.onnx")
    Road("cache", entry, LEGACY, tmp_path / "net.onnx", original, tmp_path).check()
    source = (tmp_path / "generated.py").read_text(encoding="utf-8")
    assert re.search(r"for layer, past in zip\(self\.layers, \(past_0, past_1, past_2\)\):\n", source)
    assert re.search(r"(\w+), (\w+) = layer\(\2, past, \w+\)\n +(\w+)\.append\(\1\)", source)
    assert re.search(r"return \w+, \*\w+\n", source)
    assert "nn.ModuleList([Layer(8) for _ in range(3)])" in source


class Pyramid(nn.Module):
    """All the steps of a run are used, and something is computed between them."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(Half(4 + n) for n in range(3))

    def forward(self, x: Tensor) -> Tensor:
        states = []
        for stage in self.stages:
            x = stage(x)
            states.append(x * 2)
        return torch.cat([*states, x], -1)


def test_steps_of_a_run_that_are_used_later(tmp_path: Path) -> None:
    source = made(Pyramid, tmp_path, rows)
    assert "for stage in self.stages:\n            x = stage(x)\n            hidden_states.append(x)" in source


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.layer, self.head = nn.Linear(8, 8), Gated(), Half(4)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        for _ in range(4):
            x = self.layer(x, gate)
        return self.head(x) + self.head(torch.flip(x, [1]))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return torch.relu(x + self.norm(self.linear(x))) * gate


def test_a_module_called_several_times(tmp_path: Path) -> None:
    source = made(Shared, tmp_path, rows)
    assert re.search(r"for _ in range\(4\):\n +x = self\.layer\(x, gate\)\n", source)
    assert source.count("self.head(") == 2
    assert "forward(self, x):" in classes(source)["Head"]


class Levels(nn.Module):
    """One head on maps of several sizes, with something computed between the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.head = Residual(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.head(x)
        z = self.head(F.max_pool2d(y, 2))
        return y.mean((2, 3)) + self.head(F.max_pool2d(z, 2)).mean((2, 3))


def test_a_module_called_with_several_shapes(tmp_path: Path) -> None:
    source = made(Levels, tmp_path)
    assert source.count("self.head(") == 3
    assert "#" not in classes(source)["Head"]


class Uneven(nn.Module):
    """Called twice, each time with other statements: it stays one class whose layers are used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, twice: bool) -> Tensor:
        return torch.relu(self.linear(x)) * 2 if twice else self.linear(x) - x


class Changing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part, self.other = Uneven(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.part(x, True)
        return self.part(self.other(x), False)


def test_a_module_called_with_different_bodies(tmp_path: Path) -> None:
    source = made(Changing, tmp_path, rows)
    assert source.count("nn.Linear(8, 8)") == 2 and source.count(".linear(") == 2


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp, self.pool = Projected(4), Projected(6), nn.Sequential(Reshaping(True), Reshaping(False))

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.mlp(x) + self.attn(x))


class Projected(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, width), nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x - self.down(torch.tanh(self.up(x)))


class Reshaping(nn.Module):
    """Only one of two shifts what it is given: a change of shape is no flag."""

    def __init__(self, shifts: bool) -> None:
        super().__init__()
        self.linear, self.shifts = nn.Linear(8, 8), shifts

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return torch.relu(torch.cat([x[:, 1:], x[:, :1]], 1) if self.shifts else x)


def test_one_class_for_several_roles(tmp_path: Path) -> None:
    source = made(Mixed, tmp_path, rows)
    roles = re.findall(r"self\.(attn|mlp) = (\w+)\(8, hidden_dims\[(\d)\]\)", source)
    assert "hidden_dims=(6, 4)" in source and roles == [("mlp", "Mlp", "0"), ("attn", "Mlp", "1")]
    assert "if self." not in source


class Masked(nn.Module):
    """The mask that every layer turns in the same way is turned once by an exporter that shares equal nodes."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.encoder(x, src_key_padding_mask=mask)


def masked(batch: int = 2) -> tuple[Tensor, ...]:
    mask = torch.zeros(batch, 5, dtype=torch.bool)
    mask[0, 3:] = True
    return (*rows(batch), mask)


@pytest.mark.parametrize("case", [LEGACY, Case("dynamo", 18, False)], ids=str)
def test_layers_that_an_exporter_let_share_a_view_are_one_class(case: Case, tmp_path: Path) -> None:
    found = classes(made(Masked, tmp_path, masked, case))
    assert len([name for name in found if "Layer" in name]) == 1
    assert not [name for name in found if "Attention" in name], "the attention is torch's own module"


class MaskedLayer(nn.Module):
    """Prepares the mask before it looks at its input, as each of its siblings does: exporters write that once."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        hidden = (1.0 - mask[:, None, :]) * -10000.0
        scores = self.q(x) @ self.k(x).transpose(-2, -1) / 8**0.5
        return torch.softmax(scores + hidden, -1) @ self.v(x)


class MaskedLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([MaskedLayer(), MaskedLayer()])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, mask)
        return x


def masked_rows(batch: int = 2) -> tuple[Tensor, ...]:
    return *rows(batch), torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0, 0.0]]).repeat(batch, 1)[:batch]


@pytest.mark.parametrize("case", [LEGACY, Case("dynamo", 18, False)], ids=["legacy", "dynamo"])
def test_layers_that_prepare_one_mask_are_one_class(tmp_path: Path, case: Case) -> None:
    source = made(MaskedLayers, tmp_path, masked_rows, case)
    assert source.count("(nn.Module)") == 2, source
    assert "def forward(self, x, mask):" in source and "def forward(self, x: Tensor, mask: Tensor)" in source
