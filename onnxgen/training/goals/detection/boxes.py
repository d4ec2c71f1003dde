"""Boxes as corners and centres, how much they overlap, and the suppression of boxes that overlap.

Boxes are float tensors [..., 4]. Corners are (x1, y1, x2, y2), centres are (x, y, width, height), in any unit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onnxgen.training.runs.contract import CANDIDATES, MOST_BOXES, MOST_OVERLAP

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
    found: Tensor
    around = torch.maximum(high1, high2) - torch.minimum(low1, low2)
    if kind == "giou":
        whole = around.prod(-1)
        found = iou - (whole - union) / (whole + EPSILON)
        return found
    apart = (low1 + high1 - low2 - high2).square().sum(-1) / 4
    angles = [torch.atan(size[..., 0] / (size[..., 1] + EPSILON)) for size in (size1, size2)]
    ratio = (angles[0] - angles[1]).square() * (4 / math.pi**2)
    weight = (ratio / (1 - iou + ratio + EPSILON)).detach()
    found = iou - apart / (around.square().sum(-1) + EPSILON) - weight * ratio
    return found


def suppress(
    boxes: Tensor,
    scores: Tensor,
    most_overlap: float = MOST_OVERLAP,
    least_score: float = 0.001,
    most: int = MOST_BOXES,
) -> Tensor:
    """Return the boxes of one image that are kept, by greedy suppression within each class.

    A box is dropped if its IoU with a kept box of its class and a higher score is above `most_overlap`. Every pair of a
    point and a class is a candidate, as in ONNX's NonMaxSuppression. The best 1024 candidates are considered.

    Args:
        boxes: [points, 4], corners.
        scores: [points, classes].
        least_score: candidates with at most this score are ignored.
        most: largest number of boxes that are returned.

    Returns:
        int64 [kept, 2] with the indices of point and class, the highest score first.
    """
    points, classes = (scores > least_score).nonzero(as_tuple=True)
    values, order = scores[points, classes].sort(descending=True, stable=True)
    order = order[:CANDIDATES]
    points, classes = points[order], classes[order]
    found = boxes[points]
    over = overlap(found[:, None], found[None], "iou") > most_overlap
    over &= classes[:, None] == classes[None]
    kept = torch.ones(len(order), dtype=torch.bool)
    rows = over.cpu()
    for index in range(len(order)):
        if kept[index]:
            kept[index + 1 :] &= ~rows[index, index + 1 :]
    chosen = kept.nonzero()[:most, 0].to(points.device)
    return torch.stack((points[chosen], classes[chosen]), 1)
