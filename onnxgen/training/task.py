"""A model, its objectives and its data's columns as a LightningModule: what Lightning's Trainer trains."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import lightning
import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn

from onnxgen.training.data.samples import Batch, Feeding
from onnxgen.training.finetune.blocks import blocks
from onnxgen.training.losses import Objective
from onnxgen.training.memory import Micro
from onnxgen.training.meter import Made, Meter

Configure = Callable[[lightning.LightningModule], Any]


class Task(lightning.LightningModule):
    """Trains `model` towards its objectives.

    Logged at the end of each epoch: `train_loss`, `val_loss`, `test_loss`, and of a classifier the accuracies.

    Attributes:
        model: as it was generated: its own `state_dict` has the generated file's keys.
        rate: the learning rate of the latest step, of the first group of parameters.
        confusion: after a validation or test, how often a class (row) was taken for another (column), on the CPU; None
            where nothing is classified.
    """

    def __init__(
        self, model: nn.Module, objectives: Sequence[Objective], feeding: Feeding, configure: Configure
    ) -> None:
        super().__init__()
        self.model = model
        self.objectives = list(objectives)
        self.feeding = feeding
        self.rate = 0.0
        self.confusion: Tensor | None = None
        self.micro = Micro()
        self._configure = configure
        self._sharded = False
        self._meters = {part: Meter(self.objectives) for part in ("train", "val", "test")}

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning notes the hook that it calls some forty times a step, and a module's own way to set is slow
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    # Lightning looks up three hooks a batch, of which this module has none: a batch goes to the device, or is there.

    def _on_before_batch_transfer(self, batch: Batch, dataloader_idx: int = 0) -> Batch:
        return batch

    def _apply_batch_transfer_handler(
        self, batch: Batch, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Batch:
        device = device or self.device
        if all(column.device == device for column in batch.values()):
            return batch
        moved: Batch = move_data_to_device(batch, device)
        return moved

    def configure_model(self) -> None:
        """Shard the parameters (FSDP2), each generated block and then what is left, where a strategy made a mesh of
        processes for it. Their keys stay. Lightning may call this again."""
        if self.device_mesh is not None and not self._sharded:
            from torch.distributed.fsdp import fully_shard

            for part in (*map(self.model.get_submodule, blocks(self.model)), self.model):
                fully_shard(part, mesh=self.device_mesh["data_parallel"])
            self._sharded = True

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        """The model's outputs, always as a tuple."""
        made = self.model(*(batch[column] for column in self.feeding.inputs))
        return made if isinstance(made, tuple) else (made,)

    def compute(self, batch: Batch) -> tuple[Tensor, list[Made]]:
        """The loss to train (the sum over the objectives), and what it is made of."""
        outputs = self(batch)
        made: list[Made] = []
        for objective in self.objectives:
            output, target = outputs[objective.output], batch[objective.column]
            made.append((objective(output, target), output, target))
        total = made[0][0]
        for loss, _, _ in made[1:]:
            total = total + loss
        return total, made

    def training_step(self, batch: Batch, index: int) -> Tensor:
        # One process may have fewer samples of the last batch than the others, and the last step fewer batches.
        weight = self._weight
        self.rate = float(self.trainer.optimizers[0].param_groups[0]["lr"])  # a schedule may change it after the step
        if self._together:
            loss, made = self.compute(batch)
            self._meters["train"].add(made)
        else:
            loss = self.micro.forward(self.model, batch, self._share)
        return loss if weight == 1 else loss * weight

    # Lightning asks at each step which parameters the method has; reading them from the code is slow.
    training_step.__signature__ = inspect.signature(training_step)  # type: ignore[attr-defined]

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if self._together:
            super().backward(loss, *args, **kwargs)
            return
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        first = self.trainer.accumulate_grad_batches == 1  # and the last of its step
        scaled = scaler is not None or not first or self._weight != 1
        for made in self.micro.backward(self.model, loss, self._share, scaled=scaled, first=first):
            self._meters["train"].add(made)

    @property
    def _weight(self) -> float:
        """Of the batch at hand among those of its step."""
        return float(getattr(self.trainer.train_dataloader, "weight", 1.0))

    @property
    def _together(self) -> bool:
        """Several processes add up gradients in the backward pass: none can take a batch in parts of its own accord."""
        return self.trainer.world_size > 1

    def _share(self, part: Batch, whole: Batch) -> tuple[Tensor, list[Made]]:
        """A part's share of the whole batch's loss."""
        with self.trainer.precision_plugin.train_step_context():
            total, made = self.compute(part)
            if part is not whole:
                shares = [loss * o.share(part, whole) for o, (loss, _, _) in zip(self.objectives, made, strict=True)]
                total = sum(shares[1:], shares[0])
        return total, [(loss.detach(), output.detach(), target) for loss, output, target in made]

    def validation_step(self, batch: Batch, index: int) -> None:
        self._evaluate("val", batch)

    def test_step(self, batch: Batch, index: int) -> None:
        self._evaluate("test", batch)

    def _evaluate(self, part: str, batch: Batch) -> None:
        for _, made in self.micro.each(batch, self.compute):
            self._meters[part].add(made)

    def on_train_epoch_start(self) -> None:
        self._meters["train"] = Meter(self.objectives)

    def on_validation_epoch_start(self) -> None:
        self._meters["val"] = Meter(self.objectives, confusing=True)

    def on_test_epoch_start(self) -> None:
        self._meters["test"] = Meter(self.objectives, confusing=True)

    def log_epoch(self) -> None:
        """Log the means of a training epoch."""
        self._log("train")
        self.log("lr", self.rate)

    def so_far(self) -> dict[str, float]:
        """The means of the training epoch that is going on, of this process; waits for the device."""
        return self._meters["train"].means("train", lambda sums: sums)

    def on_validation_epoch_end(self) -> None:
        self._log("val")

    def on_test_epoch_end(self) -> None:
        self._log("test")

    def _log(self, part: str) -> None:
        meter = self._meters[part]
        for name, value in meter.means(part, self._summed).items():
            self.log(name, torch.tensor(value, dtype=torch.float32))
        if part != "train":
            self.confusion = meter.confusion

    def _summed(self, values: Tensor) -> Tensor:
        """Over all processes. Every process logs the same numbers then."""
        if self.trainer.world_size == 1:
            return values
        found = self.trainer.strategy.reduce(values.to(self.device), reduce_op="sum")
        assert isinstance(found, Tensor)
        return found.cpu()

    def configure_optimizers(self) -> Any:
        return self._configure(self)


class LogEpoch(lightning.Callback):
    """Logs a training epoch's means: the first of all callbacks, since the module's own hook comes after theirs."""

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        assert isinstance(pl_module, Task)
        pl_module.log_epoch()
