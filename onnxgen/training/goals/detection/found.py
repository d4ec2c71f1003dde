"""The boxes that a detector finds in an image, in pixels of that image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from onnxgen.record.tail import tail_of
from onnxgen.training.data.letterbox import Fit
from onnxgen.training.goals.detection.boxes import suppress
from onnxgen.training.goals.detection.decoder import Decoder
from onnxgen.training.runs.answers import Answer, Box
from onnxgen.training.runs.record import Target


def boxes_of(maps: Sequence[Tensor], target: Target, fit: Fit, size: tuple[int, int], least: float) -> Answer:
    """Return the boxes of one image, after suppression within each class.

    Args:
        maps: the raw maps [1, channels, height, width], in the order of the tail.
        target: what was trained.
        fit: where the image lies in what the network took.
        size: height and width of the image itself.
        least: boxes with a lower score are left out.
    """
    found = Decoder(tail_of(target.head["tail"]))([raw.float() for raw in maps])
    scores = found.scores[0]
    points, classes = suppress(found.boxes[0], scores, least_score=least).unbind(1)
    whole = torch.tensor([size[1], size[0]] * 2)
    corners = fit.out_of_frame(found.boxes[0][points].double()) * whole
    names = target.all_names
    boxes = tuple(
        Box(names[label], score, (corner[0], corner[1], corner[2], corner[3]))
        for label, score, corner in zip(classes.tolist(), scores[points, classes].tolist(), corners.tolist())
    )
    value = np.array([(label, b.score, *b.corners) for label, b in zip(classes.tolist(), boxes)], np.float32)
    return Answer(tuple(box.label for box in boxes), {}, value.reshape(-1, 6), boxes, best=float(scores.max()))
