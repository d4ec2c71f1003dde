"""How a run ends: early, within an epoch, or because its numbers are no longer finite."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
import torch.nn.functional as F

from onnxgen.errors import OnnxgenError
from onnxgen.training import fit, running
from onnxgen.training.report import read_rows
from tests.training.test_fit import Net, images, net, same

CPU = {"device": "cpu", "workers": 0}


def parts() -> dict[str, Any]:
    """Training and validation data. The labels of the latter are wrong for two thirds of the samples."""
    (x, y), wrong = images(), torch.arange(30) % 3 > 0
    return {"train": (x[:60], y[:60]), "val": (x[60:], torch.where(wrong, (y[60:] + 1) % 10, y[60:]))}


class Score(lightning.Callback):
    """Logs a metric that is the same in each epoch, and counts the validations."""

    validations = 0

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.validations += not trainer.sanity_checking
        pl_module.log("val_f1", 0.5)


# ---- early stopping --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("monitor", ["val_f1", "val_accuracy", "val_loss"])
@pytest.mark.parametrize("patience", [1, 3])
def test_early_stopping_waits_for_the_best_epoch(monitor: str, patience: int, tmp_path: Path) -> None:
    """The loss decides between equal epochs, for what is best and for when the run stops."""
    given = {"lr": 0.01, "early_stop": patience, "monitor": monitor, "callbacks": [Score()], **CPU}
    result = fit(net(), parts(), epochs=30, out=tmp_path, **given)
    keys = [(-row[monitor] if monitor == "val_loss" else row[monitor], -row["val_loss"]) for row in result.history]
    since_best = [epoch - keys.index(max(keys[: epoch + 1])) for epoch in range(len(keys))]
    assert result.stopped == "early stop" and since_best.index(patience) == len(keys) - 1
    assert result.best_epoch == len(keys) - 1 - patience
    assert monitor != "val_f1" or len(keys) > patience + 2, "only the loss can have improved"


def test_a_run_that_early_stopping_ended_stays_ended(tmp_path: Path) -> None:
    given = {"lr": 0.01, "early_stop": 1, "epochs": 30, "out": tmp_path, **CPU}
    rows = fit(net(), parts(), **given).history
    again = fit(net(), parts(), resume=True, **given)
    assert again.history == rows and again.stopped == "early stop"


@pytest.mark.parametrize("more", [{"epochs": 33}, {"early_stop": 3}])
def test_a_run_that_was_stopped_early_goes_on_if_it_is_asked(more: dict[str, int], tmp_path: Path) -> None:
    """With more epochs, patience begins again; with more patience, it counts from the best epoch."""
    given = {"lr": 0.01, "early_stop": 1, "epochs": 30, "out": tmp_path, **CPU}
    rows = fit(net(), parts(), **given).history
    again = fit(net(), parts(), resume=True, **{**given, **more})
    assert again.history[: len(rows)] == rows and len(again.history) > len(rows)
    assert len(again.history) == 30 or again.stopped in ("early stop", "epochs")


# ---- within an epoch -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
def test_max_steps_within_an_epoch_validates_once(
    accumulate: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    score, model, data = Score(), net(), parts()
    given = {"batch_size": 5, "accumulate": accumulate, "callbacks": [score], **CPU}
    result = fit(model, data, out=tmp_path, max_steps=3, show="lines", **given)
    (row,) = read_rows(tmp_path / "metrics.csv")
    x, y = data["val"]
    loss = F.nll_loss(model(x), y).item()
    assert result.stopped == "max_steps" and score.validations == 1 and result.history == [row]
    assert row["step"] == 3 and row["val_loss"] == pytest.approx(loss, rel=1e-5) and row["train_loss"] > 0
    assert (tmp_path / "best.safetensors").read_bytes() == (tmp_path / "last.safetensors").read_bytes()
    said = capsys.readouterr().out
    assert re.search(
        rf"^epoch 1 of 10, batch {3 * accumulate} of 12: train loss .*; val .*loss {loss:.4g}, .*\(best\)", said, re.M
    )


def test_more_steps_continue_a_run_within_an_epoch(tmp_path: Path) -> None:
    """The row of the part stays, since its weights may be the best ones."""
    given = {"batch_size": 5, "epochs": 2, **CPU}
    for steps, more in ((5, {}), (17, {"resume": True}), (24, {"resume": True})):
        result = fit(net(), parts(), out=tmp_path / "parts", max_steps=steps, **given, **more)
        assert result.history[-1]["step"] == steps
    assert [(row["epoch"], row["step"]) for row in result.history] == [(1, 5), (1, 12), (2, 17), (2, 24)]
    whole = fit(net(), parts(), out=tmp_path / "whole", **given)
    for row, there in zip(whole.history, (result.history[1], result.history[3]), strict=True):
        assert {**row, "seconds": 0} == {**there, "seconds": 0}
    last = [(tmp_path / name / "last.safetensors").read_bytes() for name in ("parts", "whole")]
    assert last[0] == last[1]


def test_max_steps_without_validation_data(tmp_path: Path) -> None:
    result = fit(net(), images(), out=tmp_path, val=0.0, batch_size=5, max_steps=3, **CPU)
    assert [row["step"] for row in result.history] == [3] and (tmp_path / "best.safetensors").is_file()
    again = fit(net(), images(), out=tmp_path, val=0.0, batch_size=5, max_steps=4, resume=True, **CPU)
    assert [row["step"] for row in again.history] == [3, 4]


# ---- numbers that are not finite -------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [5, 60])  # 12 steps in an epoch; one step, after which only a validation follows
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_rate_that_is_much_too_high(
    batch_size: int, optimizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"epochs": 1, "batch_size": batch_size, "optimizer": optimizer, "out": tmp_path, "show": "lines", **CPU}
    with pytest.raises(OnnxgenError, match=r"loss .*NaN .*step \d+; there are no good weights -> .* smaller "):
        fit(net(), parts(), lr=1e30, **given)
    assert "(best)" not in capsys.readouterr().out
    assert not list(tmp_path.glob("*.safetensors"))


class Break(lightning.Callback):
    """Makes the model return NaN from the third epoch on."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 2:
            pl_module.model.fc.bias.data.fill_(float("nan"))


def test_the_best_finite_weights_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OnnxgenError, match=f"at step 25; the earlier weights are kept in {tmp_path} -> "):
        fit(net(), parts(), epochs=5, batch_size=5, callbacks=[Break()], out=tmp_path, show="lines", **CPU)
    rows = read_rows(tmp_path / "metrics.csv")
    assert len(rows) == 2 and "epoch 3" not in capsys.readouterr().out
    best = Net()
    from safetensors.torch import load_file

    best.load_state_dict(load_file(tmp_path / "best.safetensors"))
    x, y = parts()["val"]
    loss = F.nll_loss(best.eval()(x), y).item()
    assert any(loss == pytest.approx(row["val_loss"], rel=1e-5) for row in rows)


# ---- before the first step -------------------------------------------------------------------------------------------


def test_the_score_before_training_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = net(), parts()
    x, y = data["val"]
    scores = model.eval()(x)
    loss, right = F.nll_loss(scores, y).item(), (scores.argmax(1) == y).float().mean().item()
    result = fit(model, data, epochs=1, out=tmp_path / "a", show="lines", **CPU)
    lines = capsys.readouterr().out.splitlines()
    assert lines.count(f"epoch 0, before training: val loss {loss:.4g}, accuracy {right:.2%}") == 1
    assert [row["epoch"] for row in result.history] == [1]
    fit(model, data, epochs=2, out=tmp_path / "a", resume=True, show="lines", **CPU)
    fit(net(), images(), epochs=1, val=0.0, out=tmp_path / "b", show="lines", **CPU)
    assert "epoch 0" not in capsys.readouterr().out


def test_the_score_before_training_changes_nothing(tmp_path: Path) -> None:
    """The weights are those of a run without validation data."""
    trained = []
    for name, data in (("a", parts()), ("b", {"train": parts()["train"]})):
        model = net()
        model.norm = torch.nn.Sequential(model.norm, torch.nn.Dropout(0.5))
        fit(model, data, epochs=1, batch_size=60, val=0.0, monitor="train_loss", out=tmp_path / name, **CPU)
        trained.append(model.state_dict())
    same(trained[0], trained[1])


def test_a_deadline_counts_from_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5000.0]
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(running, "stepped", lambda trainer: True)
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(max_steps=-1))
    agree = SimpleNamespace(reduce_boolean_decision=lambda over, all: over)
    trainer: Any = SimpleNamespace(fit_loop=loop, strategy=agree, world_size=1, global_step=7)
    ends = running.Deadline(hours=1)
    now[0] += 100  # until the first step
    ends.on_train_start(trainer, None)  # type: ignore[arg-type]
    for after, reached in ((10, False), (3599, False), (3600, True)):
        now[0] = 5100.0 + after
        ends.on_train_batch_end(trainer, None, None, None, 0)
        assert ends.reached is reached and (loop.epoch_loop.max_steps == 7) is reached
