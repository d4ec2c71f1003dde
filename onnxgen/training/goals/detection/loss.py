"""One loss for all heads of boxes: classes, overlap, bins of distances, and objectness if the head has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onnxgen.training.goals.detection.assign import TOP, Assignment, assign
from onnxgen.training.goals.detection.boxes import overlap
from onnxgen.training.goals.detection.decoder import Decoded, Decoder
from onnxgen.training.goals.detection.targets import COLUMN


@dataclass(frozen=True)
class Gains:
    """Weights of the parts of the loss. The defaults are YOLOv8's published settings, and 1 for the objectness."""

    box: float = 7.5
    classes: float = 0.5
    bins: float = 1.5
    objectness: float = 1.0


@dataclass(frozen=True)
class DetectionLoss:
    """The loss of a head's raw maps.

    Attributes:
        decoder: decodes the raw maps.
        gains: weights of the parts.
        focal: weigh classes by the focal loss instead of the plain binary cross entropy.
        column: name of the column of targets (see the package).
    """

    decoder: Decoder
    gains: Gains = Gains()
    focal: bool = False
    column: str = COLUMN

    def loss(self, outputs: Sequence[Tensor], batch: Mapping[str, Tensor], training: bool = True) -> Tensor:
        """Return the sum over the batch by `count(batch)`. Losses of parts of a batch add up to that of the batch."""
        found, (labels, targets) = self.decoder(outputs), self.targets(outputs, batch)
        size = targets.new_tensor([*found.size, *found.size])
        targets = targets * size
        scores = found.scores.detach()
        assigned = assign(scores, found.boxes.detach(), found.centres, found.strides, labels, targets)
        total = sum(self._parts(found, assigned, labels, targets).values())
        # The qualities of a box's points add up to about half their number.
        total = total / (self.count(batch) * (TOP / 2))
        return total

    def count(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the number of boxes and images, by which the loss is divided.

        An image counts as one more, so that those without a box count too.
        """
        boxes = batch[self.column]
        return (boxes[..., 0] >= 0).sum() + len(boxes)

    def targets(self, outputs: Sequence[Tensor], batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the classes int64 [batch, most], -1 for no box, and corners [batch, most, 4] as shares."""
        boxes = batch[self.column].to(outputs[0].device)
        return boxes[..., 0].round().long().clamp_min(-1), boxes[..., 1:].to(outputs[0].dtype)

    def _parts(self, found: Decoded, assigned: Assignment, labels: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the weighted sums of the parts."""
        chosen, quality = assigned.chosen, assigned.quality
        rows = chosen.nonzero()[:, 0]
        index = assigned.index[chosen]
        wanted, weight = targets[rows, index], quality[chosen]
        classes = F.one_hot(labels[rows, index], found.classes.shape[-1]).to(found.classes)
        parts = {"box": self.gains.box * ((1 - overlap(found.boxes[chosen], wanted, "ciou")) * weight).sum()}
        if found.objectness is None:
            soft = torch.zeros_like(found.classes)
            soft[chosen] = classes * weight[:, None]
            parts["classes"] = self.gains.classes * class_loss(found.classes, soft, self.focal)
        else:
            parts["classes"] = self.gains.classes * class_loss(found.classes[chosen], classes, self.focal)
            parts["objectness"] = self.gains.objectness * class_loss(found.objectness, quality, self.focal)
        if found.bins is not None:
            points = chosen.nonzero()[:, 1]
            centres, strides = found.centres[points], found.strides[points, None]
            far = torch.cat((centres - wanted[:, :2], wanted[:, 2:] - centres), 1) / strides
            parts["bins"] = self.gains.bins * (distribution_loss(found.bins[chosen], far) * weight).sum()
        return parts


def class_loss(logits: Tensor, wanted: Tensor, focal: bool = False, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """Return the sum of the binary cross entropies of logits and targets from 0 to 1, of one shape.

    Args:
        focal: weigh each by |target - probability| ** gamma, and positives by alpha, negatives by 1 - alpha. For
            targets of 0 and 1 this is the focal loss (Lin et al., 1708.02002), for others the quality focal loss
            (2006.04388) with an alpha.
    """
    losses = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    if focal:
        share = torch.where(wanted > 0, alpha, 1 - alpha)
        losses = losses * share * (wanted - logits.sigmoid()).abs().pow(gamma)
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
