"""`--find-lr`: the oracle is a hand-written loop, and a curve whose lowest place is known."""

from __future__ import annotations

import copy
import csv
import html
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from onnxgen.errors import OnnxgenError
from onnxgen.training import fit
from onnxgen.training.config import read_config
from onnxgen.training.data.arrays import Columns
from onnxgen.training.loader import Loader
from onnxgen.training.recipes import find_lr
from tests.training.test_fit_options import CPU, net, points

GIVEN: dict[str, Any] = {"epochs": 2, "batch_size": 8, "val": 0.0, "optimizer": "sgd"}


def learnable() -> dict[str, Any]:
    data: dict[str, Any] = points(40)
    return {**data, "label": data["x"][:, :3].argmax(1)}


def figures(out: Path) -> list[tuple[float, float]]:
    rows = list(csv.reader((out / "lr.csv").read_text().splitlines()))
    assert rows[0] == ["lr", "loss"]
    return [(float(rate), float(loss)) for rate, loss in rows[1:]]


@pytest.mark.parametrize("head_lr", [1.0, 0.5])
def test_rates_and_mean_losses_are_those_of_a_loop_by_hand(tmp_path: Path, head_lr: float) -> None:
    model, expected = net(), net()
    data = learnable()
    fit(model, data, find_lr=True, layer_decay=head_lr, out=tmp_path, **GIVEN, **CPU)
    samples = Columns({name: torch.as_tensor(column) for name, column in data.items()}, {})
    loader = Loader(samples, 8, shuffle=True)
    mean, best = 0.0, math.inf
    found = figures(tmp_path)
    for step, (rate, loss) in enumerate(found):
        if step % 5 == 0:
            batches = iter(loader)
        assert rate == pytest.approx(1e-7 * 1e8 ** (step / 100))
        batch = next(batches)
        groups = [{"params": expected[0].parameters(), "lr": rate * head_lr}, {"params": expected[2].parameters()}]
        optimizer = torch.optim.SGD(groups, lr=rate)
        made = F.cross_entropy(expected(batch["x"]), batch["label"])
        optimizer.zero_grad()
        made.backward()
        optimizer.step()
        mean = 0.9 * mean + 0.1 * made.item()
        assert loss == pytest.approx(mean / (1 - 0.9 ** (step + 1)), rel=1e-5)
        best = min(best, loss)
        assert (loss > 4 * best) == (step + 1 == len(found)) or step == 99


def test_it_leaves_no_trace_in_the_run_but_the_rate(tmp_path: Path) -> None:
    states = []
    for out, more in ((tmp_path / "found", {"find_lr": True}), (tmp_path / "given", {})):
        if not more:
            rate = read_config(tmp_path / "found" / "config.toml")["lr"]
            more = {"lr": rate}
        result = fit(dropping(), learnable(), out=out, schedule="cosineannealinglr", **more, **GIVEN, **CPU)
        states.append((random.random(), np.random.rand(), torch.rand(1).item(), result.history[-1]["train_loss"]))
    assert states[0] == states[1]
    one, other = (load_file(tmp_path / name / "last.safetensors") for name in ("found", "given"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not (tmp_path / "given" / "lr.png").exists()


def dropping() -> torch.nn.Module:
    model = net(norm=True)
    return torch.nn.Sequential(*model[:3], torch.nn.Dropout(0.3), model[3])


def test_the_rate_is_told_recorded_drawn_and_kept_when_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(net(), learnable(), find_lr=True, out=tmp_path, **GIVEN, **CPU)
    config, report = read_config(tmp_path / "config.toml"), (tmp_path / "report.html").read_text()
    assert config["find_lr"] is False and f"the learning rate is {config['lr']:g}: " in report
    assert (tmp_path / "lr.png").read_bytes()[:4] == b"\x89PNG" and 'alt="loss over the learning rate"' in report
    monkeypatch.setattr(find_lr.RangeTest, "on_train_start", None)  # it is not measured again
    more = GIVEN | {"epochs": 3}
    for given in ({"find_lr": True}, {"lr": config["lr"]}):
        again = fit(net(), learnable(), resume=True, out=tmp_path, **given, **more, **CPU)
        assert len(again.history) == 3 and again.history[-1]["lr"] == config["lr"]
    assert 'alt="loss over the learning rate"' in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("lowest", [1e-3, 0.4])
def test_the_suggestion_is_a_tenth_of_the_rate_where_the_loss_is_lowest(lowest: float) -> None:
    rates = np.geomspace(1e-7, 10, 100)
    losses = np.where(rates < lowest, 2 - rates / lowest, 1 + np.log(rates / lowest).clip(0))
    losses[3], losses[60], losses[-1] = 0.1, math.nan, math.inf  # a chance of the first steps, and a lost step
    found = find_lr.suggested(rates.tolist(), losses.tolist())
    assert found == pytest.approx(lowest / 10, rel=0.2)  # a step of the rates


@pytest.mark.parametrize(("optimizer", "rate"), [("adamw", 0.01), ("nadam", 0.02), ("sgd", 0.5)])
def test_an_adam_gets_ten_times_its_own_rate_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str, rate: float
) -> None:
    monkeypatch.setattr(find_lr, "suggested", lambda *_: 0.5)
    fit(net(), learnable(), find_lr=True, out=tmp_path, **GIVEN | {"optimizer": optimizer}, **CPU)
    assert read_config(tmp_path / "config.toml")["lr"] == rate
    report = html.unescape((tmp_path / "report.html").read_text())
    assert (f"the learning rate is {rate:g}, 10 times the optimizer's own" in report) == (rate < 0.5)


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.001), ("adamw", 0.0003)])
def test_a_loss_that_does_not_fall_suggests_a_low_rate(tmp_path: Path, optimizer: str, rate: float) -> None:
    rates = np.geomspace(1e-7, 10, 100).tolist()
    assert find_lr.suggested(rates, [1.0] * 100) is None
    assert find_lr.suggested(rates, np.linspace(1, 3, 100).tolist()) is None
    assert find_lr.suggested(rates, (1 - 0.08 * np.linspace(0, 1, 100)).tolist()) is None
    assert find_lr.suggested(rates, (-1 - 0.08 * np.linspace(0, 1, 100)).tolist()) is None
    assert find_lr.suggested(rates, (-1 - 0.2 * np.linspace(0, 1, 100)).tolist()) == pytest.approx(1)
    assert find_lr.suggested(rates[:9], np.linspace(2, 1, 9).tolist()) is None
    data = points(40)
    data["label"] = np.random.default_rng(0).permutation(np.arange(40) % 3)
    data["x"] = np.zeros_like(data["x"])
    fit(net(), data, find_lr=True, out=tmp_path, **GIVEN | {"optimizer": optimizer}, **CPU)
    said = html.unescape((tmp_path / "report.html").read_text())
    assert read_config(tmp_path / "config.toml")["lr"] == rate
    assert "the loss fell at no rate of a learning-rate range test" in said and f"learning rate is {rate:g}" in said


def test_a_given_rate_and_several_processes_are_refused(tmp_path: Path) -> None:
    for given, said in (({"lr": 0.1}, "lr and find_lr"), ({"devices": 2}, "find_lr and several processes")):
        with pytest.raises(OnnxgenError, match=f"{said} exclude each other"):
            fit(net(), points(), find_lr=True, out=tmp_path / "run", **given, **CPU)  # type: ignore[arg-type]


def test_the_model_that_is_tried_is_a_copy(tmp_path: Path) -> None:
    model = net()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(OnnxgenError, match="no metric is called"):
        fit(model, points(), find_lr=True, monitor="val_f2", out=tmp_path / "run", **CPU)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
