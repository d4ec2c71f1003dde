"""Modules that are called several times and steps that an exporter unrolled come back as an author writes them."""

from __future__ import annotations

import ast
import cProfile
import pstats
from pathlib import Path

import black
import onnx
import pytest
import torch
from torch import nn

from benchmarks.authors.__main__ import _Stripped, lines, stripped
from onnxgen.pipeline import generate
from tests.ops.harness import Ran
from tests.structure.unrolled import Euler, Rk4, Steps, networks
from tests.support.exported import exported, held

# how many times the original's lines a class may have; descent's first step is folded by the exporter, which leaves it.
# The original's layers have numbers; here some have arguments with names, which black breaks into more lines
MOST = {"descent": 1.25, "siamese": 1.3, "shared": 1.45, "slots": 1.25}
WRITTEN = {
    "siamese": "self.encoder(",
    "siamese_method": "self.encode(",
    "triplet": "self.encode(",
    "pyramid": "in zip((",
    "albert": "for _ in range(4):",
    "lista": "for _ in range(5):",
    "descent": "for _ in range(5):",
    "raft": "for _ in range(4):",
    "euler": "for t in (",
    "rk4": "self.step(",
    "newton": "for _ in range(6):",
    "sinkhorn": "for _ in range(5):",
    "nested": "            for _ in range(4):",
    "slots": "for _ in range(3):",
    "primal_dual": "for dual, primal in zip(self.dual, self.primal):",
    "smoothing": ".unbind(1)",
    "shared": "self.net(",
}
FOLDED = {"siamese"}  # the legacy exporter folds its BatchNorm in evaluation


def length(source: str) -> int:
    """The lines of the classes of a generated file, counted as those of the original are."""
    tree = _Stripped().visit(ast.parse(source))
    kept = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return lines(black.format_str(ast.unparse(ast.Module(kept, [])), mode=black.Mode()))


def check(name: str, case: str) -> Ran:
    model, inputs = networks()[name]
    ran = held(model, inputs, case)
    assert WRITTEN[name] in ran.source
    assert length(ran.source) <= MOST.get(name, 1.2) * lines(stripped(model))
    return ran


@pytest.mark.parametrize("name", sorted(WRITTEN.keys() - FOLDED))
def test_a_network(name: str) -> None:
    check(name, "legacy-17")


@pytest.mark.parametrize("name", ["siamese", "shared", "slots"])
def test_a_training_export(name: str) -> None:
    check(name, "legacy-17-train")


@pytest.mark.parametrize("name", ["euler"])
def test_the_dynamo_exporter(name: str) -> None:
    check(name, "dynamo-18")


def test_calls_that_differ_in_a_number_take_it_as_an_argument() -> None:
    ran = held(Euler(steps=4), (torch.randn(3, 4),))
    assert "def forward(self, x, t: float):" in ran.source
    assert "x.new_full((x.shape[0], 1), t)" in ran.source
    assert "for t in (0.0, 0.25, 0.5, 0.75):" in ran.forward


def test_a_batch_of_any_size() -> None:
    ran = held(Rk4(), (torch.randn(3, 4),), axes={0: {0: "batch"}})
    assert ran.model(torch.randn(7, 4)).shape == (7, 5, 4)


class Unlike(nn.Module):
    """Steps that are nearly alike: each has something that the others have not."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x
        for i in range(4):
            h = torch.tanh(self.a(x))
            y = self.b(h) * torch.sigmoid(h) + (first if i % 2 else x)
            x = y - x if i == 2 else x - y
        return x


def test_steps_that_differ_compute_what_they_did() -> None:
    held(Unlike(), (torch.randn(2, 4),))


def test_time_is_linear_in_the_steps(tmp_path: Path) -> None:
    """Counted in calls, which no busy machine changes."""
    counts = []
    for steps in (5, 10, 20, 30):
        path = tmp_path / f"steps{steps}.onnx"
        onnx.save(exported(Steps(steps), (torch.randn(2, 4),)), path)
        profile = cProfile.Profile()
        profile.enable()
        generated = generate(path)
        profile.disable()
        counts.append(vars(pstats.Stats(profile))["total_calls"])
        assert f"for _ in range({steps}):" in generated.source
    _, *few = counts  # what is done once a process counts for the first
    assert few[2] - few[1] < 1.05 * (few[1] - few[0]), counts
