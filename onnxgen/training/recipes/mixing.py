"""Batches whose samples are mixed in pairs: mixup (Zhang et al. 1710.09412) and CutMix (Yun et al. 1905.04899)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning
import numpy as np
import torch
from torch import Tensor

from onnxgen.errors import OnnxgenError
from onnxgen.training.data.images import ToInput
from onnxgen.training.data.prepared import Prepared
from onnxgen.training.data.samples import Batch, Samples
from onnxgen.training.goals.goal import Made, Outputs
from onnxgen.training.loader import epoch_seed
from onnxgen.training.losses import Objective
from onnxgen.training.prepare import Plan
from onnxgen.training.task import Task

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
            given = x[partner.to(x.device)]
            if by_box:
                batch[column], part = _pasted(x, given, axes, share, box)
                left.append(part)
            else:
                batch[column] = x * share + given * (1 - share)
        share = sum(left) / len(left) if left else share
        for target in self.targets:
            y = batch[target]
            pair = y, y[partner.to(y.device)]
            batch[target], batch[other(target)] = pair if share >= 0.5 else pair[::-1]
        batch[SHARE] = torch.full((count,), max(share, 1 - share), device=batch[self.targets[0]].device)


def _pasted(x: Tensor, given: Tensor, axes: tuple[int, int], share: float, center: np.ndarray) -> tuple[Tensor, float]:
    """Return `x` with a box of `given`, and the share of `x` that is left of it.

    The box has the share 1 - `share` of the image, and its center is uniformly distributed; what is outside is cut off.
    """
    found, area, pixels = x.clone(), 1, 1
    place = [slice(None)] * x.ndim
    for axis, at in zip(axes, center, strict=True):
        size = x.shape[axis]
        middle, half = int(at * size), int(size * (1 - share) ** 0.5) // 2
        place[axis] = slice(max(middle - half, 0), min(middle + half, size))
        area, pixels = area * (place[axis].stop - place[axis].start), pixels * size
    found[tuple(place)] = given[tuple(place)]
    return found, 1 - area / pixels


class MixedTask(Task):
    """Trains mixed batches: each sample's loss is the mean of those for its two targets, weighted by their shares.

    Weights of classes and smoothed targets are those of each of the two. The accuracy of training is that of the
    target with the greater share.
    """

    def _made(self, outputs: Outputs, batch: Batch) -> list[Made]:
        made = super()._made(outputs, batch)
        if SHARE not in batch:
            return made
        share = batch[SHARE][0]
        mixed: list[Made] = []
        for objective, (loss, output, target) in zip(self.objectives, made, strict=True):
            assert isinstance(objective, Objective)  # `mixing` refuses others
            second = objective(output, batch[other(objective.column)], self.training)
            mixed.append((loss * share + second * (1 - share), output, target))
        return mixed


def mixing(plan: Plan) -> Mixing | None:
    """Return the callback that the settings ask for, if any.

    Raises:
        OnnxgenError: an output is no classifier of samples, an input has no numbers to mix, or is no image to cut.
    """
    settings, samples = plan.settings, plan.data.train
    if not (settings.mixup or settings.cutmix):
        return None
    assert samples is not None
    asked = "--mixup" if settings.mixup else "--cutmix"
    classifiers = [made for made in plan.objectives if isinstance(made, Objective)]
    if len(classifiers) < len(plan.objectives):
        raise OnnxgenError(f"{asked} does not go with --task {settings.task}", help=f"leave out {asked}")
    for made in classifiers:
        if not made.classes or samples.fields[made.column].shape not in ((), (1,)):
            name = f"output {made.name}" if made.name else "the model"
            what = f"{asked} needs a class for each sample, but {name} is trained with {made.loss}"
            raise OnnxgenError(f"{what} on {list(samples.fields[made.column].shape)}", help=f"leave out {asked}")
    inputs = {}
    for column in plan.feeding.inputs:
        if not samples.fields[column].dtype.is_floating_point:
            what = f"{asked} mixes numbers, but input {column!r} is {samples.fields[column].dtype}"
            raise OnnxgenError(what, help=f"leave out {asked}")
        axes = _image_axes(samples, column)
        if settings.cutmix and axes is None:
            shape = list(samples.fields[column].shape)
            raise OnnxgenError(f"--cutmix needs images, but input {column!r} is {shape}", help="--mixup 0.2")
        inputs[column] = axes or (0, 0)
    targets = tuple(made.column for made in classifiers)
    return Mixing(settings.seed, settings.mixup, settings.cutmix, inputs, targets)


def _image_axes(samples: Samples, column: str) -> tuple[int, int] | None:
    """Return the axes of height and width in a batch of an input; None if it is no image."""
    step = samples.steps[column] if isinstance(samples, Prepared) else None
    axes = step.frame.axes if isinstance(step, ToInput) else "CHW"
    shape = samples.fields[column].shape
    if "H" not in axes or len(shape) != len(axes):
        return None
    return axes.index("H") + 1, axes.index("W") + 1
