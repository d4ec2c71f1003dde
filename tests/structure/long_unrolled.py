"""Drawn networks with unrolled steps: carried values, lists, own numbers and slices, steps in steps, and odd steps."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from tests.structure.test_unrolled import FOLDED, WRITTEN, check
from tests.structure.unrolled import networks
from tests.support.exported import held

DRAWS = 24


class Drawn(nn.Module):
    """Steps drawn from a seed. Each computes a few values from those of the step, the carried ones and the inputs."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        chance = random.Random(seed)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.steps = chance.randint(2, 6)
        self.carried = chance.randint(1, 3)
        self.inner = chance.choice([0, 0, 0, 3])
        self.start = chance.choice(["input", "zeros", "parameter"])
        self.first = nn.Parameter(torch.randn(1, 4))
        self.odd = chance.choice([-1, -1, -1, 0, 1])  # a step that does something more
        self.collect = chance.choice(["none", "stack", "stack with the first", "cat"])
        self.plan = [self._draw(chance, n) for n in range(chance.randint(2, 7))]
        self.numbers = [chance.choice([0.1, 0.25, 0.5, 0.75]) for _ in range(self.steps)]
        self.slices = chance.choice([True, False])

    @staticmethod
    def _draw(chance: random.Random, n: int) -> tuple[str, int, int]:
        kind = chance.choice(["layer", "layer", "add", "mul", "sub", "tanh", "number", "shared"])
        return kind, chance.randrange(100), chance.randrange(100)

    def _step(self, x: list[Tensor], outside: list[Tensor], number: float) -> list[Tensor]:
        made = [*x, *outside]
        for kind, i, j in self.plan:
            a, b = made[i % len(made)], made[j % len(made)]
            if kind == "layer":
                made.append(torch.sigmoid(self.layers[i % 2](a)))
            elif kind in ("add", "mul", "sub"):
                made.append({"add": a + b, "mul": a * torch.tanh(b), "sub": a - 0.5 * b}[kind])
            elif kind == "tanh":
                made.append(torch.tanh(a))
            elif kind == "number":
                made.append(a * number)
            else:
                made.append(a * self.scale)
        for _ in range(self.inner):
            made[-1] = torch.tanh(self.layers[0](made[-1]) - made[-1])
        return made[-len(x) :]

    def forward(self, x: Tensor, seq: Tensor) -> tuple[Tensor, ...]:
        first = {"input": x, "zeros": torch.zeros_like(x), "parameter": self.first.expand(x.shape[0], -1)}[self.start]
        state = [first, *(x + n for n in range(1, self.carried))]
        kept = [state[0]] if self.collect == "stack with the first" else []
        for n in range(self.steps):
            outside = [x, seq[:, n]] if self.slices else [x]
            state = self._step(state, outside, self.numbers[n])
            if n == self.odd:
                state[0] = state[0] + 1.5 * x
            kept.append(state[0])
        state[-1] = state[-1] + x + seq.sum(dim=1) * 0.1  # the exporters drop an input that nothing uses
        if self.collect == "none":
            return tuple(state)
        return (torch.cat(kept, dim=1) if self.collect == "cat" else torch.stack(kept, dim=1), state[-1])


@pytest.mark.parametrize("seed", range(DRAWS))
def test_drawn_steps(seed: int) -> None:
    torch.manual_seed(seed)
    case = ["legacy-17", "legacy-17-train", "legacy-11", "dynamo-18"][seed % 4]
    held(Drawn(seed), (torch.randn(3, 4), torch.randn(3, 6, 4)), case, keys=False)


# the dynamo exporter computes what depends on constants and parameters only, and does not record of which
COMPUTED = {"lista", "newton", "slots", "smoothing"}


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_the_dynamo_exporter(name: str) -> None:
    if name not in COMPUTED:
        check(name, "dynamo-18")
        return
    model, inputs = networks()[name]
    held(model, inputs, "dynamo-18", keys=False)


@pytest.mark.parametrize("name", sorted(WRITTEN.keys() - FOLDED))
def test_an_older_opset(name: str) -> None:
    model, inputs = networks()[name]
    held(model, inputs, "legacy-14")  # the first with attention of torch's
