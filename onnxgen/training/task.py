"""The LightningModule of a run: a model with its objectives and the data's columns."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import lightning
import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.training.data.samples import Batch, Feeding
from onnxgen.training.goals.goal import Goal, Made, Outputs
from onnxgen.training.loader import Loader
from onnxgen.training.memory import Micro
from onnxgen.training.meter import CPU, Meter

GOALS = "goals."  # the prefix of the goals' tensors in a checkpoint


class Task(lightning.LightningModule):
    """Trains `model` towards its objectives.

    It logs `train_loss`, `val_loss` and `test_loss` at the end of each epoch, accuracies for a classifier, and the
    goals' other metrics of validation and test.

    Attributes:
        model: the generated model; the keys of its `state_dict` are those of the generated file.
        rate: the learning rate of the latest step, in the first parameter group.
        confusion: after a validation or test, the confusion matrix (rows are the true classes) on the CPU; None
            without a classifier.
    """

    def __init__(
        self,
        model: nn.Module,
        objectives: Sequence[Goal],
        feeding: Feeding,
        configure: Callable[[nn.Module, int], Any] = lambda model, steps: None,
    ) -> None:
        """`configure` takes the model and the number of steps; it returns what `configure_optimizers` may return."""
        super().__init__()
        self.model = model
        self.objectives = list(objectives)
        self.feeding = feeding
        self.rate = 0.0
        self.confusion: Tensor | None = None
        # Those with parameters of their own, so that Lightning moves and saves them.
        self.goals = nn.ModuleList([goal for goal in self.objectives if isinstance(goal, nn.Module)])
        self.micro = Micro()
        self._configure = configure
        self._sharded = False
        self._weights = [1.0] * len(self.objectives)  # of the current batch in its step
        self._of_step: list[list[float]] = []
        self._meters = {part: Meter(self.objectives) for part in ("train", "val", "test")}

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning sets this about forty times a step, and `nn.Module.__setattr__` is slow.
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    # Two private methods of Lightning, which look up three public hooks for each batch. That takes 27 us, as long as a
    # small layer, also if the module has none of them: only an override of these two leaves it out.

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
        """Shard the parameters (FSDP2) if the strategy made a mesh of processes: first each unit, then the rest.

        The keys stay the same. Lightning may call this again.
        """
        if self.device_mesh is not None and not self._sharded:
            from onnxgen.training.sharded.units import shard

            shard(self.model, self.device_mesh)
            self._sharded = True

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the model's outputs, always as a tuple."""
        made = self.model(*self.feeding.arguments(batch))
        return made if isinstance(made, tuple) else (made,)

    def compute(self, batch: Batch) -> tuple[Tensor, list[Made]]:
        """Return the loss to train (see `_total`), and what each objective computed (`Goal.compute`)."""
        made = self._made(self(batch), batch)
        return self._total(made, self._weights), made

    def _total(self, made: Sequence[Made], weights: Sequence[float]) -> Tensor:
        """Return the sum of the objectives' losses, each with its factor and the weight of its batch in the step."""
        factors = [goal.factor * weight for goal, weight in zip(self.objectives, weights, strict=True)]
        losses = [loss if by == 1 else loss * by for (loss, _, _), by in zip(made, factors, strict=True)]
        return functools.reduce(torch.add, losses)

    def _made(self, outputs: Outputs, batch: Batch) -> list[Made]:
        return [objective.compute(outputs, batch, self.training) for objective in self.objectives]

    def training_step(self, batch: Batch, index: int) -> Tensor:
        self.rate = float(self.trainer.optimizers[0].param_groups[0]["lr"])  # a schedule may change it after the step
        self._weights = self._weights_of_step()
        if self._together:
            loss, made = self.compute(batch)
            self._meters["train"].add(made)
            return loss
        return self.micro.forward(self._trained, batch, self._share)

    # Lightning inspects the method's signature at each step, which is slow without this.
    training_step.__signature__ = inspect.signature(training_step)  # type: ignore[attr-defined]

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if self._together:
            super().backward(loss, *args, **kwargs)
            return
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        first = self.trainer.accumulate_grad_batches == 1  # first and only batch of its step
        scaled = scaler is not None or not first
        for made in self.micro.backward(self._trained, loss, self._share, scaled=scaled, first=first):
            self._meters["train"].add(made)

    @property
    def _trained(self) -> nn.Module:
        """What gets gradients: the model, and goals with parameters of their own."""
        return self if len(self.goals) else self.model

    def _weights_of_step(self) -> list[float]:
        """Return the weight of the current batch in its step, for each objective.

        The last batch may have fewer samples on this process, and the last step fewer batches. Things that do not count
        (padding, tokens without a tag, ignored pixels) are unlike in every batch. A mean loss of all that counts in the
        step is each batch's mean times its count by the mean count of the batches.
        """
        loader = self.trainer.train_dataloader
        if loader is None or not getattr(loader, "step", ()):
            return [float(getattr(loader, "weight", 1.0))] * len(self.objectives)
        if loader.place == 0:
            counts = torch.tensor([self._counts(batch) for batch in loader.step], dtype=torch.float64)
            batches = self.trainer.accumulate_grad_batches * self.trainer.world_size
            self._of_step = (counts * batches / self._summed(counts.sum(0)).clamp_min(1)).tolist()
        return self._of_step[loader.place]

    def _counts(self, batch: Batch) -> list[float]:
        """Return the number of things in the mean of each objective."""
        found = []
        for goal in self.objectives:
            place = self.device if isinstance(goal, nn.Module) else CPU  # its buffers are there
            names = {next(iter(batch)), *goal.columns}
            found.append(float(goal.weight({name: batch[name].to(place) for name in batch if name in names})))
        return found

    @property
    def _together(self) -> bool:
        """True if a batch may not be split: several processes exchange gradients in each backward pass."""
        return self.trainer.world_size > 1 or self._sharded

    def _share(self, part: Batch, whole: Batch) -> tuple[Tensor, list[Made]]:
        """Return a part's share of the whole batch's loss, and the results of `compute` for it."""
        with self.trainer.precision_plugin.train_step_context():
            total, made = self.compute(part)
            if part is not whole:
                if not all(objective.splits for objective in self.objectives):
                    what = "out of memory, and this loss compares all samples of a batch: it can't be computed in parts"
                    raise OnnxgenError(what, help=f"--batch-size {len(next(iter(part.values())))}")
                pairs = zip(self.objectives, self._weights, strict=True)
                total = self._total(made, [goal.share(part, whole) * weight for goal, weight in pairs])
        return total, [(loss.detach(), output.detach(), target) for loss, output, target in made]

    def validation_step(self, batch: Batch, index: int) -> None:
        self._evaluate("val", batch)

    def test_step(self, batch: Batch, index: int) -> None:
        self._evaluate("test", batch)

    def _evaluate(self, part: str, batch: Batch) -> None:
        meter = self._meters[part]

        def compute(piece: Batch) -> tuple[list[Made], Outputs, Batch]:
            outputs = self(piece)
            made = self._made(outputs, piece)
            return made, tuple(y.cpu() for y in outputs) if meter.scored else (), piece

        for made, outputs, piece in self.micro.each(batch, compute):
            meter.add(made)
            if meter.scored:
                meter.score(outputs, {name: column.cpu() for name, column in piece.items()})

    def on_train_epoch_start(self) -> None:
        self._meters["train"] = Meter(self.objectives)

    def on_validation_epoch_start(self) -> None:
        self._meters["val"] = Meter(self.objectives, evaluating=True)

    def on_test_epoch_start(self) -> None:
        self._meters["test"] = Meter(self.objectives, evaluating=True)

    def so_far(self) -> dict[str, float]:
        """Return this process's means of the current training epoch. This waits for the device."""
        return self._meters["train"].means("train", lambda sums: sums)

    def on_validation_epoch_end(self) -> None:
        self._log("val")

    def on_test_epoch_end(self) -> None:
        self._log("test")

    def _log(self, part: str) -> None:
        meter = self._meters[part]
        device = self.device if self.trainer.world_size > 1 else CPU
        for name, value in meter.means(part, self._summed, device).items():
            self.log(name, torch.tensor(value, dtype=torch.float32))
        if part != "train":
            self.confusion = meter.confusion

    def _summed(self, values: Tensor) -> Tensor:
        """Sum values over all processes, so that they log the same numbers."""
        if self.trainer.world_size == 1:
            return values
        found = self.trainer.strategy.reduce(values.to(self.device), None, reduce_op="sum")
        assert isinstance(found, Tensor)
        return found.cpu()

    def configure_optimizers(self) -> Any:
        return self._configure(self.model, int(self.trainer.estimated_stepping_batches))


class LogEpoch(lightning.Callback):
    """Logs a training epoch's means. It must be the first callback; the module's own hook would come after them."""

    def on_sanity_check_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Begin the validation data again: else each validation would have the seed of the epoch after it, and a
        resumed run, which validates nothing before its first step, that of its own epoch.
        """
        loader = trainer.val_dataloaders
        if isinstance(loader, Loader):
            loader.load_state_dict({"epoch": 0, "given": 0})

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        assert isinstance(pl_module, Task)
        pl_module._log("train")
        pl_module.log("lr", pl_module.rate)
