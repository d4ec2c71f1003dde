"""Boxes of a detector: decoded from raw maps, suppressed, and found in images.

Boxes are float tensors [..., 4]. Corners are (x1, y1, x2, y2), centres are (x, y, width, height),
in any unit. `overlap` and `suppress` say how much boxes overlap, and remove those that overlap.
`Decoder` is differentiable. `predicted` has the boxes that a detector finds, in pixels of each
image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxgen.errors import OnnxgenError
from onnxgen.record.tail import Channels, Level, Tail, tail_of
from onnxgen.training.data.arrays import Prepared, decoder_of
from onnxgen.training.data.folder import size_of
from onnxgen.training.data.images import ToInput
from onnxgen.training.data.letterbox import Fit
from onnxgen.training.data.samples import Samples
from onnxgen.training.runs.answers import Answer, Box, Prediction
from onnxgen.training.runs.contract import CANDIDATES, MOST_BOXES, MOST_OVERLAP, Finding
from onnxgen.training.runs.record import BOXES, Target

OVERLAPS = ("iou", "giou", "ciou")
EPSILON = 1e-7  # keeps empty boxes from dividing by zero


def halves(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first two and the last two numbers of boxes."""
    return boxes[..., :2], boxes[..., 2:]


def to_corners(boxes: Tensor) -> Tensor:
    """Return the corners of boxes that are given by centre and size."""
    middle, size = halves(boxes)
    return torch.cat((middle - size / 2, middle + size / 2), -1)


def to_centres(boxes: Tensor) -> Tensor:
    """Return the centre and size of boxes that are given by corners."""
    low, high = halves(boxes)
    return torch.cat(((low + high) / 2, high - low), -1)


def overlap(first: Tensor, second: Tensor, kind: str = "iou") -> Tensor:
    """Return how much boxes overlap. The boxes are corners, [..., 4] each, and are broadcast.

    Args:
        kind: "iou" is the area of the intersection by that of the union, 0 to 1. "giou" subtracts the share of the
            smallest enclosing box that neither box covers (Rezatofighi et al., 1902.09630). "ciou" subtracts the
            distance of the centres and the difference of the aspect ratios (Zheng et al., 1911.08287); the weight of
            the latter is a constant to the gradient, as in the paper.

    Returns:
        a tensor without the last axis: 1 for equal boxes, 0 (or less, for "giou" and "ciou") for boxes that are apart.
    """
    if kind not in OVERLAPS:
        raise ValueError(f"an overlap is one of {', '.join(OVERLAPS)}, not {kind!r}")
    (low1, high1), (low2, high2) = halves(first), halves(second)
    size1, size2 = high1 - low1, high2 - low2
    shared = (torch.minimum(high1, high2) - torch.maximum(low1, low2)).clamp_min(0).prod(-1)
    union = size1.prod(-1) + size2.prod(-1) - shared
    iou: Tensor = shared / (union + EPSILON)
    if kind == "iou":
        return iou
    measure: Tensor
    around = torch.maximum(high1, high2) - torch.minimum(low1, low2)
    if kind == "giou":
        whole = around.prod(-1)
        measure = iou - (whole - union) / (whole + EPSILON)
        return measure
    apart = (low1 + high1 - low2 - high2).square().sum(-1) / 4
    angles = [torch.atan(size[..., 0] / (size[..., 1] + EPSILON)) for size in (size1, size2)]
    ratio = (angles[0] - angles[1]).square() * (4 / math.pi**2)
    weight = (ratio / (1 - iou + ratio + EPSILON)).detach()
    measure = iou - apart / (around.square().sum(-1) + EPSILON) - weight * ratio
    return measure


def suppress(
    boxes: Tensor,
    scores: Tensor,
    most_overlap: float = MOST_OVERLAP,
    least_score: float = 0.001,
    most: int = MOST_BOXES,
    across: bool = False,
) -> Tensor:
    """Return the boxes of one image that are kept, by greedy suppression within each class.

    A box is dropped if its IoU with a kept box of its class and a higher score is above `most_overlap`. Every pair of a
    point and a class is a candidate, as in ONNX's NonMaxSuppression. The best 1024 candidates are considered.

    Args:
        boxes: [points, 4], corners.
        scores: [points, classes].
        least_score: candidates with at most this score are ignored.
        most: largest number of boxes that are returned.
        across: boxes of other classes drop a box, too.

    Returns:
        int64 [kept, 2] with the indices of point and class, the highest score first.
    """
    points, classes = (scores > least_score).nonzero(as_tuple=True)
    values, order = scores[points, classes].sort(descending=True, stable=True)
    order = order[:CANDIDATES]
    points, classes = points[order], classes[order]
    corners = boxes[points]
    over = overlap(corners[:, None], corners[None], "iou") > most_overlap
    if not across:
        over &= classes[:, None] == classes[None]
    kept = torch.ones(len(order), dtype=torch.bool)
    rows = over.cpu()
    for index in range(len(order)):
        if kept[index]:
            kept[index + 1 :] &= ~rows[index, index + 1 :]
    chosen = kept.nonzero()[:most, 0].to(points.device)
    return torch.stack((points[chosen], classes[chosen]), 1)


MOST_LOG = 10.0  # a larger logarithm of a size, by that of its anchor, counts as this: exp would overflow


@dataclass(frozen=True)
class Decoded:
    """What a head predicts. Points are in the order of levels, then row, column and anchor.

    Attributes:
        boxes: [batch, points, 4], corners in pixels.
        classes: [batch, points, classes], logits: their sigmoids are the probabilities.
        objectness: logits [batch, points], or None.
        bins: logits [batch, points, 4, bins] of the distances to left, top, right and bottom; None without bins.
        centres: [points, 2], (x, y) of the points in pixels.
        strides: [points], in pixels.
        size: width and height of the image in pixels.
    """

    boxes: Tensor
    classes: Tensor
    objectness: Tensor | None
    bins: Tensor | None
    centres: Tensor
    strides: Tensor
    size: tuple[float, float]

    @property
    def scores(self) -> Tensor:
        """Return the probabilities [batch, points, classes], times that of an object if there is one."""
        scores = self.classes.sigmoid()
        return scores if self.objectness is None else scores * self.objectness.sigmoid()[..., None]


@dataclass(frozen=True)
class Decoder:
    """Decodes the raw maps of a head, as the graph does behind them.

    Images of other sizes than the recorded one are decoded too: points follow from the sizes of the maps.
    """

    tail: Tail

    def __call__(self, maps: Sequence[Tensor]) -> Decoded:
        """Decode the maps, [batch, channels, height, width] each, in the order of `Tail.maps`.

        Raises `OnnxgenError` if the number of maps or of their channels is not the recorded one.
        """
        if len(maps) != len(self.tail.maps):
            raise OnnxgenError(f"the head has {len(self.tail.maps)} raw maps, but the network has {len(maps)} outputs")
        parts = [self._level(level, maps) for level in self.tail.levels]
        boxes, classes, objectness, bins, centres, strides = zip(*parts)
        level = min(self.tail.levels, key=lambda level: level.stride)
        height, width = maps[level.boxes.map].shape[2:]
        known = (height, width) == (level.height, level.width)
        size = (self.tail.width, self.tail.height) if known else (width * level.stride, height * level.stride)
        return Decoded(
            torch.cat(boxes, 1),
            self._logits(torch.cat(classes, 1)),
            None if objectness[0] is None else torch.cat(objectness, 1)[..., 0],
            None if bins[0] is None else torch.cat(bins, 1),
            torch.cat(centres),
            torch.cat(strides),
            size,
        )

    def _logits(self, classes: Tensor) -> Tensor:
        """Return logits whose sigmoids are the probabilities: of a softmax, too."""
        if not self.tail.background:
            return classes
        rest = [classes[..., [*range(c), *range(c + 1, classes.shape[-1])]] for c in range(1, classes.shape[-1])]
        return classes[..., 1:] - torch.stack([other.logsumexp(-1) for other in rest], -1)

    def _level(self, level: Level, maps: Sequence[Tensor]) -> tuple[Any, ...]:
        raw = _taken(maps, level.boxes, level)
        height, width = maps[level.boxes.map].shape[2:]
        rows, columns = (torch.arange(size, dtype=raw.dtype, device=raw.device) for size in (height, width))
        row, column = torch.meshgrid(rows, columns, indexing="ij")
        cells = torch.stack((column, row), -1).reshape(-1, 1, 2).expand(-1, len(level.anchors), -1).reshape(-1, 2)
        anchors = raw.new_tensor(level.anchors).repeat(height * width, 1)
        bins = raw.reshape(*raw.shape[:2], 4, self.tail.bins) if self.tail.bins > 1 else None
        boxes = self._boxes(raw if bins is None else _expected(bins), cells, anchors, level.stride)
        classes = _taken(maps, level.classes, level)
        objectness = None if level.objectness is None else _taken(maps, level.objectness, level)
        centres = (cells + 0.5) * level.stride
        return boxes, classes, objectness, bins, centres, centres.new_full((len(centres),), level.stride)

    def _boxes(self, raw: Tensor, cells: Tensor, anchors: Tensor, stride: float) -> Tensor:
        """Return corners in pixels of the numbers [batch, points, 4]."""
        tail = self.tail
        if tail.kind == "distances":
            if tail.distance != "identity":
                raw = raw.relu() if tail.distance == "relu" else raw.clamp_max(MOST_LOG).exp()
            low, high = halves(raw)
            return torch.cat((cells + 0.5 - low, cells + 0.5 + high), -1) * stride
        place, size = halves(raw)
        if tail.kind == "yolov5":
            middle, size = (place.sigmoid() * 2 - 0.5 + cells) * stride, (size.sigmoid() * 2).square() * anchors
        else:
            size = (size * tail.variances[1]).clamp_max(MOST_LOG).exp() * anchors
            if tail.kind == "priors":
                middle = (cells + 0.5) * stride + place * tail.variances[0] * anchors
            else:
                middle = ((place.sigmoid() if tail.kind == "yolov3" else place) + cells) * stride
        return to_corners(torch.cat((middle, size), -1))


def _taken(maps: Sequence[Tensor], channels: Channels, level: Level) -> Tensor:
    """Return channels of a map as [batch, points, channels]."""
    raw, anchors = maps[channels.map], len(level.anchors)
    if raw.ndim != 4 or raw.shape[1] != anchors * channels.step:
        what = f"a raw map of the head is {list(raw.shape)}, not [batch, {anchors * channels.step}, height, width]"
        raise OnnxgenError(what, help="generate the network of the file that the head was read from")
    batch, _, height, width = raw.shape
    apart = raw.reshape(batch, anchors, channels.step, height * width).permute(0, 3, 1, 2)
    return apart[..., channels.first : channels.first + channels.count].reshape(batch, -1, channels.count)


def _expected(bins: Tensor) -> Tensor:
    """Return the expectations [..., 4] of the numbers 0, 1, 2, ... under a softmax of logits [..., 4, bins]."""
    return bins.softmax(-1) @ torch.arange(bins.shape[-1], dtype=bins.dtype, device=bins.device)


def predicted(
    samples: Samples, names: Sequence[str], target: Target, outputs: Sequence[Tensor], finding: Finding
) -> Iterator[Prediction]:
    """Yield the boxes of each image, under its name."""
    assert isinstance(samples, Prepared)
    column, step = next((name, s) for name, s in samples.steps.items() if isinstance(s, ToInput))
    files = getattr(decoder_of(samples, column), "paths", ())
    shape = dict(zip(step.axes, samples.samples.fields[column].shape))
    for row, name in enumerate(names):
        size = size_of(files[row]) if files else (shape["H"], shape["W"])
        maps = [outputs[place][row : row + 1] for place in target.head["places"]]
        yield Prediction(name, {BOXES: boxes_of(maps, target, step.fit(size), size, finding)})


def boxes_of(maps: Sequence[Tensor], target: Target, fit: Fit, size: tuple[int, int], finding: Finding) -> Answer:
    """Return the boxes of one image, after suppression.

    Args:
        maps: the raw maps [1, channels, height, width], in the order of the tail.
        target: what was trained.
        fit: where the image lies in what the network took.
        size: height and width of the image itself.
        finding: which boxes are left.
    """
    decoded = Decoder(tail_of(target.head["tail"]))([raw.float() for raw in maps])
    scores = decoded.scores[0]
    kept = suppress(decoded.boxes[0], scores, finding.overlap, finding.least, across=finding.across)
    points, classes = kept.unbind(1)
    whole = torch.tensor([size[1], size[0]] * 2)
    corners = fit.out_of_frame(decoded.boxes[0][points].double()) * whole
    names = target.all_names
    boxes = tuple(
        Box(names[label], score, (corner[0], corner[1], corner[2], corner[3]))
        for label, score, corner in zip(classes.tolist(), scores[points, classes].tolist(), corners.tolist())
    )
    value = np.array([(label, b.score, *b.corners) for label, b in zip(classes.tolist(), boxes)], np.float32)
    return Answer(tuple(box.label for box in boxes), {}, value.reshape(-1, 6), boxes, best=float(scores.max()))
