"""No `forward` of a network is longer than sixty lines: parts of it that hand on little are methods."""

from __future__ import annotations

import ast
import random

import pytest
import torch
from torch import Tensor, nn

from benchmarks.deployed import code_lines
from tests.support.exported import held

OPERATIONS = (torch.sin, torch.cos, torch.tanh, torch.sigmoid, torch.erf, torch.atan)


class Long(nn.Module):
    """Many unlike steps of two values, which are one value in the middle."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.first, self.last, self.random = nn.Linear(4, 4), nn.Linear(4, 4), random.Random(steps)
        self.steps = [self.random.choices(OPERATIONS, k=2) for _ in range(steps)]

    def some(self, x: Tensor, steps: list[list[object]]) -> Tensor:
        y = x
        for n, (one, other) in enumerate(steps):
            x, y = one(y) + x / (n + 2), other(x) - y / 3  # type: ignore[operator]
        return x + y

    def forward(self, x: Tensor) -> Tensor:
        half = len(self.steps) // 2
        return self.some(self.last(self.some(self.first(x), self.steps[:half])), self.steps[half:])


def functions(source: str) -> dict[str, int]:
    """The lines of the methods of the network."""
    root = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)][0]
    return {f.name: len(code_lines(source, f)) for f in root.body if isinstance(f, ast.FunctionDef)}


@pytest.mark.parametrize("steps", [40, 90])
def test_parts_of_a_long_forward_are_methods(steps: int) -> None:
    source = held(Long(steps).eval(), [torch.randn(3, 4)], "legacy-17").source
    lines = functions(source)
    assert max(lines.values()) <= 60, lines
    assert "self.encode(" in source


def test_a_forward_of_some_lines_is_one() -> None:
    source = held(Long(14).eval(), [torch.randn(3, 4)], "legacy-17").source
    assert set(functions(source)) == {"__init__", "forward"}
