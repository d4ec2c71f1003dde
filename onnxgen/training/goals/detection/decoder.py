"""From the raw maps of a head to boxes and logits of every point, differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onnxgen.errors import OnnxgenError
from onnxgen.record.tail import Channels, Level, Tail
from onnxgen.training.goals.detection.boxes import halves, to_corners

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

        Raises:
            OnnxgenError: the number of maps or of their channels is not the recorded one.
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
    found, anchors = maps[channels.map], len(level.anchors)
    if found.ndim != 4 or found.shape[1] != anchors * channels.step:
        what = f"a raw map of the head is {list(found.shape)}, not [batch, {anchors * channels.step}, height, width]"
        raise OnnxgenError(what, help="generate the network of the file that the head was read from")
    batch, _, height, width = found.shape
    apart = found.reshape(batch, anchors, channels.step, height * width).permute(0, 3, 1, 2)
    return apart[..., channels.first : channels.first + channels.count].reshape(batch, -1, channels.count)


def _expected(bins: Tensor) -> Tensor:
    """Return the expectations [..., 4] of the numbers 0, 1, 2, ... under a softmax of logits [..., 4, bins]."""
    return bins.softmax(-1) @ torch.arange(bins.shape[-1], dtype=bins.dtype, device=bins.device)
