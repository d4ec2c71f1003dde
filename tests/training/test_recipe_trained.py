"""The first steps of weights that are trained already: their defaults, what a run says of them, and its advice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from onnxgen.training import fit
from onnxgen.training.config import read_config
from onnxgen.training.model import note_learned
from onnxgen.training.optimizers import settled
from onnxgen.training.report.facts import _gentler
from onnxgen.training.report.metrics import Metrics
from onnxgen.training.report.progress import epoch_line
from onnxgen.training.settings import Settings
from tests.training.test_fit import Seen
from tests.training.test_fit_options import CPU, net, points

SHOWN = {**CPU, "show": "lines"}
Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("samples", "given", "wanted"),
    [
        (40, {}, (8, 0.0003, 5)),
        (160, {}, (8, 0.0003, 20)),
        (400, {}, (16, 0.0003, 25)),
        (1258, {}, (64, 0.0003, 20)),
        (1_000_000, {}, (64, 0.0003, 100)),
        (160, {"accumulate": 4}, (8, 0.0003, 5)),
        (400, {"devices": 2}, (8, 0.0003, 25)),
        (160, {"optimizer": "nadam"}, (8, 0.0006, 20)),
        (160, {"optimizer": "sgd"}, (8, None, 20)),
        (160, {"schedule": "onecyclelr"}, (8, 0.0003, 0)),
        (160, {"lr": 0.001}, (8, 0.001, 0)),
        (160, {"lr": 0.001, "batch_size": 64, "warmup": 0.1}, (64, 0.001, 0.1)),
        (160, {"find_lr": True}, (8, None, 0)),
        (160, {"lora": 4}, (64, None, 0)),
    ],
)
def test_defaults_of_trained_weights(samples: int, given: dict[str, Any], wanted: tuple[Any, ...]) -> None:
    found = settled(Settings(**given), samples, trained=True, batches_differ=True)
    assert (found.batch_size, found.lr, found.warmup) == wanted
    fresh = settled(Settings(**given), samples, trained=False, batches_differ=True)
    kept = given.get("batch_size", 64), given.get("lr"), given.get("warmup", 0)
    assert (fresh.batch_size, fresh.lr, fresh.warmup) == kept
    assert settled(Settings(**given), samples, trained=True, batches_differ=False).batch == kept[0]


def test_the_steps_are_those_of_a_loop_by_hand(capsys: Out) -> None:
    """One epoch of 40 samples: 5 steps of 8, with AdamW at 1/5 to 5/5 of 0.0003."""
    model, by_hand, seen = net(), net(), Seen()
    note_learned(model)
    fit(model, points(40), val=0.0, epochs=1, weight_decay=0.0, callbacks=[seen], out=Path("run"), **SHOWN)
    optimizer = torch.optim.AdamW(by_hand.parameters(), weight_decay=0.0)
    assert [len(batch["x"]) for batch in seen.batches] == [8] * 5
    for step, batch in enumerate(seen.batches, 1):
        optimizer.param_groups[0]["lr"] = 0.0003 * step / 5
        optimizer.zero_grad()
        F.cross_entropy(by_hand(batch["x"]), batch["label"]).backward()
        optimizer.step()
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(seen.last[name], value)
    said = capsys.readouterr().out
    assert "\nadamw, lr 0.0003 after a rise over 5 steps; 5 steps of 8 samples an epoch\n" in said
    config = read_config(Path("run/config.toml"))
    assert (config["lr"], config["warmup"], config["batch_size"]) == (0.0003, 5, 8)


def test_a_run_that_goes_on_has_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that an older version began with other defaults."""
    given: dict[str, Any] = {"val": 0.0, "out": Path("run"), **CPU}
    for begun, wanted in (({}, (0.0003, 5, 8)), ({"lr": None, "warmup": 0, "batch_size": 64}, (None, 0, 64))):
        model = net()
        note_learned(model)
        with monkeypatch.context() as older:
            if begun:
                older.setattr(
                    "onnxgen.training.prepare.settled", lambda settings, *_, begun=begun: replace(settings, **begun)
                )
            fit(model, points(40), epochs=1, **given)
        again = net()
        note_learned(again)
        fit(again, points(40), epochs=2, resume=True, **given)
        config = read_config(Path("run/config.toml"))
        assert (config.get("lr"), config["warmup"], config["batch_size"]) == wanted


def test_a_run_says_what_to_do_if_it_made_the_model_worse(capsys: Out) -> None:
    x = points(48)["x"]
    label = net()(torch.from_numpy(x)).argmax(1).numpy()
    data = {
        "train": {"x": x, "label": (label + 1) % 3},
        "val": {"x": x, "label": label},
    }  # it unlearns what is measured
    for batch, way in ((8, "lr=0.1, or freeze the"), (48, "lr=0.1, or batch_size=8 (6 steps an epoch), or freeze the")):
        model = net()
        note_learned(model)
        fit(model, data, epochs=2, lr=1.0, batch_size=batch, monitor="val_loss", out=Path(f"{batch}"), **SHOWN)
        said = capsys.readouterr().out
        assert f"note: after these steps the model is far worse than before training -> {way}" in said
        assert (
            f"note: no epoch was better than the model before training; best.safetensors has its weights -> {way}"
            in said
        )
        assert "(best)" not in said


def test_a_new_head_is_not_called_worse_than_chance() -> None:
    plan: Any = SimpleNamespace(settings=Settings(replace_head=3))
    metrics = Metrics(Path("metrics.csv"), "val_accuracy", gentler=_gentler(plan))
    metrics.before, metrics.rows = {"val_accuracy": 0.2}, [{"val_accuracy": 0.01}]
    assert metrics.fell == "" and metrics.brought_nothing.endswith("the best of the epochs")
    metrics.gentler = " -> --lr 0.1"
    assert metrics.fell == "after these steps the model is far worse than before training -> --lr 0.1"


def test_the_best_of_worse_epochs_is_called_so() -> None:
    row = {"epoch": 1.0, "val_loss": 2.0, "seconds": 1.0}
    assert "val loss 2 (best); 1" in epoch_line(row, "2", True, 0.0)
    assert "val loss 2 (best, but worse than before training); 1" in epoch_line(row, "2", True, 0.0, worse=True)
    assert "val loss 2; 1" in epoch_line(row, "2", False, 0.0, worse=True)
