"""Which points of a head learn which box: the task-aligned assigner (TOOD, Feng et al., 2108.07755)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from onnxgen.training.goals.detection.boxes import halves, overlap, to_centres, to_corners

ALPHA, BETA, TOP = 0.5, 6.0, 10  # powers of score and overlap, and points of a box, as in YOLOv8's published settings


@dataclass(frozen=True)
class Assignment:
    """What each point learns.

    Attributes:
        index: int64 [batch, points], the box of each point as a row of the image's targets; -1 for background.
        quality: float [batch, points], 0 to 1: how good the point is for its box, by score and overlap. The best point
            of a box has the highest overlap that any of its points has. 0 for background.
    """

    index: Tensor
    quality: Tensor

    @property
    def chosen(self) -> Tensor:
        """Return a bool [batch, points]: True for the points that have a box."""
        return self.index >= 0


@torch.no_grad()
def assign(
    scores: Tensor,
    boxes: Tensor,
    centres: Tensor,
    strides: Tensor,
    labels: Tensor,
    targets: Tensor,
    *,
    alpha: float = ALPHA,
    beta: float = BETA,
    top: int = TOP,
) -> Assignment:
    """Assign points to boxes. A box gets the `top` points in it whose `score ** alpha * overlap ** beta` is highest.

    A point that several boxes want gets the one that it overlaps most. A box that contains no centre is enlarged to the
    stride of each point, so that small boxes are learned, too.

    Args:
        scores: [batch, points, classes], probabilities that the network predicts now.
        boxes: [batch, points, 4], the corners that it predicts now, in pixels.
        centres: [points, 2], (x, y) in pixels.
        strides: [points], pixels between the centres of a level.
        labels: int64 [batch, most], the class of each target; -1 for rows that are no box.
        targets: [batch, most, 4], corners in pixels.
    """
    batch, points = scores.shape[:2]
    if not targets.shape[1]:
        nothing = torch.full((batch, points), -1, device=scores.device, dtype=torch.int64)
        return Assignment(nothing, scores.new_zeros(batch, points))
    real = labels >= 0
    inside = _inside(centres, strides, targets) & real[..., None]  # [batch, most, points]
    wanted = labels.clamp_min(0)[:, None, :].expand(-1, points, -1)
    score = scores.gather(2, wanted).transpose(1, 2)
    fits = overlap(targets[:, :, None], boxes[:, None], "ciou").clamp_min(0)
    aligned = torch.where(inside, score.pow(alpha) * fits.pow(beta), 0.0)
    best = torch.where(inside, aligned, -1.0).topk(min(top, points), -1).indices
    chosen = torch.zeros_like(inside).scatter_(2, best, True) & inside
    owner = torch.where(chosen, fits, -1.0).argmax(1)  # of the boxes that want a point, the one that fits best
    chosen &= torch.zeros_like(chosen).scatter_(1, owner[:, None], True)
    aligned, fits = torch.where(chosen, aligned, 0.0), torch.where(chosen, fits, 0.0)
    quality = aligned / aligned.amax(-1, keepdim=True).clamp_min(1e-9) * fits.amax(-1, keepdim=True)
    return Assignment(torch.where(chosen.any(1), owner, -1), quality.sum(1))


def _inside(centres: Tensor, strides: Tensor, targets: Tensor) -> Tensor:
    """Return a bool [batch, most, points]: which centres lie in which box."""
    inside = _contains(targets[:, :, None], centres)
    middle, size = halves(to_centres(targets)[:, :, None])
    size = torch.maximum(size, strides[:, None])
    wide = _contains(to_corners(torch.cat((middle.expand_as(size), size), -1)), centres)
    return torch.where(inside.any(-1, keepdim=True), inside, wide)


def _contains(boxes: Tensor, centres: Tensor) -> Tensor:
    low, high = halves(boxes)
    contained: Tensor = ((centres >= low) & (centres <= high)).all(-1)
    return contained
