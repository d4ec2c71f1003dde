"""`fit`: train a model with Lightning's Trainer."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lightning
from torch import nn

from onnxgen._callable import callable_module
from onnxgen.training.devices import prepare as prepare_for
from onnxgen.training.devices import trainer_options
from onnxgen.training.finetune import param_groups
from onnxgen.training.loaders import Loaders
from onnxgen.training.optimizers import make_optimizer, make_schedule, optimizer_class
from onnxgen.training.prepare import Plan, prepare
from onnxgen.training.settings import Settings
from onnxgen.training.task import LogEpoch, Task
from onnxgen.training.trainer import QUIET, metrics, quiet


@dataclass
class Result:
    """What came of a run.

    Attributes:
        model: with the best weights, on the CPU.
        out: the folder of the run.
        history: the metrics of each epoch.
        best_epoch: its number, from 0.
        test: the metrics of the test part, if there is one.
        stopped: why the run ended ("epochs", "max_steps", "early stop", "interrupted").
    """

    model: nn.Module
    out: Path
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0
    test: dict[str, float] | None = None
    stopped: str = "epochs"


def fit(
    model: nn.Module | Path | str,
    data: Any = "digits",
    *,
    settings: Settings | None = None,
    callbacks: Sequence[lightning.Callback] = (),
    **overrides: Any,
) -> Result:
    """Train a model.

    Args:
        model: an `nn.Module`, trained in place, or the path of a generated file.
        data: what `onnxgen.training.data.open_data` takes: a path, "digits", "module:function", arrays, datasets.
        settings, overrides: see `Settings`; `fit(model, data, epochs=3, lr=1e-3)`.
        callbacks: Lightning's, besides those that a run always has.

    Raises:
        OnnxgenError: what was asked for does not fit together; nothing was trained then. Or the loss became NaN.
    """
    settings = replace(settings or Settings(), **overrides)
    with quiet():
        lightning.seed_everything(settings.seed, verbose=False)
        plan = prepare(model, data, settings)
        return run(plan, callbacks)


def run(plan: Plan, callbacks: Sequence[lightning.Callback] = ()) -> Result:
    """Train what was prepared."""
    settings = plan.settings
    network = prepare_for(plan.model, plan.device).train()
    if settings.compile:
        network.compile()
    task = Task(network, plan.objectives, plan.feeding, configure(plan))
    history = History()
    trainer = lightning.Trainer(
        max_epochs=settings.epochs,
        max_steps=settings.max_steps or -1,
        accumulate_grad_batches=settings.accumulate,
        gradient_clip_val=settings.clip,
        callbacks=[LogEpoch(), history, *callbacks],
        **QUIET,
        **trainer_options(plan.device, settings),
    )
    loaders = Loaders(plan)
    trainer.fit(task, datamodule=loaders)
    result = Result(plan.model, Path(settings.out), history.rows)
    if plan.data.test is not None:
        trainer.test(task, datamodule=loaders, verbose=False)
        result.test = metrics(trainer)
    plan.model.cpu()
    return result


def configure(plan: Plan) -> Callable[[lightning.LightningModule], Any]:
    """What makes optimizer and schedule, once Lightning knows how many steps there are."""

    def made(task: lightning.LightningModule) -> Any:
        settings = plan.settings
        assert isinstance(task, Task)
        rate = settings.lr if settings.lr is not None else _default_rate(settings.optimizer)
        groups = param_groups(task.model, lr=rate, head_lr=settings.head_lr, weight_decay=settings.weight_decay)
        optimizer = make_optimizer(groups, settings, plan.device)
        total = int(task.trainer.estimated_stepping_batches)
        schedule = make_schedule(optimizer, settings, total, max(1, math.ceil(total / settings.epochs)))
        return optimizer if schedule is None else {"optimizer": optimizer, "lr_scheduler": schedule}

    return made


def _default_rate(name: str) -> float:
    return float(inspect.signature(optimizer_class(name)).parameters["lr"].default)


class History(lightning.Callback):
    """The metrics of each epoch."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.rows.append({"epoch": float(trainer.current_epoch), **metrics(trainer)})


callable_module(__name__, fit)
