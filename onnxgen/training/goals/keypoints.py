"""`--task keypoints`: places in an image, as numbers or as heatmaps (Xiao et al. 1804.06208)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import MeanMetric

from onnxgen.errors import OnnxgenError
from onnxgen.training.data.arrays import Values
from onnxgen.training.data.images import ToInput
from onnxgen.training.data.samples import Batch, Samples
from onnxgen.training.endings import Ending, ending_of
from onnxgen.training.goals.goal import Goal, Outputs, Scores
from onnxgen.training.goals.outputs import PLACES, asked_loss, peaks, refuse_augment, trained_output
from onnxgen.training.runs.record import Target

if TYPE_CHECKING:
    from onnxgen.training.tasks.card import Situation

NEAR = 0.05  # of the image's diagonal
WIDEST = 32  # the deviation of a heatmap's peak is its longer side by this: 2 pixels of 64, as in the paper
MOVES = ("flip", "vflip", "rotate", "shift", "crop")


@dataclass(frozen=True)
class Keypoints(Goal):
    """A loss of K places in each sample, in mean over all K: one that is not visible has the loss 0.

    The target is [n, K, 2], or [n, K, 3] with a number above 0 for each visible keypoint. Places are x and y, as shares
    of width and height: 0, 0 is the corner at the upper left of the image, and 1, 1 that at the lower right.

    Attributes:
        output: the index of the output [n, 2K], [n, K, 2] or [n, K, 3], or of heatmaps [n, K, H, W]. The third number
            of a keypoint is the logit (or, after a sigmoid, the probability) that it is visible.
        shape: of one sample's output.
        size: width and height of the input's image; only their ratio counts if places are shares.
        pixels: width and height of the image as it is stored, if places of targets are its pixels, and those of outputs
            pixels of the input; None if they are shares.
        loss: "l1" and so on, of shares; of heatmaps always "mse".
    """

    output: int
    output_name: str
    column: str
    shape: tuple[int, ...]
    size: tuple[float, float]
    loss: str = "l1"
    pixels: tuple[float, float] | None = None
    ending: Ending = Ending()
    name: str = ""
    classes: int = 0
    monitor: str = "keypoint_error"
    said: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.column,)

    @property
    def of_maps(self) -> bool:
        return len(self.shape) == 3

    def wanted(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the places as shares [n, K, 2], and whether they are visible [n, K]."""
        column = batch[self.column].float()
        visible = column[..., 2] > 0 if column.shape[2] == 3 else torch.ones_like(column[..., 0], dtype=torch.bool)
        return _shares(column[..., :2], self.pixels), visible

    def places(self, outputs: Outputs) -> Tensor:
        """Return the places that are predicted, as shares [n, K, 2]."""
        raw = outputs[self.output].float()
        if self.of_maps:
            return peaks(raw)[..., :2]
        places = raw.reshape(len(raw), -1, self.shape[-1] if len(self.shape) == 2 else 2)[..., :2]
        return _shares(places, self.size if self.pixels else None)

    def mean_loss(self, outputs: Outputs, batch: Batch, training: bool) -> Tensor:
        places, visible = self.wanted(batch)
        if self.of_maps:
            maps = outputs[self.output].float()
            each = F.mse_loss(maps, gaussians(places, maps.shape[2], maps.shape[3]), reduction="none").mean((2, 3))
            return (each * visible).mean()
        measure = PLACES[self.loss]
        each = measure(self.places(outputs), places, reduction="none").mean(2) * visible
        if self.shape[-1] == 3 and len(self.shape) == 2:
            sure = outputs[self.output].float()[..., 2]
            of_ending = F.binary_cross_entropy if self.ending.kind == "sigmoid" else F.binary_cross_entropy_with_logits
            each = each + of_ending(sure, visible.to(sure.dtype), reduction="none")
        mean: Tensor = each.mean()
        return mean

    def distances(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the distance of each keypoint, as a share of the image's diagonal, and whether it is visible."""
        places, visible = self.wanted(batch)
        size = places.new_tensor(self.size)
        away: Tensor = ((self.places(outputs) - places) * size).norm(dim=2) / size.norm()
        return away, visible

    def scores(self) -> Scores:
        return _Distances(self)

    def target(self) -> Target | None:
        kind = "heatmaps" if self.of_maps else self.loss
        return Target(self.output, self.output_name, self.column, kind, self.ending.kind, 0, 1, ())


class _Distances(Scores):
    """The mean distance of visible keypoints, and the share of them within 5 % of the diagonal."""

    def __init__(self, goal: Keypoints) -> None:
        super().__init__({"keypoint_error": MeanMetric(), "pck": MeanMetric()}, lambda outputs, batch: ())
        self.goal = goal

    def update(self, outputs: Outputs, batch: Batch) -> None:
        distances, visible = self.goal.distances(outputs, batch)
        if visible.any():
            self.metrics["keypoint_error"].update(distances[visible])
            self.metrics["pck"].update((distances[visible] <= NEAR).float())


def _shares(places: Tensor, pixels: tuple[float, float] | None) -> Tensor:
    return places if pixels is None else places / places.new_tensor(pixels)


def gaussians(places: Tensor, height: int, width: int) -> Tensor:
    """Return heatmaps [n, K, height, width] with a peak of 1 at each of the places [n, K, 2], shares of the sides."""
    deviation = max(max(height, width) / WIDEST, 1.0)
    along = []
    for place, size in ((places[..., 1], height), (places[..., 0], width)):
        away = torch.arange(size, device=places.device) + 0.5 - place[..., None] * size
        along.append((-away.square() / (2 * deviation**2)).exp())
    return along[0][..., :, None] * along[1][..., None, :]


def make(situation: Situation) -> list[Goal]:
    """Return the goal of `--task keypoints`. Raises `OnnxgenError` if output, places or loss do not fit."""
    refuse_augment(situation, MOVES, "moves the image, but not its keypoints")
    (column,) = situation.feeding.others
    shape = situation.samples.fields[column].shape
    if len(shape) != 2 or shape[1] not in (2, 3):
        way = "give x and y, or x, y and visible, for each of K keypoints: [n, K, 2] or [n, K, 3]"
        raise OnnxgenError(f"column {column!r} has {list(shape)} for each sample", help=way)
    count = shape[0]
    shapes = [(2 * count,), (count, 2), *([(count, 3)] if shape[1] == 3 else [])]
    output = trained_output(
        situation,
        lambda raw: tuple(raw.shape[1:]) in shapes or (raw.ndim == 4 and raw.shape[1] == count),
        f"an output for {count} keypoints, [N, {2 * count}], [N, {count}, 2 or 3] or [N, {count}, H, W]",
    )
    raw, name = situation.outputs[output], situation.names[output]
    size, stored = _sizes(situation)
    pixels = stored if _pixels(situation.samples, column, stored) else None
    loss = _loss(situation, raw.ndim == 4)
    of_image = "" if pixels is None else f"pixels of an image of {pixels[0]:.0f}x{pixels[1]:.0f}"
    note = f"places in {column} are {of_image or 'shares of width and height'}"
    note += f"; trained with {loss} of " + ("heatmaps" if raw.ndim == 4 else "shares, without keypoints not visible")
    return [Keypoints(output, name, column, tuple(raw.shape[1:]), size, loss, pixels, ending_of(raw), said=(note,))]


def _loss(situation: Situation, of_maps: bool) -> str:
    name = asked_loss(situation, "mse" if of_maps else "l1", "--loss l1 or mse")
    if of_maps and name not in ("mse", "mse_loss"):
        raise OnnxgenError(f"heatmaps are trained with mse, not {situation.settings.loss}", help="leave out --loss")
    return "mse" if of_maps else name


def _sizes(situation: Situation) -> tuple[tuple[float, float], tuple[float, float] | None]:
    """Return width and height of the first input's image, and of the image as stored; without one 1, 1 and None."""
    column = situation.feeding.inputs[0]
    step = getattr(situation.samples, "steps", {}).get(column)
    if isinstance(step, ToInput):
        stored = dict(zip(step.axes, getattr(situation.samples, "samples", situation.samples).fields[column].shape))
        return (float(step.frame.width), float(step.frame.height)), (float(stored["W"]), float(stored["H"]))
    shape = situation.batch[column].shape
    size = (float(shape[3]), float(shape[2])) if len(shape) == 4 else None
    return size or (1.0, 1.0), size


def _pixels(samples: Samples, column: str, size: tuple[float, float] | None) -> bool:
    """Return True if places are pixels, False if they are shares. Raises `OnnxgenError` if they are neither."""
    highest = lowest = 0.0
    for _, values in Values(samples, [column])[column]:
        if values.ndim != 3:  # read from files, of which the extremes are kept
            raise OnnxgenError(f"column {column!r} must be in memory", help="give it as an array")
        places = values[..., :2].double()
        places = places[values[..., 2] > 0] if values.shape[2] == 3 else places
        if places.numel():
            highest, lowest = max(highest, float(places.max())), min(lowest, float(places.min()))
    if lowest >= -1 and highest <= 2:  # a keypoint may lie outside of the image
        return False
    if size is not None and -max(size) <= lowest and highest <= 2 * max(size):
        return True
    image = f"pixels of an image {size[0]:.0f}x{size[1]:.0f}" if size else "pixels, since the input is no image"
    what = f"column {column!r} has places from {lowest:g} to {highest:g}: neither shares of width and height"
    raise OnnxgenError(f"{what}, nor {image}", help="divide x by the width and y by the height of the image")
