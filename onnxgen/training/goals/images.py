"""`--task image-to-image`: an image, or a map of numbers, of an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import MeanAbsoluteError, MeanSquaredError
from torchmetrics.image import PeakSignalNoiseRatio, StructuralSimilarityIndexMeasure

from onnxgen.errors import OnnxgenError
from onnxgen.training.data.image_options import Scale, scale_text
from onnxgen.training.data.images import ToInput
from onnxgen.training.data.samples import Batch
from onnxgen.training.endings import VIEWS
from onnxgen.training.goals.goal import Goal, Outputs, Scores, Shown
from onnxgen.training.goals.outputs import PLACES, asked_loss, trained_output
from onnxgen.training.runs.record import Target

if TYPE_CHECKING:
    from onnxgen.training.tasks.card import Situation

SMALLEST = 11  # pixels of the window of SSIM (Wang et al. 2004)
_BOUNDED = {"TanhBackward0": (-1.0, 1.0), "SigmoidBackward0": (0.0, 1.0), "HardsigmoidBackward0": (0.0, 1.0)}
_RANGES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))  # of pixels


@dataclass(frozen=True)
class Images(Goal):
    """A loss of all numbers of an image; the mean over samples.

    Attributes:
        output: the index of the output, [n, C, H, W], [n, H, W, C] or [n, H, W]; the target has its shape.
        axes: "CHW", "HWC" or "HW".
        scale: the output is (image - mean) / deviation of each channel, of an image from 0 to 1; None: the target is
            not an image but numbers, as they are stored.
        loss: "l1" and so on, in the range of the output.
        small: True if images are too small for SSIM.
        order: of the colours of an image: "RGB" or "BGR".
    """

    output: int
    output_name: str
    column: str
    axes: str
    scale: Scale | None
    loss: str = "l1"
    small: bool = False
    order: str = "RGB"
    name: str = ""
    classes: int = 0
    said: tuple[str, ...] = ()

    @property
    def monitor(self) -> str:  # type: ignore[override]
        return "mean_absolute_error" if self.scale is None else "psnr"

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.column,)

    def mean_loss(self, outputs: Outputs, batch: Batch, training: bool) -> Tensor:
        image, target = outputs[self.output].float(), batch[self.column].float()
        if self.scale is not None:
            mean, deviation = self._by_channel(target)
            target = (target - mean) / deviation
        return PLACES[self.loss](image, target)

    def _by_channel(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and deviation of each channel, to be combined with images."""
        assert self.scale is not None
        shape = {"CHW": (1, -1, 1, 1), "HWC": (1, 1, 1, -1), "HW": (1, 1, -1)}[self.axes]
        mean, deviation = (x.new_tensor(values).view(shape) for values in self.scale)
        return mean, deviation

    def answered(self, outputs: Outputs) -> Tensor:
        """Return what the model answers in the range of the stored targets: images from 0 to 1, or numbers."""
        image = outputs[self.output].float()
        if self.scale is None:
            return image
        mean, deviation = self._by_channel(image)
        return (image * deviation + mean).clamp(0, 1)

    def compared(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return answers and targets [n, C, H, W] for metrics."""
        image, target = self.answered(outputs), batch[self.column].float()
        if self.axes == "HWC":
            return image.permute(0, 3, 1, 2).contiguous(), target.permute(0, 3, 1, 2).contiguous()
        return (image, target) if self.axes == "CHW" else (image[:, None], target[:, None])

    def scores(self) -> Scores:
        metrics: dict[str, Any]
        if self.scale is None:
            metrics = {
                "mean_absolute_error": MeanAbsoluteError(),
                "root_mean_squared_error": MeanSquaredError(squared=False),
            }
        else:
            metrics = {"psnr": PeakSignalNoiseRatio(data_range=1.0, dim=(1, 2, 3))}
            metrics |= {} if self.small else {"ssim": StructuralSimilarityIndexMeasure(data_range=1.0)}
        return Scores(metrics, self.compared)

    def target(self) -> Target | None:
        kind = self.loss if self.scale is None else "image"
        how = "" if self.scale is None else scale_text(self.scale)
        axis = -1 if self.axes == "HW" else 1 if self.axes == "CHW" else 3
        return Target(self.output, self.output_name, self.column, kind, "", 0, axis, (), scale=how, order=self.order)

    def shown(self, outputs: Outputs, batch: Batch, place: int, names: Sequence[str]) -> Shown | None:
        pair = [x[place] for x in reversed(self.compared(outputs, batch))]
        if pair[0].shape[0] not in (1, 3):
            return None
        pair = [x.flip(0) for x in pair] if self.order == "BGR" else pair
        if self.scale is None:
            low, high = pair[0].amin(), pair[0].amax()
            pair = [(x - low) / (high - low).clamp_min(1e-12) for x in pair]
        truth, answer = (x.clamp(0, 1).mul(255).round().to(torch.uint8).permute(1, 2, 0) for x in pair)
        return Shown("input, target, answer", pictures=(truth, answer))


def make(situation: Situation) -> list[Goal]:
    """Return the goal of `--task image-to-image`. Raises `OnnxgenError` if output, target or loss do not fit."""
    (column,) = situation.feeding.others
    step = getattr(situation.samples, "steps", {}).get(column)
    target, loss = situation.batch[column], asked_loss(situation, "l1", "--loss l1 or mse")
    wanted = f"an output like column {column!r}, {list(target.shape)}"
    output = trained_output(situation, lambda candidate: candidate.shape == target.shape, wanted)
    axes = step.frame.axes if isinstance(step, ToInput) else {3: "HW", 4: "CHW"}.get(target.ndim, "")
    if not axes:
        raise OnnxgenError(f"column {column!r} is {list(target.shape)}, which are no images", help="give [n, C, H, W]")
    small = min(size for axis, size in zip(axes, target.shape[1:]) if axis != "C") < SMALLEST
    scale, note = None, f"column {column!r} is taken as it is stored"
    if isinstance(step, ToInput) and step.scale is not None:
        scale, note = _range(situation, output, axes, target)
    note = f"{note}; output {situation.names[output]} is trained with {loss}"
    note += f"; no ssim, which needs {SMALLEST} pixels in both directions" if small and scale is not None else ""
    order = "BGR" if isinstance(step, ToInput) and step.reversed else "RGB"
    return [Images(output, situation.names[output], column, axes, scale, loss, small, order, said=(note,))]


def _range(situation: Situation, output: int, axes: str, target: Tensor) -> tuple[Scale, str]:
    """Return the range that the target gets, and a sentence why: that of the output's last operation, else that of the
    input.
    """
    (column,), channels = situation.feeding.others, 1 if axes == "HW" else target.shape[1 + axes.index("C")]
    step = getattr(situation.samples, "steps", {}).get(situation.feeding.inputs[0])
    if (bounds := _bounds(situation.outputs[output].grad_fn)) in _RANGES:
        low, high = bounds
        why = f"{column} goes from {low:g} to {high:g}, as output {situation.names[output]} does"
        return (((0.0 - low) / (high - low),) * channels, (1 / (high - low),) * channels), why
    if not isinstance(step, ToInput):
        return ((0.0,) * channels, (1.0,) * channels), f"{column} goes from 0 to 1"
    if step.scale is None:
        scale = (0.0,) * channels, (1 / step.white,) * channels
        return scale, f"{column} goes from 0 to {step.white:g}, as the input"
    mean, deviation = step.scale
    if len(mean) != channels:
        if len({*mean}) > 1 or len({*deviation}) > 1:
            what = f"the range of output {situation.names[output]} is open: the input has {scale_text(step.scale)}"
            raise OnnxgenError(what, help="give one mean and deviation for all channels: --normalize 0,1")
        mean, deviation = mean[:1] * channels, deviation[:1] * channels
    return (mean, deviation), f"{column} is scaled like the input"


def _bounds(step: Any) -> tuple[float, float] | None:
    """Return between which numbers the last operation that is no view keeps its results; None if it does not say."""
    while step is not None:
        name, before = step.name(), [inner for inner, _ in step.next_functions if inner is not None]
        if name in _BOUNDED:
            return _BOUNDED[name]
        for low, high in (("_saved_min", "_saved_max"), ("_saved_min_val", "_saved_max_val")):
            limits = getattr(step, low, None), getattr(step, high, None)
            if all(isinstance(limit, (int, float)) for limit in limits):
                return float(limits[0]), float(limits[1])  # type: ignore[arg-type]
        if name.rpartition("Backward")[0] not in VIEWS or len(before) != 1:
            return None
        step = before[0]
    return None
