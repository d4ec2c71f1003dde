"""Ctrl-C: once ends the run after the step that is going on, twice at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import lightning

EVERY = 8  # steps after which several processes ask each other; each time waits for the device


class Interrupt(lightning.Callback):
    """Ends the run after the step in which SIGINT comes, without the validation that Lightning would add.

    A second SIGINT raises `KeyboardInterrupt`. Only a program's main thread can listen; elsewhere nothing changes.

    Attributes:
        asked: SIGINT came.
    """

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        self.asked = False
        self._say = say
        self._before: Any = None
        self._heard = False

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before, self._heard = signal.signal(signal.SIGINT, self._listen), True

    def _listen(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if self._say is not None:
            self._say("stopping after this step; Ctrl-C again stops at once")

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        asked = self.asked
        if trainer.world_size > 1:  # all or none: a process that stops alone leaves the others waiting
            asked = batch_idx % EVERY == 0 and trainer.strategy.reduce_boolean_decision(asked, all=False)
        if asked:
            self.asked = trainer.should_stop = True
            if batch_idx + 1 < trainer.num_training_batches:
                trainer.limit_val_batches = 0

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        asked = self.asked  # during the validation, perhaps
        if trainer.world_size > 1:
            asked = trainer.strategy.reduce_boolean_decision(asked, all=False)
        if asked:
            self.asked = trainer.should_stop = True

    def on_fit_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._restore()

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        if self._heard:
            signal.signal(signal.SIGINT, self._before)
            self._heard = False
