"""What loops, arguments and places of a network's parts come to, where it is not a loop over blocks alone."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor, nn

from onnxgen.structure.stretches import _ways
from tests.structure.test_structure import made, rows


class Layers(nn.Module):
    """Pairs of layers that are no blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([nn.LayerNorm(8), nn.Linear(8, 8)]) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for norm, linear in self.layers:
            y = norm(x)
            x = x * torch.tanh(linear(torch.sin(y))) + y
        return x


def test_layers_of_a_turn_are_called_by_what_they_are(tmp_path: Path) -> None:
    assert "for norm, linear in self.layers:" in made(Layers, tmp_path, rows)


class Crossing(nn.Module):
    """Two values are carried, and the second is made of the first: neither may take the other's variable."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)]) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for first, second in self.layers:
            y = torch.sin(torch.tanh(first(x) + y))
            x = second(y)
        return x


def test_values_that_cross_between_turns_have_variables_of_their_own(tmp_path: Path) -> None:
    assert len(re.findall(r"\bfor \w+, \w+ in self\.layers:", made(Crossing, tmp_path, rows))) == 1


class Heads(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(size, size) for _ in range(4))
        self.heads, self.size = heads, size // heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, self.size)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.out((torch.softmax(q @ k.transpose(2, 3), -1) @ v).transpose(1, 2).flatten(2))


class Attentions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = Heads(8, 4), Heads(16, 4), Heads(16, 8)
        self.up = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.up(self.first(x) + x)))


def test_the_size_of_a_head_follows_from_the_features_and_the_number_of_heads(tmp_path: Path) -> None:
    source = made(Attentions, tmp_path, rows)
    assert source.count("\nclass ") == 2 and "num_heads" in source and "head_dim" not in source


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(1, 8), nn.Linear(1, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.a(x)) * self.b(x)


class Places(nn.Module):
    """It has no tensor, of an input or of its own, when it makes its first."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Gate(), Gate()

    def forward(self, count: int) -> Tensor:
        at = torch.arange(count)[:, None]
        return (self.one(at * 0.1) + self.two(at * 0.5))[:, None] * count


class Placed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places, self.fc = Places(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + self.places(x.shape[0])


def test_a_part_without_tensors_is_told_the_device(tmp_path: Path) -> None:
    assert "self.places(x.shape[0], x.device)" in made(Placed, tmp_path, rows)


def test_a_stretch_is_divided_from_every_statement_and_also_without_its_last_turn() -> None:
    assert _ways(9, 3) == [(0, 3), (0, 2), (1, 2), (2, 2), (3, 2)]
    assert _ways(13, 4) == [(0, 3), (0, 2), (1, 3), (1, 2), (2, 2), (3, 2), (4, 2), (5, 2)]
    assert _ways(3, 2) == []


class Skipping(nn.Module):
    """A list like that of a detector: stretches of it are chains, and what one gives is joined with a later one."""

    def __init__(self) -> None:
        super().__init__()
        chain = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.Tanh()]
        self.model = nn.ModuleList([*chain, nn.Identity(), nn.Conv2d(8, 4, 1), nn.Conv2d(4, 2, 1)])

    def forward(self, x: Tensor) -> Tensor:
        skip = self.model[1](self.model[0](x))
        x = torch.cat([self.model[3](self.model[2](skip)), skip], 1)
        return self.model[6](self.model[5](x))


def test_neighbours_in_a_list_are_called_as_a_slice(tmp_path: Path) -> None:
    source = made(Skipping, tmp_path)
    assert "self.model[:2](x)" in source and "self.model[2:4](" in source and "self.model[5:](" in source
    assert "self.model = nn.Sequential(" in source


class Again(nn.Module):
    """One layer, three times, each time of what it has made; all that it has made is the result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for _ in range(3):
            x = self.layer(x)
            found.append(x)
        return torch.cat(found, 1)


def test_calls_of_one_layer_are_a_loop_that_may_collect(tmp_path: Path) -> None:
    source = made(Again, tmp_path, rows)
    assert "for _ in range(3):\n            x = self.layer(x)\n            hidden_states.append(x)\n" in source
