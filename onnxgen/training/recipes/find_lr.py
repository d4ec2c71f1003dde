"""`--find-lr`: the learning-rate range test (Smith 1506.01186, 1803.09820)."""

from __future__ import annotations

import copy
import csv
import io
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning
from torch import nn

from onnxgen.common.atomic import replacing
from onnxgen.training.checkpoint import identity
from onnxgen.training.checkpoint.identity import peek
from onnxgen.training.devices import trainer_options
from onnxgen.training.optimizers import is_adam, low_rate, own_rate
from onnxgen.training.prepare import Plan
from onnxgen.training.recipes import CURVE, FIGURES
from onnxgen.training.report.plots import rates_tried
from onnxgen.training.runs.folder import CHECKPOINTS
from onnxgen.training.task import QUIET, Task, Unmeasured, stepped

LOWEST, HIGHEST, STEPS = 1e-7, 10.0, 100
SMOOTHED = 0.9  # of the mean loss stays at each step; with more, the mean still falls when the loss rises
DIVERGED = 4.0  # times the best mean loss: the test ends
SKIPPED, STILL = 10, 30  # the first means are of few steps; until the second step the rate is too low to learn
FELL = 0.1  # a loss that fell by a smaller share may be chance
BELOW = 10  # the rate is that of the lowest mean by this
MOST = 10  # times the default of an Adam: few batches are soon known by heart, and then the loss falls at any rate


@dataclass(frozen=True)
class RateCurve:
    """The result of a test.

    Attributes:
        rates, losses: those of each step, and the mean of the losses until then.
        rate: the suggestion; None if the loss did not fall.
    """

    rates: Sequence[float]
    losses: Sequence[float]
    rate: float | None

    def write(self, out: Path) -> None:
        """Write the curve and its figures. Raises `OSError`."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerows([("lr", "loss"), *zip(self.rates, self.losses, strict=True)])
        with replacing([out]) as files:
            with files.file(out / CURVE) as file:
                file.write(rates_tried(self.rates, self.losses, self.rate))
            with files.file(out / FIGURES) as file:
                file.write(text.getvalue().encode())


class RangeTest(lightning.Callback):
    """Raises the learning rate with each step, exponentially, and notes the mean loss. It ends when that diverges.

    The parameter groups keep the ratios of their rates, while Lightning's `Tuner.lr_find` gives all the same rate. It
    also writes the model to the disk, and draws a bar over the lines of the run.
    """

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.losses: list[float] = []
        self._mean = 0.0

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self._groups = [(group, group["lr"]) for group in trainer.optimizers[0].param_groups]

    def on_train_batch_start(self, trainer: lightning.Trainer, pl_module: Any, batch: Any, index: int) -> None:
        rate = LOWEST * (HIGHEST / LOWEST) ** (trainer.global_step / STEPS)
        for group, ratio in self._groups:
            group["lr"] = rate * ratio
        self._rate = rate

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, index: int
    ) -> None:
        if not stepped(trainer):
            return
        step = len(self.rates) + 1
        self._mean = SMOOTHED * self._mean + (1 - SMOOTHED) * float(outputs["loss"])
        mean = self._mean / (1 - SMOOTHED**step)
        self.rates.append(self._rate)
        self.losses.append(mean)
        if not math.isfinite(mean) or (step > 1 and mean > DIVERGED * min(self.losses)):
            trainer.should_stop = True


def suggested(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Return a tenth of the rate at which the mean loss is lowest, as fastai's `minimum` does.

    None: it did not fall.
    """
    means = {i: loss for i, loss in enumerate(losses) if i >= SKIPPED and math.isfinite(loss)}
    still = [loss for i, loss in means.items() if i < STILL]
    if len(means) <= len(still):
        return None
    lowest, before = min(means, key=lambda i: means[i]), sum(still) / len(still)
    fell = lowest >= STILL and before - means[lowest] > FELL * abs(before)
    return rates[lowest] / BELOW if fell else None


def with_rate(
    plan: Plan,
    make_task: Callable[[Plan, nn.Module], Task],
    make_data: Callable[[Plan], lightning.LightningDataModule],
    callbacks: Sequence[lightning.Callback] = (),
) -> tuple[Plan, RateCurve | None]:
    """Return the plan with the learning rate that a test finds, and the test. A copy of the model is trained.

    A run that goes on has the rate of its checkpoint. Random generators are left as they were. `callbacks` act in the
    test, too.
    """
    settings = plan.settings
    if settings.lr is not None:  # of the run that goes on
        return replace(plan, settings=replace(settings, find_lr=False)), None
    before = peek(settings.out / CHECKPOINTS).get("identity", {}) if settings.resume else {}
    if before:
        with suppress(KeyError, ValueError):  # "None": the test found nothing
            settings = replace(settings, lr=float(before["lr"]))
        return replace(plan, settings=replace(settings, find_lr=False)), None
    state = identity.capture(plan.device.torch_device)
    plain: dict[str, Any] = {"warmup": 0, "schedule": None, "schedule_args": {}, "compile": False, "head_first": 0}
    ratios = replace(settings, lr=1.0, find_lr=False, **plain)
    tried = replace(plan, settings=ratios, model=copy.deepcopy(plan.model))
    test, task = RangeTest(), make_task(tried, tried.model)
    options = {**QUIET, **trainer_options(plan.device, settings), "profiler": Unmeasured(), "limit_val_batches": 0}
    trainer = lightning.Trainer(
        max_steps=STEPS,
        max_epochs=-1,
        accumulate_grad_batches=settings.accumulate,
        gradient_clip_val=settings.clip,
        callbacks=[test, *callbacks],
        **options,
    )
    trainer.fit(task, datamodule=make_data(tried))
    identity.restore(state, plan.device.torch_device)
    tested = RateCurve(test.rates, test.losses, suggested(test.rates, test.losses))
    most = MOST * own_rate(settings.optimizer) if is_adam(settings.optimizer) else math.inf
    rate = None if tested.rate is None else float(f"{min(tested.rate, most):.3g}")
    low = low_rate(settings.optimizer)  # the weights fit already, or the steps were too few: a low rate harms neither
    settings = replace(settings, lr=low if rate is None else rate, find_lr=False)
    return replace(plan, settings=settings, notes=[*plan.notes, _note(rate, most, low)]), replace(tested, rate=rate)


def _note(rate: float | None, most: float, low: float) -> str:
    if rate is None:
        return f"the loss fell at no rate of a learning-rate range test ({CURVE}), so the learning rate is {low:g}"
    if rate == most:
        return f"the learning rate is {rate:g}, {MOST} times the optimizer's own; a range test ({CURVE}) suggested more"
    return f"the learning rate is {rate:g}: at {BELOW} times that, the loss was lowest in a range test ({CURVE})"
