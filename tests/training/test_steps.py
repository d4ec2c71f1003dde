"""Shortcuts that make a step of `fit` fast must not change hooks, the scale of gradients, or sums."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.profilers import PassThroughProfiler

from onnxgen.training import fit
from onnxgen.training.data.arrays import Columns
from onnxgen.training.data.samples import Feeding
from onnxgen.training.loader import Loader
from onnxgen.training.losses import Objective
from onnxgen.training.prepare import quiet
from onnxgen.training.task import EACH_STEP, FLUSH, QUIET, Meter, Task
from tests.training.test_fit import Seen, images, net

CPU: dict[str, Any] = {"device": "cpu", "workers": 0, "show": "nothing"}


class Recording(lightning.Callback):
    """Records calls of all its hooks, and of those that it sets on the module."""

    def __init__(self) -> None:
        self.called: list[str] = []
        for name in dir(lightning.Callback):
            if name.startswith("on_"):
                setattr(self, name, self._noting(name))

    def _noting(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: self.called.append(name)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        for name in EACH_STEP:
            setattr(pl_module, name, self._noting(f"module.{name}"))


def test_all_hooks_of_user_callbacks_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are called as often, and in the same order, as by an unchanged Trainer."""
    found = []
    for name in ("lean", "whole"):
        recording = Recording()
        options = {"epochs": 2, "accumulate": 2, "val": 0.25, "batch_size": 16, **CPU}
        fit(net(), images(), callbacks=[recording], out=tmp_path / name, **options)
        found.append(recording.called)
        monkeypatch.setattr("onnxgen.training.running.lean", lambda *hooked: None)
        monkeypatch.setattr("onnxgen.training.running.Unmeasured", PassThroughProfiler)
    assert found[0] == found[1]
    batches, steps = 2 * 5, 2 * 3
    for name in EACH_STEP:
        count = steps if name in ("on_before_optimizer_step", "on_before_zero_grad") else batches
        assert found[0].count(name) == found[0].count(f"module.{name}") == count, name


def test_scaled_gradients_match_a_loop_with_a_scaler(tmp_path: Path) -> None:
    """A float16 step divides by the scale of the backward pass; the last batch is smaller."""
    (x, y), model, seen = images(40), net(), Seen()
    twin = copy.deepcopy(model)
    objectives, feeding = [Objective(0, "", "label", "nll_loss", classes=10)], Feeding(("image",), {0: "label"})
    task = Task(model, objectives, feeding, lambda model, steps: torch.optim.SGD(model.parameters(), 0.1))
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=256.0))
    with quiet():
        trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, plugins=[plugin], callbacks=[seen], **QUIET)
        trainer.fit(task, Loader(Columns({"image": x, "label": y}, {}), 16, shuffle=True))
    optimizer, scaler = torch.optim.SGD(twin.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=256.0)
    for batch in seen.batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.nll_loss(twin(batch["image"]), batch["label"])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert [len(batch["label"]) for batch in seen.batches] == [16, 16, 8]
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(seen.last[name], value, rtol=1e-6, atol=1e-7)


def test_means_of_outputs_with_different_counts() -> None:
    """Classes (some ignored), numbers and binary labels are compared with numpy over all samples."""
    random, size = np.random.default_rng(0), 4 * 2 * FLUSH + 2
    logits, numbers, chances = random.normal(size=(size, 3)), random.normal(size=size), random.normal(size=size)
    kinds = random.choice([-100, 0, 1, 2], size=size, p=[0.1, 0.3, 0.3, 0.3])
    kinds[::4] = 1  # a batch with no class at all has no loss in torch
    values, flags = random.normal(size=size), random.random(size) < 0.4
    objectives = [
        Objective(0, "kind", "kind", "cross_entropy", classes=3),
        Objective(1, "value", "value", "mse_loss"),
        Objective(2, "flag", "flag", "binary_cross_entropy_with_logits", classes=2),
    ]
    meter = Meter(objectives, evaluating=True)
    for start in range(0, size, 4):  # more batches than are kept pending, the last of another size
        part = slice(start, start + 4)
        made = []
        pairs = ((logits, kinds), (numbers, values), (chances, flags))
        for objective, (output, target) in zip(objectives, pairs, strict=True):
            tensors = torch.from_numpy(output[part]), torch.from_numpy(target[part])
            made.append((objective(*tensors), *tensors))
        meter.add(made)
    shown = kinds != -100
    logarithms = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    losses = {
        "kind": -logarithms[shown, kinds[shown]].mean(),
        "value": ((numbers - values) ** 2).mean(),
        "flag": (np.log1p(np.exp(-chances)) + ~flags * chances).mean(),
    }
    right = {
        "kind": (logits.argmax(1) == kinds)[shown].mean(),
        "flag": ((chances > 0) == flags).mean(),
    }
    expected = {f"val_loss_{name}": value for name, value in losses.items()}
    expected |= {f"val_accuracy_{name}": value for name, value in right.items()}
    expected |= {"val_loss": sum(losses.values()), "val_accuracy": sum(right.values()) / 2}
    assert meter.means("val", lambda sums: sums) == pytest.approx(expected, rel=1e-12)


class Doubling(lightning.Callback):
    """Accumulates more batches from the second epoch on."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.accumulate_grad_batches = trainer.current_epoch + 1


def test_a_callback_may_change_the_accumulation(tmp_path: Path) -> None:
    x, y = images(64)
    model, seen = net(), Seen()
    twin = copy.deepcopy(model)
    options: dict[str, Any] = {"epochs": 2, "val": 0.0, "batch_size": 16, "optimizer": "sgd", "lr": 0.1, **CPU}
    fit(model, (x, y), callbacks=[Doubling(), seen], out=tmp_path / "run", **options)
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    for number, batch in enumerate(seen.batches):
        accumulate = 1 if number < 4 else 2
        image, label = batch.values()
        (F.nll_loss(twin(image), label) / accumulate).backward()
        if accumulate == 1 or number % 2:
            optimizer.step()
            optimizer.zero_grad()
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(seen.last[name], value, rtol=1e-5, atol=1e-6)
