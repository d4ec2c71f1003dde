"""Gradual unfreezing, as callbacks of Lightning's `Trainer`.

`GradualUnfreeze` unfreezes parts of a network at the start of epochs. `HeadFirst` trains a new head
before the layers below it (Howard & Ruder 1801.06146).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import lightning
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.surgery.head import last_layers
from onnxgen.surgery.ports import Example, check_patterns, example_for
from onnxgen.training.finetune.freezing import held, release, unfreeze, unfreeze_next


class GradualUnfreeze(Callback):
    """Unfreezes parts of a network at the start of epochs.

        freeze(model, "stem", "layer*")
        Trainer(callbacks=[GradualUnfreeze({3: "layer4", 6: ["layer3", "layer2"]})])

    Args:
        schedule: patterns (see `freeze`) by epoch, counted from 0. Or a number N: every N epochs one more block, the
            last one first (see `unfreeze_next`).
        attribute: the LightningModule's attribute with the network; patterns are paths in the network.
    """

    def __init__(self, schedule: Mapping[int, str | Sequence[str]] | int, attribute: str = "model") -> None:
        super().__init__()
        self.schedule = schedule
        self.attribute = attribute
        self._done = 0  # blocks unfrozen so far; a resumed run starts at 0 and catches up

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse now what would fail at a later epoch."""
        if trainer.world_size > 1:
            what = "gradual unfreezing needs one process: several would not average gradients of layers unfrozen later"
            raise OnnxgenError(what, help="use one device")
        if not isinstance(self.schedule, int):
            check_patterns(self._model(pl_module), [p for patterns in self.schedule.values() for p in _list(patterns)])

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Unfreeze what is due; after a resume also what was due before."""
        model, epoch = self._model(pl_module), trainer.current_epoch
        changed: list[str] = []
        if isinstance(self.schedule, int):
            while self._done < epoch // self.schedule:
                changed += unfreeze_next(model)
                self._done += 1
        elif due := [p for first, patterns in self.schedule.items() if first <= epoch for p in _list(patterns)]:
            changed = unfreeze(model, *due)
        held = {id(p) for optimizer in trainer.optimizers for group in optimizer.param_groups for p in group["params"]}
        missing = [name for name in changed if id(model.get_parameter(name)) not in held]
        if missing:
            what = f"no optimizer has {', '.join(missing[:4])}, which epoch {epoch} unfreezes"
            raise OnnxgenError(what, help="give the optimizer all parameters, also frozen ones (as param_groups does)")

    def _model(self, module: LightningModule) -> nn.Module:
        network = getattr(module, self.attribute, module)
        return network if isinstance(network, nn.Module) else module


def _list(patterns: str | Sequence[str]) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


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
        heads = tuple(f"{path}." for path in head or last_layers(model, example_for(model, example)))
        others = {n: p for n, p in model.named_parameters() if not f"{n}.".startswith(heads)}
        self.length, self.until = length, 0
        self._parameters = [parameter for parameter in others.values() if parameter.requires_grad]
        self._modules = [module for n, module in model.named_modules() if not f"{n}.".startswith(heads)]
        self._frozen, self._held = False, list[nn.Module]()

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
