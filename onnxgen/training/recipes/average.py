"""`Average`: the mean of the weights over the steps (Polyak & Juditsky 1992), decaying exponentially."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.swa_utils import get_ema_multi_avg_fn

from onnxgen.training.lerp import WithoutLerp


class Average(lightning.Callback):
    """Averages the trained weights and BatchNorm's running statistics after each step. Other buffers are the latest.

    After step n (from 0) the average moves to the weights by 1 - min(decay, (1 + n) / (10 + n)), as in TensorFlow's
    `ExponentialMovingAverage`: otherwise the average of a short run would be about its first weights. Averages of half
    precision are float32. The validation sees the average. Lightning's `WeightAveraging` copies the whole module (with
    the data that its optimizer's settings refer to), and its last weights are not those that were validated.

    It must come before the callback that saves checkpoints.

    Args:
        decay: between 0 and 1.
        lerp: False for a device without this operation.
    """

    def __init__(self, decay: float, lerp: bool = True) -> None:
        self.decay, self.lerp = decay, lerp
        self._steps = self._global_step = 0
        self._averages: dict[str, Tensor] = {}
        self._parameters: dict[str, nn.Parameter] = {}  # of the model
        self._averaged: dict[str, Tensor] = {}  # these, and running statistics
        self._aside: list[Tensor] = []  # their values while the average is in their place

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "global_step": self._global_step, "averages": dict(self._averages)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._steps, self._global_step = state_dict["steps"], state_dict["global_step"]
        self._averages = state_dict["averages"]

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self.on_train_start(trainer, pl_module)  # which a run that has nothing left to train never reaches

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self._parameters = {name: p for name, p in pl_module.model.named_parameters() if p.is_floating_point()}
        self._averaged = {**self._parameters, **dict(_statistics(pl_module.model))}
        found = {name: mean for name, mean in self._averages.items() if name in self._averaged}
        self._averages = {name: mean.to(self._averaged[name].device) for name, mean in found.items()}

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, index: int
    ) -> None:
        if trainer.global_step == self._global_step:
            return
        self._global_step = trainer.global_step
        for name, tensor in self._averaged.items():
            if name not in self._averages and (name not in self._parameters or tensor.requires_grad):
                self._averages[name] = _wide(tensor.detach()).clone()
        decay = min(self.decay, (1 + self._steps) / (10 + self._steps))
        self._steps += 1
        alike: dict[Any, list[str]] = {}
        for name, mean in self._averages.items():
            alike.setdefault((mean.device, mean.dtype), []).append(name)
        for names in alike.values():
            means, latest = [self._averages[n] for n in names], [_wide(self._averaged[n].detach()) for n in names]
            if self.lerp:
                get_ema_multi_avg_fn(decay)(means, latest, None)  # type: ignore[no-untyped-call]
            else:
                with WithoutLerp():
                    for mean, tensor in zip(means, latest, strict=True):
                        mean.lerp_(tensor, 1 - decay)

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self.put()

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self.take_back()

    @torch.no_grad()
    def put(self) -> None:
        """Put the average into the model, if there is one yet. `take_back` undoes it."""
        self._aside = [self._averaged[name].detach().clone() for name in self._averages]
        for name, mean in self._averages.items():
            self._averaged[name].copy_(mean)

    @torch.no_grad()
    def take_back(self) -> None:
        """Put the latest weights into the model again."""
        for name, tensor in zip(self._averages, self._aside, strict=True):
            self._averaged[name].copy_(tensor)
        self._aside = []

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """In this context the model has the average."""
        self.put()
        try:
            yield
        finally:
            self.take_back()


def _statistics(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for path, module in model.named_modules():
        if isinstance(module, _NormBase):
            yield from ((n, b) for n, b in module.named_buffers(path, recurse=False) if b.is_floating_point())


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
