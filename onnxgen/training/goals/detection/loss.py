"""One loss for all heads of boxes: classes, overlap, bins of distances, perhaps objectness.

The task-aligned assigner says which points of a head learn which box (TOOD, Feng et al.,
2108.07755). `refuse_wrong` says what is wrong with a column of boxes, before the first step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onnxgen.errors import OnnxgenError
from onnxgen.training.goals.detection.boxes import Decoded, Decoder, halves, overlap, to_centres, to_corners

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


COLUMN = "boxes"  # the column of the targets


def refuse_wrong(boxes: Tensor, classes: int) -> None:
    """Refuse targets that can't be learned.

    Args:
        boxes: [images, most, 5], rows of (class, x1, y1, x2, y2); see the package.
        classes: the number of classes of the head.

    Raises:
        OnnxgenError: the shape is another, a class is unknown, or a corner is not a share of the image's size.
    """
    if boxes.ndim != 3 or boxes.shape[2] != 5 or not boxes.is_floating_point():
        what = f"column {COLUMN!r} is {boxes.dtype} {list(boxes.shape)}, not float32 [images, most, 5]"
        raise OnnxgenError(what, help="a row is (class, x1, y1, x2, y2); rows of -1 fill up an image")
    labels, corners = boxes[..., 0], boxes[..., 1:]
    is_box = ~(boxes == -1).all(-1)
    wrong = {
        f"is of a class that is none of 0 to {classes - 1}": (labels < 0) | (labels >= classes) | (labels % 1 != 0),
        "has a corner that is no share from 0 to 1": ~((corners >= 0) & (corners <= 1)).all(-1),
        "ends before it begins": (corners[..., 2:] <= corners[..., :2]).any(-1),
    }
    for fault, mask in wrong.items():
        places = (mask & is_box).nonzero()
        if len(places):
            image, row = places[0].tolist()
            shown = ", ".join(f"{number:g}" for number in boxes[image, row].tolist())
            several = f" ({len(places)} such boxes)" if len(places) > 1 else ""
            more = labels[(labels >= classes) & (labels % 1 == 0)]
            way = f"--replace-head {int(more.max()) + 1} makes a head of more classes" if len(more) else ""
            raise OnnxgenError(f"column {COLUMN!r}: box ({shown}) of image {image} {fault}{several}", help=way)


# Weights of the parts of the loss: YOLOv8's published settings, and 1 for the objectness.
GAINS = {"box": 7.5, "classes": 0.5, "bins": 1.5, "objectness": 1.0}


@dataclass(frozen=True)
class DetectionLoss:
    """The loss of a head's raw maps.

    Attributes:
        decoder: decodes the raw maps.
        focal: weigh classes by the focal loss instead of the plain binary cross entropy.
    """

    decoder: Decoder
    focal: bool = False

    def loss(self, outputs: Sequence[Tensor], batch: Mapping[str, Tensor], training: bool = True) -> Tensor:
        """Return the sum over the batch by `count(batch)`. Losses of parts of a batch add up to that of the batch."""
        decoded, (labels, targets) = self.decoder(outputs), self.targets(outputs, batch)
        size = targets.new_tensor([*decoded.size, *decoded.size])
        targets = targets * size
        scores = decoded.scores.detach()
        assigned = assign(scores, decoded.boxes.detach(), decoded.centres, decoded.strides, labels, targets)
        parts = self._parts(decoded, assigned, labels, targets)
        total = sum(GAINS[name] * part for name, part in parts.items())
        # The qualities of a box's points add up to about half their number.
        return total / (self.count(batch) * (TOP / 2))

    def count(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of boxes and images, by which the loss is divided.

        An image counts as one more, so that those without a box count too.
        """
        boxes = batch[COLUMN]
        return (boxes[..., 0] >= 0).sum() + len(boxes)

    def targets(self, outputs: Sequence[Tensor], batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the classes int64 [batch, most], -1 for no box, and corners [batch, most, 4] as shares."""
        boxes = batch[COLUMN].to(outputs[0].device)
        return boxes[..., 0].round().long().clamp_min(-1), boxes[..., 1:].to(outputs[0].dtype)

    def _parts(self, decoded: Decoded, assigned: Assignment, labels: Tensor, targets: Tensor) -> dict[str, Tensor]:
        chosen, quality = assigned.chosen, assigned.quality
        rows = chosen.nonzero()[:, 0]
        index = assigned.index[chosen]
        wanted, weight = targets[rows, index], quality[chosen]
        classes = F.one_hot(labels[rows, index], decoded.classes.shape[-1]).to(decoded.classes)
        parts = {"box": ((1 - overlap(decoded.boxes[chosen], wanted, "ciou")) * weight).sum()}
        if decoded.objectness is None:
            soft = torch.zeros_like(decoded.classes)
            soft[chosen] = classes * weight[:, None]
            parts["classes"] = class_loss(decoded.classes, soft, self.focal)
        else:
            parts["classes"] = class_loss(decoded.classes[chosen], classes, self.focal)
            parts["objectness"] = class_loss(decoded.objectness, quality, self.focal)
        if decoded.bins is not None:
            points = chosen.nonzero()[:, 1]
            centres, strides = decoded.centres[points], decoded.strides[points, None]
            far = torch.cat((centres - wanted[:, :2], wanted[:, 2:] - centres), 1) / strides
            parts["bins"] = (distribution_loss(decoded.bins[chosen], far) * weight).sum()
        return parts


def class_loss(logits: Tensor, wanted: Tensor, focal: bool = False) -> Tensor:
    """Return the sum of the binary cross entropies of logits and targets from 0 to 1, of one shape.

    `focal`: weigh each by |target - probability| ** 2, and positives by 0.25, negatives by 0.75. For targets of 0 and 1
    this is the focal loss (Lin et al., 1708.02002), for others the quality focal loss (2006.04388) with an alpha.
    """
    losses = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    if focal:
        losses = losses * torch.where(wanted > 0, 0.25, 0.75) * (wanted - logits.sigmoid()).square()
    return losses.sum()


def distribution_loss(bins: Tensor, wanted: Tensor) -> Tensor:
    """Return the distribution focal loss (Li et al., 2006.04388) of each point, the mean of its four sides.

    Args:
        bins: logits [points, 4, bins].
        wanted: distances [points, 4] in strides. They count as at most the last bin.
    """
    most = bins.shape[-1] - 1
    wanted = wanted.clamp(0, most - 0.01)
    low = wanted.long()
    above = wanted - low
    logs = bins.log_softmax(-1)
    left, right = (logs.gather(-1, index[..., None])[..., 0] for index in (low, low + 1))
    return -(left * (1 - above) + right * above).mean(-1)
