"""Records of small heads, as tests of the decoder and the loss use them."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxgen.record.tail import Channels, Level, Tail


def distances(classes: int = 3, bins: int = 4, size: int = 32) -> Tail:
    """A head of two levels, with a map of distances and one of classes each."""
    levels = [
        Level(
            size // s,
            size // s,
            s,
            ((s, s),),
            Channels(2 * i, 0, 4 * bins, 4 * bins),
            Channels(2 * i + 1, 0, classes, classes),
        )
        for i, s in enumerate((8, 16))
    ]
    return Tail("distances", tuple("abcd"), tuple(levels), size, size, classes, bins)


def yolov5(classes: int = 3, size: int = 32) -> Tail:
    """A head of one level with two anchors."""
    step = 5 + classes
    parts = [Channels(0, first, count, step) for first, count in ((0, 4), (5, classes), (4, 1))]
    return Tail("yolov5", ("a",), (Level(size // 8, size // 8, 8, ((6, 8), (16, 12)), *parts),), size, size, classes)


def priors(classes: int = 2, size: int = 32) -> Tail:
    """A head of one level with two priors, and a background beside the classes."""
    level = Level(
        size // 8, size // 8, 8, ((8, 8), (16, 16)), Channels(0, 0, 4, 4), Channels(1, 0, classes + 1, classes + 1)
    )
    return Tail("priors", ("a", "b"), (level,), size, size, classes, background=True, variances=(0.1, 0.2))


def maps(tail: Tail, batch: int = 2, seed: int = 0) -> list[Tensor]:
    """Drawn raw maps for a head."""
    drawn = torch.Generator().manual_seed(seed)
    shapes = {}
    for level in tail.levels:
        for part in (level.boxes, level.classes):
            shapes[part.map] = (batch, len(level.anchors) * part.step, level.height, level.width)
    return [torch.randn(shapes[index], generator=drawn).requires_grad_() for index in range(len(tail.maps))]
