"""Decodes raw maps in numpy, as a record says: what a reading of a head is checked with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxgen.record.tail import Channels, Level, Tail

Array = NDArray[Any]


def corners(tail: Tail, maps: Sequence[Array]) -> Array:
    """Return the corners float64 [points, 4] in pixels of one image's raw maps [1, channels, height, width].

    Points are in the order of levels, then row, column and anchor.
    """
    return np.concatenate([_corners(tail, level, maps) for level in tail.levels])


def _corners(tail: Tail, level: Level, maps: Sequence[Array]) -> Array:
    raw, cells = taken(level.boxes, len(level.anchors), maps), cells_of(level)
    anchors = np.tile(np.array(level.anchors, np.float64), (level.height * level.width, 1))
    if tail.bins > 1:
        raw = softmax(raw.reshape(-1, 4, tail.bins)) @ np.arange(tail.bins)
    if tail.kind == "distances":
        if tail.distance != "identity":
            raw = np.maximum(raw, 0) if tail.distance == "relu" else np.exp(raw)
        return np.concatenate((cells + 0.5 - raw[:, :2], cells + 0.5 + raw[:, 2:]), 1) * level.stride
    place, size = raw[:, :2], raw[:, 2:]
    if tail.kind == "yolov5":
        middle, size = (sigmoid(place) * 2 - 0.5 + cells) * level.stride, (sigmoid(size) * 2) ** 2 * anchors
    else:
        size = np.exp(size * tail.variances[1]) * anchors
        if tail.kind == "priors":
            middle = (cells + 0.5) * level.stride + place * tail.variances[0] * anchors
        else:
            middle = ((sigmoid(place) if tail.kind == "yolov3" else place) + cells) * level.stride
    return np.concatenate((middle - size / 2, middle + size / 2), 1)


def scores(tail: Tail, maps: Sequence[Array]) -> tuple[Array, Array]:
    """Return the probabilities [points, classes] and of an object [points, 1], which are 1 without objectness."""
    classes = np.concatenate([taken(level.classes, len(level.anchors), maps) for level in tail.levels])
    classes = softmax(classes)[:, 1:] if tail.background else sigmoid(classes)
    objects = [
        (
            np.ones((level.height * level.width * len(level.anchors), 1))
            if level.objectness is None
            else sigmoid(taken(level.objectness, len(level.anchors), maps))
        )
        for level in tail.levels
    ]
    return classes, np.concatenate(objects)


def taken(channels: Channels, anchors: int, maps: Sequence[Array]) -> Array:
    """Return channels of a map as float64 [points, channels]."""
    found = maps[channels.map]
    height, width = found.shape[2:]
    apart = found.reshape(anchors, channels.step, height * width).transpose(2, 0, 1)
    chosen: Array = apart[..., channels.first : channels.first + channels.count].reshape(-1, channels.count)
    return chosen.astype(np.float64)


def cells_of(level: Level) -> Array:
    """Return (column, row) of each point of a level, float64 [points, 2]."""
    row, column = np.mgrid[: level.height, : level.width].reshape(2, -1).astype(np.float64)
    return np.repeat(np.stack((column, row), 1), len(level.anchors), 0)


def sigmoid(x: Array) -> Array:
    found: Array = 1 / (1 + np.exp(-x))
    return found


def softmax(x: Array) -> Array:
    """Return the softmax along the last axis."""
    powers = np.exp(x - x.max(-1, keepdims=True))
    found: Array = powers / powers.sum(-1, keepdims=True)
    return found
