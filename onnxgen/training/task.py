"""The LightningModule of a run: a model with its objectives and the data's columns.

`Meter` averages an epoch's losses, weighted exactly, and the accuracy of classifiers. `QUIET` and
`lean` turn off the output and other defaults of Lightning's Trainer.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning
import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.profilers import PassThroughProfiler
from torch import Tensor, nn
from torchmetrics.classification import MulticlassConfusionMatrix

from onnxgen.errors import OnnxgenError
from onnxgen.training.data.samples import Batch, Feeding
from onnxgen.training.goals.goal import IGNORED_CLASS, Goal, Made, Outputs, suffixed
from onnxgen.training.loader import Loader
from onnxgen.training.logits import Noting
from onnxgen.training.memory import Micro
from onnxgen.training.model import as_tuple

GOALS = "goals."  # the prefix of the goals' tensors in a checkpoint


class Task(lightning.LightningModule):
    """Trains `model` towards its objectives.

    It logs `train_loss`, `val_loss` and `test_loss` at the end of each epoch, accuracies for a classifier, and the
    goals' other metrics of validation and test.

    Attributes:
        model: the generated model; the keys of its `state_dict` are those of the generated file.
        smaller: resizes the images of a training step (`--train-size`).
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
        self.smaller: Callable[[Batch], Batch] | None = None
        self._configure = configure
        self._sharded = False
        self._weights = [1.0] * len(self.objectives)  # of the current batch in its step
        self._of_step: list[list[float]] = []
        self._meters = {part: Meter(self.objectives) for part in ("train", "val", "test")}

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning sets this about forty times a step, and `nn.Module.__setattr__` is slow. No hook leaves it out.
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        if all(column.device == device for column in batch.values()):
            return batch
        moved: Batch = move_data_to_device(batch, device)
        return moved

    def configure_model(self) -> None:
        """Shard the parameters (FSDP2) if the strategy made a mesh of processes: first each unit, then the rest.

        The keys stay the same. Lightning may call this again.
        """
        if self.device_mesh is not None and not self._sharded:
            from onnxgen.training.sharded.strategy import shard

            shard(self.model, self.device_mesh)
            self._sharded = True

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the model's outputs, always as a tuple."""
        fed = self.smaller(batch) if self.training and self.smaller is not None else batch
        with Noting() if self._notes else nullcontext():
            return as_tuple(self.model(*self.feeding.arguments(fed)))

    def compute(self, batch: Batch) -> tuple[Tensor, list[Made]]:
        """Return the loss to train (see `_total`), and what each objective computed (`Goal.compute`)."""
        computed = self._computed(self(batch), batch)
        return self._total(computed, self._weights), computed

    @property
    def _notes(self) -> bool:
        """True if a loss may need the logits of probabilities. Of a compiled model no function inside is seen."""
        is_compiled = hasattr(self.model, "_orig_mod") or self.model._compiled_call_impl is not None
        return not is_compiled and any(goal.needs_logits for goal in self.objectives)

    def _total(self, computed: Sequence[Made], weights: Sequence[float]) -> Tensor:
        """Return the sum of the objectives' losses, each with its factor and the weight of its batch in the step."""
        factors = [goal.factor * weight for goal, weight in zip(self.objectives, weights, strict=True)]
        losses = [loss if by == 1 else loss * by for (loss, _, _), by in zip(computed, factors, strict=True)]
        return functools.reduce(torch.add, losses)

    def _computed(self, outputs: Outputs, batch: Batch) -> list[Made]:
        return [objective.compute(outputs, batch, self.training) for objective in self.objectives]

    def training_step(self, batch: Batch, index: int) -> Tensor:
        self.rate = float(self.trainer.optimizers[0].param_groups[0]["lr"])  # a schedule may change it after the step
        self._weights = self._weights_of_step()
        if self._together:
            loss, computed = self.compute(batch)
            self._meters["train"].add(computed)
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
        for computed in self.micro.backward(self._trained, loss, self._share, scaled=scaled, first=first):
            self._meters["train"].add(computed)

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
        counts = []
        for goal in self.objectives:
            place = self.device if isinstance(goal, nn.Module) else CPU  # its buffers are there
            names = {next(iter(batch)), *goal.columns}
            counts.append(float(goal.weight({name: batch[name].to(place) for name in batch if name in names})))
        return counts

    @property
    def _together(self) -> bool:
        """True if a batch may not be split: several processes exchange gradients in each backward pass."""
        return self.trainer.world_size > 1 or self._sharded

    def _share(self, part: Batch, whole: Batch) -> tuple[Tensor, list[Made]]:
        """Return a part's share of the whole batch's loss, and the results of `compute` for it."""
        with self.trainer.precision_plugin.train_step_context():
            total, computed = self.compute(part)
            if part is not whole:
                if not all(objective.splits for objective in self.objectives):
                    what = "out of memory, and this loss compares all samples of a batch: it can't be computed in parts"
                    raise OnnxgenError(what, help=f"--batch-size {len(next(iter(part.values())))}")
                pairs = zip(self.objectives, self._weights, strict=True)
                total = self._total(computed, [goal.share(part, whole) * weight for goal, weight in pairs])
        return total, [(loss.detach(), output.detach(), target) for loss, output, target in computed]

    def validation_step(self, batch: Batch, index: int) -> None:
        self._evaluate("val", batch)

    def test_step(self, batch: Batch, index: int) -> None:
        self._evaluate("test", batch)

    def _evaluate(self, part: str, batch: Batch) -> None:
        meter = self._meters[part]

        def compute(piece: Batch) -> tuple[list[Made], Outputs, Batch]:
            outputs = self(piece)
            computed = self._computed(outputs, piece)
            return computed, tuple(y.cpu() for y in outputs) if meter.scored else (), piece

        for computed, outputs, piece in self.micro.each(batch, compute):
            meter.add(computed)
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
        total = self.trainer.strategy.reduce(values.to(self.device), None, reduce_op="sum")
        assert isinstance(total, Tensor)
        return total.cpu()

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


FLUSH = 256  # batches between two transfers from the device, each of which waits for it
MAX_HELD_ELEMENTS = 1 << 18  # of outputs not counted yet; counting many batches at once is faster
MAX_CONFUSION_CLASSES = 1000

CPU = torch.device("cpu")

Row = list[Tensor | int]


class Meter:
    """Collects batches on the device without waiting for it, and adds them up in float64 on the CPU now and then.

    Attributes:
        sums: [objectives, 4] float64: sum of loss times count, count, correct predictions, predictions.
        confusion: the confusion matrix of the first classifier, if `evaluating`; rows are the true classes.
    """

    def __init__(self, objectives: Sequence[Goal], evaluating: bool = False) -> None:
        self.objectives = objectives
        self.sums = torch.zeros(len(objectives), 4, dtype=torch.float64)
        self._held: list[list[Made]] = [[] for _ in objectives]  # batches not counted yet
        self._held_elements = 0  # of their outputs
        self._pending: list[list[Row]] = [[] for _ in objectives]  # rows of counted batches, still on the device
        classifiers = [i for i, o in enumerate(objectives) if 2 <= o.classes <= MAX_CONFUSION_CLASSES]
        self._shown = classifiers[0] if evaluating and classifiers else None
        self._matrix = None
        if self._shown is not None:
            self._matrix = MulticlassConfusionMatrix(
                objectives[self._shown].classes, ignore_index=IGNORED_CLASS, validate_args=False, sync_on_compute=False
            )

        self._scores = [objective.scores() if evaluating else None for objective in objectives]

    @property
    def scored(self) -> bool:
        """True if `score` must be called with each batch."""
        return any(self._scores)

    def score(self, outputs: Outputs, batch: Batch) -> None:
        """Add a batch on the CPU to the metrics that are neither loss nor accuracy."""
        for scores in filter(None, self._scores):
            scores.update(outputs, batch)

    def add(self, computed: Sequence[Made]) -> None:
        """Add a batch."""
        for held, (loss, output, target) in zip(self._held, computed, strict=True):
            held.append((loss.detach(), output.detach(), target))
            self._held_elements += output.numel()
        if len(self._held[0]) + len(self._pending[0]) >= FLUSH:
            self.flush()
        elif self._held_elements >= MAX_HELD_ELEMENTS:
            self._count()

    def _count(self) -> None:
        """Reduce the held outputs to rows of numbers on the device, without waiting for it."""
        with torch.no_grad():
            for index, (objective, held) in enumerate(zip(self.objectives, self._held, strict=True)):
                self._pending[index] += [self._row(index, objective, *batch) for batch in held]
                held.clear()
        self._held_elements = 0

    def _row(self, index: int, goal: Goal, loss: Tensor, output: Tensor, target: Tensor) -> Row:
        chosen = goal.chosen(output) if goal.classes else None
        if chosen is not None and index == self._shown and self._matrix is not None:
            self._matrix.update(chosen.flatten().cpu(), target.long().flatten().cpu())
        return goal.row(loss, output, target, chosen)

    def flush(self) -> None:
        """Add the pending rows to `sums`."""
        self._count()
        for index, rows in enumerate(self._pending):
            sums = self.sums[index].tolist()
            # Row by row, so that the last bit of the sums does not depend on when they are fetched.
            for loss, count, *decided in zip(*map(_fetched, zip(*rows, strict=True)), strict=True):
                for column, value in enumerate((loss * count, count, *decided)):
                    sums[column] += value
            self.sums[index] = torch.tensor(sums, dtype=torch.float64)
            rows.clear()

    @property
    def confusion(self) -> Tensor | None:
        return None if self._matrix is None else self._matrix.confmat

    def means(self, part: str, reduce: Callable[[Tensor], Tensor], device: torch.device = CPU) -> dict[str, float]:
        """Return `{part}_loss`, `{part}_accuracy` if there is a classifier, and the metrics of an evaluation.

        Several outputs also get their own losses and accuracies. The loss of all is the sum that is trained, in which
        each has its factor.

        Args:
            part: "train", "val" or "test".
            reduce: sums a tensor over all processes.
            device: where processes can exchange tensors.
        """
        self.flush()
        sums = reduce(self.sums)
        losses = (sums[:, 0] / sums[:, 1].clamp_min(1)).tolist()
        means = {f"{part}_loss": sum(goal.factor * loss for goal, loss in zip(self.objectives, losses, strict=True))}
        right = [(o, (sums[i, 2] / sums[i, 3].clamp_min(1)).item()) for i, o in enumerate(self.objectives) if o.classes]
        if right:
            means[f"{part}_accuracy"] = sum(value for _, value in right) / len(right)
        if len(self.objectives) > 1:
            means |= {f"{part}_loss_{o.name}": value for o, value in zip(self.objectives, losses, strict=True)}
            means |= {f"{part}_accuracy_{o.name}": value for o, value in right} if len(right) > 1 else {}
        if self._matrix is not None:
            self._matrix.confmat = reduce(self._matrix.confmat)
        for goal, scores in zip(self.objectives, self._scores, strict=True):
            scored = scores.compute(device) if scores is not None else {}
            means |= {f"{part}_{suffixed(self.objectives, goal, name)}": value for name, value in scored.items()}
        return means


def _fetched(values: Sequence[Tensor | int]) -> list[float]:
    """Copy scalars to the CPU in one transfer."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    return torch.stack(tensors).tolist() if tensors else list(values)  # type: ignore[arg-type]


# No progress bar, summary and checkpoints of Lightning, and no validation before the first step.
QUIET: dict[str, Any] = {
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "logger": False,
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,
}


class Unmeasured(PassThroughProfiler):
    """Lightning's profiler that measures nothing, without the generator that it makes about twenty times a step."""

    _nothing: AbstractContextManager[None] = nullcontext()

    def profile(self, action_name: str) -> Any:
        return self._nothing


# The hooks that Lightning calls at every step, for each callback and the module.
EACH_STEP = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)


def lean(*hooked: lightning.Callback | lightning.LightningModule) -> None:
    """Remove the hooks of `EACH_STEP` that do nothing, so that Lightning does not call them.

    A call (with a profiler's context and a note of the hook's name) takes longer than a layer of a small network.
    Lightning skips a hook that is not callable.
    """
    for one in hooked:
        base = lightning.Callback if isinstance(one, lightning.Callback) else lightning.LightningModule
        for name in EACH_STEP:
            if getattr(type(one), name) is getattr(base, name):
                setattr(one, name, None)


def ends_epoch(trainer: lightning.Trainer) -> bool:
    """Return True at the end of an epoch's last batch."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    return progress.is_last_batch or progress.current.ready == trainer.num_training_batches


def ends_run(trainer: lightning.Trainer) -> bool:
    """Return True after the last step, if the number of steps was asked for."""
    return trainer.max_steps != -1 and trainer.global_step >= trainer.max_steps


def stepped(trainer: lightning.Trainer) -> bool:
    """Return True at the end of a batch after which the optimizer made a step; else more gradients are added first."""
    ready = trainer.fit_loop.epoch_loop.batch_progress.current.ready
    return ready % trainer.accumulate_grad_batches == 0 or ends_epoch(trainer)


def metrics(trainer: lightning.Trainer) -> dict[str, float]:
    """Return the currently logged metrics as numbers."""
    return {name: float(value) for name, value in trainer.callback_metrics.items()}
