"""`HeadFirst`: a new head is trained before the layers below it (Howard & Ruder 1801.06146)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import lightning
from torch import nn

from onnxgen.surgery.example import Example, example_for
from onnxgen.surgery.head import last_layers
from onnxgen.training.finetune.freezing import held, release


class HeadFirst(lightning.Callback):
    """Trains the head alone at first. All else, with BatchNorm's statistics, is frozen for that time.

    What is frozen already stays frozen. Several processes would not average the gradients of what is unfrozen later.

    Args:
        model: the model; without `head` it runs once, to find the heads of its outputs.
        length: a number of epochs, or a share of all steps below 1.
        example: see `find_head`.
        head: the paths of the head's modules, if they are no last layers with weights.

    Raises:
        OnnxgenError: no output has a head.
    """

    def __init__(
        self, model: nn.Module, length: float, example: Example | None = None, head: Sequence[str] = ()
    ) -> None:
        heads = [f"{path}." for path in head or last_layers(model, example_for(model, example))]
        self.length, self.until = length, 0
        self._parameters = [
            p for n, p in model.named_parameters() if p.requires_grad and not any(f"{n}.".startswith(h) for h in heads)
        ]
        modules = [m for n, m in model.named_modules() if not any(f"{n}.".startswith(h) for h in heads)]
        self._modules, self._frozen = modules, False
        self._held: Any = None

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        whole = int(trainer.estimated_stepping_batches)
        a_step, batches = trainer.accumulate_grad_batches, int(trainer.num_training_batches)
        self.until = int(self.length) * -(-batches // a_step) if self.length >= 1 else math.ceil(self.length * whole)
        if trainer.global_step < self.until:
            self._set(trained=False)

    def on_train_batch_start(self, trainer: lightning.Trainer, pl_module: Any, batch: Any, index: int) -> None:
        if self._frozen and trainer.global_step >= self.until:
            self._set(trained=True)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        if self._frozen:  # the run was shorter
            self._set(trained=True)

    def on_exception(self, trainer: lightning.Trainer, pl_module: Any, exception: BaseException) -> None:
        self.on_train_end(trainer, pl_module)

    def _set(self, trained: bool) -> None:
        for parameter in self._parameters:
            parameter.requires_grad_(trained)
        if trained:
            release(self._held)
        else:
            self._held = held(self._modules)
        self._frozen = not trained
