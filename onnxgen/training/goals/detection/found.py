"""The boxes that a detector finds in images, in pixels of each image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from onnxgen.record.tail import tail_of
from onnxgen.training.data.arrays import decoder_of
from onnxgen.training.data.folder import size_of
from onnxgen.training.data.images import ToInput
from onnxgen.training.data.letterbox import Fit
from onnxgen.training.data.prepared import Prepared
from onnxgen.training.data.samples import Samples
from onnxgen.training.goals.detection.boxes import suppress
from onnxgen.training.goals.detection.decoder import Decoder
from onnxgen.training.runs.answers import Answer, Box, Prediction
from onnxgen.training.runs.record import BOXES, Target


def predicted(
    samples: Samples, names: Sequence[str], target: Target, outputs: Sequence[Tensor], least: float
) -> Iterator[Prediction]:
    """Yield the boxes of each image, under its name."""
    assert isinstance(samples, Prepared)
    column, step = next((name, s) for name, s in samples.steps.items() if isinstance(s, ToInput))
    files = getattr(decoder_of(samples, column), "paths", ())
    shape = dict(zip(step.axes, samples.samples.fields[column].shape))
    for row, name in enumerate(names):
        size = size_of(files[row]) if files else (shape["H"], shape["W"])
        maps = [outputs[place][row : row + 1] for place in target.head["places"]]
        yield Prediction(name, {BOXES: boxes_of(maps, target, step.fit(size), size, least)})


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
