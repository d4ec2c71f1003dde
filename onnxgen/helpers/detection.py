"""Boxes of detectors: where they are, and which of those that overlap are chosen."""

from __future__ import annotations

import torch
from torch import Tensor


def make_grid(height: int, width: int, stride: float = 1, offset: float = 0.5) -> Tensor:
    """Return the centres (x, y) of cells in the image, float32 [height * width, 2].

    They are on the CPU, also where the network is built on the meta device: no file
    has them.

    Args:
        stride: the size of a cell.
        offset: where its centre is, in cells.
    """
    y, x = (torch.arange(size, dtype=torch.float32, device="cpu") for size in (height, width))
    return (torch.cartesian_prod(y, x).flip(-1) + offset) * stride


def box_corners(boxes: Tensor, centered: bool) -> Tensor:
    """Convert boxes [..., 4] to the lower corner, then the upper one.

    Args:
        centered: boxes are x, y, width, height; else two opposite corners in any order.
    """
    first, second = boxes[..., :2], boxes[..., 2:]
    if centered:
        return torch.cat([first - second / 2, first + second / 2], -1)
    return torch.cat([torch.minimum(first, second), torch.maximum(first, second)], -1)


def overlaps_box(box: Tensor, boxes: Tensor, threshold: float) -> Tensor:
    """Return True for `boxes` that overlap a box by more than `threshold`, bool [n].

    The overlap is the intersection over the union; it is 0 for boxes without an area.

    Args:
        box, boxes: [4] and [n, 4], as from `box_corners`.
    """
    low, high = torch.maximum(box[:2], boxes[:, :2]), torch.minimum(box[2:], boxes[:, 2:])
    shared = (high - low).prod(1)
    area, areas = (box[2:] - box[:2]).prod(), (boxes[:, 2:] - boxes[:, :2]).prod(1)
    union = area + areas - shared
    proper = (high > low).all(1) & (shared > 0) & (area > 0) & (areas > 0) & (union > 0)
    return proper & (shared / union > torch.tensor(threshold, dtype=boxes.dtype, device=boxes.device))


def select_boxes(
    boxes: Tensor,
    scores: Tensor,
    most: int = 0,
    iou_threshold: float = 0.0,
    score_threshold: float | None = None,
    centered: bool = False,
) -> Tensor:
    """ONNX NonMaxSuppression: keep boxes that overlap no better one of their class.

    Args:
        boxes: [batch, boxes, 4], see `box_corners`.
        scores: [batch, classes, boxes].
        most: the number to keep per class; the first of equal scores is better.
        iou_threshold: boxes overlap if their intersection over union is greater.
        score_threshold: keep only boxes with a higher score.

    Returns:
        int64 [kept, 3]: batch, class, box; sorted by batch, then by class, then by
        score.
    """
    boxes = box_corners(boxes, centered)
    kept: list[list[int]] = []
    for i in range(scores.shape[0] if most > 0 else 0):
        for label, score in enumerate(scores[i]):
            order = score.argsort(descending=True, stable=True)
            if score_threshold is not None:
                limit = torch.tensor(score_threshold, dtype=score.dtype, device=score.device)
                order = order[score[order] > limit]
            count = 0
            while len(order) and count < most:
                kept.append([i, label, int(order[0])])
                count += 1
                order = order[1:][~overlaps_box(boxes[i, order[0]], boxes[i, order[1:]], iou_threshold)]
    return torch.tensor(kept, dtype=torch.int64, device=scores.device).reshape(-1, 3)
