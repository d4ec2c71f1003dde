"""`Deadline`: ends a run after a given time, as `max_steps` ends it after a number of steps."""

from __future__ import annotations

import time
from typing import Any

import lightning

from onnxgen.training.trainer import stepped

STEPS_PER_AGREEMENT = 16  # between two questions of several processes to each other whether the time is up


class Deadline(lightning.Callback):
    """Ends the training after some hours. The weights of that moment are validated and saved like those of an epoch.

    It must come before the callback that saves checkpoints.

    Attributes:
        reached: True once the time was up.
    """

    def __init__(self, hours: float | None) -> None:
        self.hours, self.reached = hours, False
        self._begun = time.monotonic()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._begun = time.monotonic()

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, index: int
    ) -> None:
        if self.hours is None or not stepped(trainer):
            return
        if trainer.world_size > 1 and trainer.global_step % STEPS_PER_AGREEMENT:
            return
        over = time.monotonic() - self._begun >= self.hours * 3600
        self.reached = trainer.strategy.reduce_boolean_decision(over, all=False)
        if self.reached:
            trainer.fit_loop.epoch_loop.max_steps = trainer.global_step
