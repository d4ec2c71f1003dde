"""A run that prints lines is never silent for long: also while it loads, prepares, validates, or computes one batch."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onnxgen.cli import run as cli
from onnxgen.cli import say
from onnxgen.common.timing import Still
from onnxgen.training import fit
from onnxgen.training.report.progress import Lines
from onnxgen.training.runs.learner import Learner
from tests.training.small import network
from tests.training.test_fit_options import CPU, points

Out = pytest.CaptureFixture[str]


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.12)
        found: Tensor = self.fc(x)
        return found


def test_each_long_part_of_a_run_is_told(tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lines, "every", 0.05)
    torch.manual_seed(0)
    given = {**CPU, "show": "lines", "batch_size": 8, "val": 0.5, "test": 0.2, "loggers": ("none",)}
    fit(Slow(), points(40), epochs=1, out=tmp_path / "run", **given)
    said = capsys.readouterr().out
    for part in (
        r"validating before training",
        r"epoch 1 of 1: in batch 1 of 2",
        r"epoch 1 of 1: validating",
        r"testing",
    ):
        assert re.search(rf"^{part}(, \d+ batch(es)? done)? \(\d+ s\)$", said, re.M), (part, said)
    assert said.index("validating before") < said.index("epoch 0, before training") < said.index("in batch 1 of 2")


def test_an_epoch_that_goes_on_has_the_time_of_both_parts(tmp_path: Path) -> None:
    given = {**CPU, "batch_size": 8, "val": 0.0, "loggers": ("none",), "out": tmp_path / "run"}
    begun = fit(Slow(), points(32), epochs=1, max_steps=3, **given).history[-1]["seconds"]
    whole = fit(Slow(), points(32), epochs=1, resume=True, **given).history[-1]["seconds"]
    assert begun >= 3 * 0.12 and whole >= begun + 0.12


def test_what_prints_itself_is_left_alone(capsys: Out) -> None:
    with Still(lambda: "waiting", print, 0.3) as quiet:
        for _ in range(10):
            time.sleep(0.05)
            quiet.told()
    assert capsys.readouterr().out == ""
    with Still(lambda: "waiting", print, 0.05):
        time.sleep(0.2)
    assert capsys.readouterr().out.startswith("waiting (0 s)\n")


def test_what_follows_goes_on_with_the_silence(capsys: Out) -> None:
    """Two waits of less than the time between two lines are one that is longer."""
    for what in ("loading", "preparing"):
        with Still(lambda: what, print, 1.0):  # noqa: B023
            time.sleep(0.6)
    assert capsys.readouterr().out == "preparing (0 s)\n"


def test_an_evaluation_says_what_goes_on(tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "\n".join(f"{n},{n % 3}" for n in range(12))
    (tmp_path / "points.csv").write_text(f"x,label\n{rows}\n")
    fit(network(tmp_path, x=("float32", ["n", 1])), tmp_path / "points.csv", epochs=1, out=tmp_path / "run", **CPU)
    asked = Learner.evaluate

    def slowly(*given: Any, **named: Any) -> Any:
        time.sleep(0.2)
        return asked(*given, **named)

    monkeypatch.setattr(Learner, "evaluate", slowly)
    monkeypatch.setattr(say, "Still", lambda what, print_line: Still(what, print_line, 0.02))
    assert cli(["evaluate", str(tmp_path / "run"), "--device", "cpu"]) == 0
    assert "evaluating (0 s)\n" in capsys.readouterr().err


def test_a_command_says_what_it_loads(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr, since the answer is on stdout; not with --quiet."""
    monkeypatch.setattr(say, "Still", lambda what, print_line: Still(what, print_line, 0.05))
    with say.progress("loading PyTorch", quiet=False):
        time.sleep(0.2)
    out, errors = capsys.readouterr()
    assert out == "" and errors.startswith("loading PyTorch (0 s)\n")
    with say.progress("loading PyTorch", quiet=True):
        time.sleep(0.2)
    assert capsys.readouterr() == ("", "")
