"""Gradual unfreezing as a callback of Lightning's `Trainer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.surgery.owners import check_patterns
from onnxgen.training.finetune.freezing import unfreeze, unfreeze_next


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
        found = getattr(module, self.attribute, module)
        return found if isinstance(found, nn.Module) else module


def _list(patterns: str | Sequence[str]) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)
