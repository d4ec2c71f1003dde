"""`--train-size`: in a training step, images have another size than the network gets them in everywhere else.

Training then costs a fraction. Objects look larger afterwards than in training, so the sizes must not be far apart
(Touvron et al., 1906.06423). Targets that are shares of an image, such as boxes, are those of the resized one, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError, typed
from onnxgen.surgery.ports import undisturbed
from onnxgen.training.config import parse_size
from onnxgen.training.data.arrays import Prepared
from onnxgen.training.data.images import ToInput
from onnxgen.training.data.samples import Batch, Feeding, Samples
from onnxgen.training.goals.goal import Goal
from onnxgen.training.model import as_tuple, trial_batch
from onnxgen.training.settings import Settings

LEAVE_OUT = "leave --train-size out"


@dataclass(frozen=True)
class Smaller:
    """Resizes the images of a batch, bilinearly; with a wider filter if they get smaller.

    Attributes:
        axes: of each column of images, such as "CHW".
        size: height and width.
    """

    axes: Mapping[str, str]
    size: tuple[int, int]

    def __call__(self, batch: Batch) -> Batch:
        return {n: self._resized(x, self.axes[n]) if n in self.axes else x for n, x in batch.items()}

    def _resized(self, x: Tensor, axes: str) -> Tensor:
        images = x.unsqueeze(1) if axes == "HW" else x.permute(0, 3, 1, 2) if axes == "HWC" else x
        images = F.interpolate(images, self.size, mode="bilinear", align_corners=False, antialias=True)
        return images.squeeze(1) if axes == "HW" else images.permute(0, 2, 3, 1) if axes == "HWC" else images


def smaller_of(samples: Samples, feeding: Feeding, settings: Settings) -> Smaller | None:
    """Return what resizes the images of a training step; None if the settings don't ask for it.

    Raises `OnnxgenError` if the data has no images with axes, or the size has other proportions than theirs.
    """
    if settings.train_size is None:
        return None
    size, axes = parse_size(settings.train_size), {}
    steps = samples.steps if isinstance(samples, Prepared) else {}
    for column in feeding.inputs:
        step = steps.get(column)
        if not isinstance(step, ToInput) or step.frame.axes == "flat" or not step.dtype.is_floating_point:
            continue
        height, width = step.frame.height, step.frame.width
        if height * size[1] != width * size[0]:
            what = f"--train-size {settings.train_size} has other proportions than the network's {height}x{width}"
            raise OnnxgenError(what, help=f"--train-size {size[0]}x{max(round(size[0] * width / height), 1)}")
        axes[column] = step.frame.axes
    if not axes:
        what = f"--train-size {settings.train_size}: the data has no images that are fed as such"
        raise OnnxgenError(what, help=LEAVE_OUT)
    return Smaller(axes, size)


def try_smaller(
    model: nn.Module, samples: Samples, feeding: Feeding, goals: Sequence[Goal], settings: Settings
) -> list[str]:
    """Try a step with smaller images. Returns a note.

    Raises `OnnxgenError` if the network fails on them, or its outputs don't fit the targets any more.
    """
    if (smaller := smaller_of(samples, feeding, settings)) is None:
        return []
    batch, device = trial_batch(model, samples, settings.seed), next(model.parameters()).device
    try:
        with undisturbed(model):
            outputs = as_tuple(model(*feeding.arguments(smaller(batch), device)))
            for goal in goals:
                goal.compute(tuple(output.cpu() for output in outputs), batch, training=False)
    except Exception as error:  # the network's code may raise anything
        what = f"the network can't be trained on images of {settings.train_size}: {typed(error, 200)}"
        raise OnnxgenError(what, help=f"{LEAVE_OUT}, or name a multiple of 32") from error
    height, width = smaller.size
    steps = getattr(samples, "steps", {}).values()
    own = next(step.frame for step in steps if isinstance(step, ToInput))
    return [f"trained on images of {height}x{width}; validated, evaluated and exported at {own.height}x{own.width}"]
