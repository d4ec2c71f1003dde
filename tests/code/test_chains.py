"""Containers that authors fill in loops are filled in loops, with the same layers in the same order."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.exported import held


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.dw = nn.Conv2d(before, before, 3, stride, 1, groups=before)
        self.pw = nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.pw(torch.relu(self.dw(x))))


class Mobile(nn.Module):
    """Rows of a width, a depth and a stride."""

    def __init__(self, *rows: tuple[int, int, int]) -> None:
        super().__init__()
        layers, width = [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU()], 8
        for after, depth, stride in rows:
            for i in range(depth):
                layers.append(Block(width, after, stride if i == 0 else 1))
                width = after
        self.features, self.fc = nn.Sequential(*layers, nn.Conv2d(width, 40, 1)), nn.Linear(40, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x).mean((2, 3)))


class Perceptron(nn.Module):
    def __init__(self, hidden: tuple[int, ...] = (64, 48, 24)) -> None:
        super().__init__()
        dims, layers = [20, *hidden], list[nn.Module]()
        for a, b in zip(dims, dims[1:]):
            layers += [nn.Linear(a, b), nn.ReLU(), nn.BatchNorm1d(b)]
        self.net = nn.Sequential(*layers, nn.Linear(hidden[-1], 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Backbone(nn.Module):
    """Blocks of all widths of a table. `middle`: a head that takes one of them."""

    def __init__(self, widths: tuple[int, ...] = (8, 16, 24, 32), middle: bool = False) -> None:
        super().__init__()
        dims = [3, *widths]
        self.blocks = nn.Sequential(*[Block(a, b, 2) for a, b in zip(dims, dims[1:])])
        self.head, self.middle = nn.Conv2d(widths[-1], widths[1] if middle else 5, 1), middle
        if middle:
            self.last = nn.Conv2d(widths[1], widths[1], 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(self.blocks(x))
        return self.last(x) if self.middle else x


class Spotting(nn.Module):
    """Two layers that repeat."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Sequential(nn.Conv2d(1, width, (10, 4), 2, (5, 1)), nn.ReLU())]
        for _ in range(3):
            layers.append(nn.Sequential(nn.Conv2d(width, width, 3, padding=1, groups=width), nn.ReLU()))
            layers.append(nn.Sequential(nn.Conv2d(width, width, 1), nn.ReLU()))
        self.features, self.fc = nn.Sequential(*layers), nn.Linear(width, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x).mean((2, 3)))


IMAGES, SOUNDS, ROWS = torch.rand(2, 3, 32, 32), torch.rand(2, 1, 40, 12), torch.rand(4, 20)


@pytest.mark.parametrize(
    ("network", "given", "lines"),
    [
        (
            Mobile((12, 1, 1), (16, 2, 2), (24, 3, 2), (32, 3, 1)),
            IMAGES,
            [
                "channels = c1",
                "for out_channels, depth, stride in ((c2, 1, 1), (c3, 2, 2), (c4, 3, 2), (c5, 3, 1)):",
                "for i in range(depth):",
                "layers.append(DepthwiseSeparable(channels, out_channels, stride=stride if i == 0 else 1))",
                "channels = out_channels",
                "self.features = nn.Sequential(*layers, nn.Conv2d(c5, c6, kernel_size=1))",
            ],
        ),
        (
            Mobile((12, 1, 1), (16, 1, 2), (24, 1, 1), (32, 1, 2), (36, 1, 1)),
            IMAGES,
            ["for out_channels, stride in ((c2, 1), (c3, 2), (c4, 1), (c5, 2), (c6, 1)):"],
        ),
        (
            Perceptron(),
            ROWS,
            [
                "dims = [in_features, *hidden_dims]",
                "for a, b in zip(dims, dims[1:]):",
                "layers.append(nn.BatchNorm1d(b))",
                "self.net = nn.Sequential(*layers, nn.Linear(hidden_dims[-1], out_features))",
            ],
        ),
        (
            Backbone(),
            IMAGES,
            [
                "dims = [in_channels, *widths]",
                "self.blocks = nn.Sequential(*[DepthwiseSeparable(a, b) for a, b in zip(dims, dims[1:])])",
                "self.head = nn.Conv2d(widths[-1], num_classes, kernel_size=1)",
            ],
        ),
        (Spotting(), SOUNDS, ["for _ in range(3):", "self.features = nn.Sequential(*layers)"]),
    ],
    ids=["stages", "rows", "layers", "widths", "repeats"],
)
def test_a_container_is_filled_as_authors_do(network: nn.Module, given: Tensor, lines: list[str]) -> None:
    source = held(network.eval(), [given], "legacy-17").source
    found = [line.strip() for line in source.splitlines()]
    places = [found.index(line) for line in lines]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("network", "given", "table", "others"),
    [(Perceptron, ROWS, "hidden_dims", (7, 6, 5, 4, 3)), (Backbone, IMAGES, "widths", (4, 6))],
)
def test_a_table_that_is_walked_may_have_any_length(
    network: Any, given: Tensor, table: str, others: tuple[int, ...]
) -> None:
    ran = held(network().eval(), [given], "legacy-17")
    changed, original = type(ran.model)(**{table: others}), network(others)
    changed.load_state_dict(original.state_dict())
    torch.testing.assert_close(changed.eval()(given), original.eval()(given))


def test_a_table_of_which_a_layer_takes_one_has_a_set_length() -> None:
    ran = held(Backbone(middle=True).eval(), [IMAGES], "legacy-17")
    assert "widths" in inspect.signature(type(ran.model)).parameters and "*widths" not in ran.source


class Field(nn.Module):
    """The layers of a radiance field (https://arxiv.org/abs/2003.08934, figure 7): one takes the input again."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList([nn.Linear(64 + 63 * (i == 5) if i else 63, 64) for i in range(8)])

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for i, linear in enumerate(self.linears):
            out = torch.relu(linear(out))
            out = torch.cat([x, out], -1) if i == 4 else out
        return out


def test_widths_that_layers_take_are_no_table_that_they_walk() -> None:
    """63, 64, 127 are what two of eight layers take, and nothing that one makes for the next."""
    source = held(Field().eval(), [torch.rand(2, 63)], "legacy-17").source
    assert "for _ in range(4)" in source and "zip(" not in source.partition("def forward")[0]
