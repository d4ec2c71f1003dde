"""The recipes of a run that are callbacks: weight averaging, mixup and CutMix.

`recipes` makes the callbacks that a run asks for. `Average` is the mean of the weights over the
steps (Polyak & Juditsky 1992), decaying exponentially. `Mixing` mixes the samples of a batch in
pairs: mixup (Zhang et al. 1710.09412) and CutMix (Yun et al. 1905.04899).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import lightning
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.swa_utils import get_ema_multi_avg_fn

from onnxgen.errors import OnnxgenError
from onnxgen.training.data.arrays import Prepared
from onnxgen.training.data.images import ToInput
from onnxgen.training.data.samples import Batch, Samples
from onnxgen.training.finetune.gradual import HeadFirst
from onnxgen.training.goals.goal import Made, Outputs
from onnxgen.training.loader import epoch_seed
from onnxgen.training.losses import Objective
from onnxgen.training.model import trial_batch
from onnxgen.training.optimizers import WithoutLerp
from onnxgen.training.prepare import Plan
from onnxgen.training.task import Task


class Used:
    """The callbacks of a run's recipes.

    Attributes:
        mixing: those that change what a step trains on.
        callbacks: all, in the order in which they must come.
    """

    def __init__(self, mixing: list[lightning.Callback], average: Average | None, head: HeadFirst | None) -> None:
        self.mixing, self._average = mixing, average
        self.callbacks: list[lightning.Callback] = [*mixing, *([head] if head else []), *([average] if average else [])]

    def averaged(self) -> AbstractContextManager[None]:
        """In this context the model has the weights to keep."""
        return nullcontext() if self._average is None else self._average.in_place()

    def end(self) -> None:
        """Leave the weights to keep in the model."""
        if self._average is not None:
            self._average.put()


def recipes(plan: Plan) -> Used:
    """Return the recipes that a plan's settings ask for.

    Raises:
        OnnxgenError: one does not fit the model or the data.
    """
    settings, mixed = plan.settings, mixing(plan)
    average = None if settings.ema is None else Average(settings.ema, lerp=not plan.device.plain_optimizers)
    return Used([mixed] if mixed else [], average, _head_first(plan) if settings.head_first else None)


def _head_first(plan: Plan) -> HeadFirst:
    batch = trial_batch(plan.model, plan.train, plan.settings.seed)
    device = next(plan.model.parameters()).device
    example = tuple(plan.feeding.arguments(batch, device))
    return HeadFirst(plan.model, plan.settings.head_first, example, plan.head)


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
        resumed = {name: mean for name, mean in self._averages.items() if name in self._averaged}
        self._averages = {name: mean.to(self._averaged[name].device) for name, mean in resumed.items()}

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


SHARE = "(share)"  # a column of a mixed batch: how much of each sample is left, at least one half


def other(column: str) -> str:
    """Return the column of a mixed batch with the targets of the samples that were mixed in."""
    return f"({column} of the other)"


class Mixing(lightning.Callback):
    """Mixes each training batch on its device. What is drawn depends on seed, epoch, batch and share of the data alone.

    With both, each batch is mixed by one of the two, with equal chances.

    Args:
        seed: of the run.
        mixup, cutmix: the parameter of the Beta distribution of the share; 0: off.
        inputs: the columns to mix, with the places of height and width among the batch's axes (only for `cutmix`).
        targets: columns with a class for each sample.
    """

    def __init__(
        self, seed: int, mixup: float, cutmix: float, inputs: Mapping[str, tuple[int, int]], targets: tuple[str, ...]
    ) -> None:
        self.seed, self.mixup, self.cutmix, self.inputs, self.targets = seed, mixup, cutmix, inputs, targets

    def on_train_batch_start(self, trainer: lightning.Trainer, pl_module: Any, batch: Batch, index: int) -> None:
        loader: Any = trainer.train_dataloader
        position = loader.state_dict()
        words = [epoch_seed(self.seed, position["epoch"]), position["given"], trainer.global_rank]
        self.mix(batch, np.random.default_rng(words))

    def mix(self, batch: Batch, random: np.random.Generator) -> None:
        """Mix a batch in place: its inputs, and the columns that `MixedTask` reads."""
        count = len(batch[self.targets[0]])
        by_box = self.cutmix > 0 and (not self.mixup or random.random() < 0.5)
        alpha = self.cutmix if by_box else self.mixup
        share, partner = float(random.beta(alpha, alpha)), torch.from_numpy(random.permutation(count))
        box = random.random(2)
        left = []  # of each input
        for column, axes in self.inputs.items():
            x = batch[column]
            partners = x[partner.to(x.device)]
            if by_box:
                batch[column], part = _pasted(x, partners, axes, share, box)
                left.append(part)
            else:
                batch[column] = x * share + partners * (1 - share)
        share = sum(left) / len(left) if left else share
        for target in self.targets:
            y = batch[target]
            pair = y, y[partner.to(y.device)]
            batch[target], batch[other(target)] = pair if share >= 0.5 else pair[::-1]
        batch[SHARE] = torch.full((count,), max(share, 1 - share), device=batch[self.targets[0]].device)


def _pasted(x: Tensor, source: Tensor, axes: tuple[int, int], share: float, center: np.ndarray) -> tuple[Tensor, float]:
    """Return `x` with a box of `source`, and the share of `x` that is left of it.

    The box has the share 1 - `share` of the image, and its center is uniformly distributed; what is outside is cut off.
    """
    pasted, area, pixels = x.clone(), 1, 1
    place = [slice(None)] * x.ndim
    for axis, at in zip(axes, center, strict=True):
        size = x.shape[axis]
        middle, half = int(at * size), int(size * (1 - share) ** 0.5) // 2
        place[axis] = slice(max(middle - half, 0), min(middle + half, size))
        area, pixels = area * (place[axis].stop - place[axis].start), pixels * size
    pasted[tuple(place)] = source[tuple(place)]
    return pasted, 1 - area / pixels


class MixedTask(Task):
    """Trains mixed batches: each sample's loss is the mean of those for its two targets, weighted by their shares.

    Weights of classes and smoothed targets are those of each of the two. The accuracy of training is that of the
    target with the greater share.
    """

    def _computed(self, outputs: Outputs, batch: Batch) -> list[Made]:
        computed = super()._computed(outputs, batch)
        if SHARE not in batch:
            return computed
        share = batch[SHARE][0]
        mixed: list[Made] = []
        for objective, (loss, output, target) in zip(self.objectives, computed, strict=True):
            assert isinstance(objective, Objective)  # `mixing` refuses others
            second = objective(output, batch[other(objective.column)], self.training)
            mixed.append((loss * share + second * (1 - share), output, target))
        return mixed


def mixing(plan: Plan) -> Mixing | None:
    """Return the callback that the settings ask for, if any.

    Raises:
        OnnxgenError: an output is no classifier of samples, an input has no numbers to mix, or is no image to cut.
    """
    settings, samples = plan.settings, plan.train
    if not (settings.mixup or settings.cutmix):
        return None
    asked = "--mixup" if settings.mixup else "--cutmix"
    targets, inputs = _mixed_targets(plan, samples, asked), {}
    for column in plan.feeding.inputs:
        field, axes = samples.fields[column], _image_axes(samples, column)
        if not field.dtype.is_floating_point:
            what = f"{asked} mixes numbers, but input {column!r} is {field.dtype}"
            raise OnnxgenError(what, help=f"leave out {asked}")
        if settings.cutmix and axes is None:
            what = f"--cutmix needs images, but input {column!r} is {list(field.shape)}"
            raise OnnxgenError(what, help="--mixup 0.2")
        inputs[column] = axes or (0, 0)
    return Mixing(settings.seed, settings.mixup, settings.cutmix, inputs, targets)


def _mixed_targets(plan: Plan, samples: Samples, asked: str) -> tuple[str, ...]:
    """Return the columns of the targets. Raise `OnnxgenError` if one is not a class for each sample."""
    classifiers = [goal for goal in plan.objectives if isinstance(goal, Objective)]
    if len(classifiers) < len(plan.objectives):
        raise OnnxgenError(f"{asked} does not go with --task {plan.settings.task}", help=f"leave out {asked}")
    for goal in classifiers:
        shape = samples.fields[goal.column].shape
        if not goal.classes or shape not in ((), (1,)):
            name = f"output {goal.name}" if goal.name else "the model"
            what = f"{asked} needs a class for each sample, but {name} is trained with {goal.loss} on {list(shape)}"
            raise OnnxgenError(what, help=f"leave out {asked}")
    return tuple(goal.column for goal in classifiers)


def _image_axes(samples: Samples, column: str) -> tuple[int, int] | None:
    """Return the axes of height and width in a batch of an input; None if it is no image."""
    step = samples.steps[column] if isinstance(samples, Prepared) else None
    axes = step.frame.axes if isinstance(step, ToInput) else "CHW"
    shape = samples.fields[column].shape
    if "H" not in axes or len(shape) != len(axes):
        return None
    return axes.index("H") + 1, axes.index("W") + 1
