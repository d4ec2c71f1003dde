"""What a model's outputs say about one sample: a class with its probability, labels, numbers or a map of classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onnxgen.training.data.image_options import parse_scale
from onnxgen.training.goals.names import BINARY_LOSSES
from onnxgen.training.goals.outputs import greedy, peaks, spelled
from onnxgen.training.runs.record import Target
from onnxgen.training.tasks import reader_of

Probabilities: TypeAlias = Mapping[str, float]
COSINE = "cosine"  # the name of an answer: how alike the vectors of a pair are
LIKELY = 0.5  # a label with at least this probability holds
_HALF = (torch.float16, torch.bfloat16)  # float32 has the same numbers, numpy knows it, and its probabilities sum to 1


@dataclass(frozen=True)
class Box:
    """An object that was found: its class, how sure that is (0 to 1), and x1, y1, x2, y2 in pixels of the image."""

    label: str
    score: float
    corners: tuple[float, float, float, float]


@dataclass(frozen=True)
class Answer:
    """What one output says about one sample.

    Attributes:
        label: the most probable class; the labels that hold, if there may be several; the class of each position of a
            sequence, if classes have names; those of the boxes; the text of a CTC output; None for numbers and maps.
        probabilities: of each class or label, in the model's order; empty for numbers and maps.
        value: for a map of classes, the class index at each position; for heatmaps, x, y (as shares of width and
            height) and the peak of each keypoint [K, 3]; for an image, bytes [H, W] or [H, W, C]; for boxes, class
            index, score, x1, y1, x2, y2 [n, 6]; else the output as it is.
        boxes: the objects in an image, the surest first; None for other answers.
        best: the greatest score that a detector gives in the image, also if no box is found; None for other answers.
        score: of a text, the mean probability of its characters where they are read; of an empty one, of the blanks.
            None for other answers.
        soft: True if the value has the probability of each class at each position instead, float32 [C, ...].
    """

    label: str | tuple[str, ...] | None
    probabilities: Probabilities
    value: NDArray[Any]
    boxes: tuple[Box, ...] | None = None
    soft: bool = False
    best: float | None = None
    score: float | None = None

    @property
    def is_image(self) -> bool:
        return self.value.dtype == np.uint8 and self.value.ndim in (2, 3)

    def top(self, count: int) -> list[tuple[str, float]]:
        """Return the most probable classes, the first one first."""
        return sorted(self.probabilities.items(), key=lambda pair: -pair[1])[:count]


@dataclass(frozen=True)
class Prediction:
    """The prediction for one sample.

    Attributes:
        source: the file, or the number of the row, counted from 0.
        answers: by the name of the output.
    """

    source: str
    answers: Mapping[str, Answer]

    @property
    def answer(self) -> Answer:
        """The answer of the first output."""
        return next(iter(self.answers.values()))

    @property
    def label(self) -> str | tuple[str, ...] | None:
        """The label of the first output."""
        return self.answer.label

    @property
    def probabilities(self) -> Probabilities:
        """The probabilities of the first output."""
        return self.answer.probabilities

    def __repr__(self) -> str:
        shown = {name: _shown(answer) for name, answer in self.answers.items()}
        text = ", ".join(shown.values() if len(shown) == 1 else (f"{name}: {text}" for name, text in shown.items()))
        return f"<{self.source}: {text}>"


def _shown(answer: Answer) -> str:
    if isinstance(answer.label, str):
        sure = answer.probabilities.get(answer.label, answer.score)
        return answer.label if sure is None else f"{answer.label} {sure:.1%}"
    if answer.label is not None:
        return (", " if answer.probabilities or answer.boxes else " ").join(answer.label) or "no label"
    value = answer.value
    return f"{value.item():.6g}" if value.size == 1 else f"{value.dtype} {list(value.shape)}"


def answer(output: Tensor, target: Target | None, soft: bool = False, stepwise: bool = False) -> Answer:
    """Return what one output says about one sample.

    Args:
        output: for one sample, with a batch axis of 1 (at `target.batch`).
        target: what the output was trained for; None if it was not trained.
        soft: of a map of classes, return probabilities (see `Answer.soft`).
        stepwise: the second axis is of the steps of a sample, also if there is one step.
    """
    output = output.float() if output.dtype in _HALF else output
    if target is not None and (read := reader_of(target.loss)) is not None:
        return read(output, target)
    value = output[0].numpy()
    if target is None or not target.classes:
        return Answer(None, {}, value)
    if soft and is_map(output, target):
        return _soft_map(output, target)
    if target.loss in BINARY_LOSSES:
        return _labels(output, target, stepwise)
    if output.ndim > 2:
        best = output.argmax(target.axis)[0].numpy()
        named = best.ndim == 1 and bool(target.names)  # a class for each position of a sequence
        return Answer(tuple(target.all_names[i] for i in best) if named else None, {}, best)
    names = target.all_names
    label = names[int(output[0].argmax())]
    if target.loss == "multi_margin_loss":  # scores, which are no probabilities
        return Answer(label, {}, value)
    probabilities = _probabilities(output, target)[0].tolist()
    return Answer(label, dict(zip(names, probabilities, strict=True)), value)


def _soft_map(output: Tensor, target: Target) -> Answer:
    """Return the probability of each class at each position, [C, ...]."""
    of_classes = _probabilities(output, target)[0]
    bare = of_classes.ndim == 2 and target.loss in BINARY_LOSSES  # one number at each place of an image
    value = of_classes[None] if bare else of_classes.movedim(target.axis - 1, 0)
    return Answer(None, {}, value.numpy(), soft=True)


def compared(names: Sequence[str], outputs: Mapping[str, Tensor], target: object) -> Iterator[Prediction]:
    """Yield the cosine of the first vector of each tuple with each other one.

    Args:
        outputs: by name; those [samples, members, D] are vectors.
        target: as in `Settings`: it may name the output that was trained.
    """
    trained = target if isinstance(target, Mapping) else {}
    vectors = {name: y.float() for name, y in outputs.items() if y.ndim == 3}
    cosines = {
        COSINE if len(vectors) == 1 or name in trained else f"{COSINE} of {name}": torch.cosine_similarity(
            y[:, :1], y[:, 1:], dim=-1
        ).numpy()
        for name, y in vectors.items()
    }
    for row, source in enumerate(names):
        yield Prediction(source, {name: Answer(None, {}, values[row]) for name, values in cosines.items()})


def is_map(output: Tensor, target: Target | None) -> bool:
    """Return True for probabilities, or scores that stand for them, of classes at several positions."""
    if target is None or target.loss == "multi_margin_loss" or reader_of(target.loss) is not None:
        return False
    return target.classes > 0 and output.ndim > 2


def _probabilities(output: Tensor, target: Target) -> Tensor:
    if target.loss in BINARY_LOSSES:
        return output if target.activation else output.sigmoid()
    if target.activation == "softmax":
        return output
    return output.exp() if target.activation == "log_softmax" else output.softmax(target.axis)


def _labels(output: Tensor, target: Target, stepwise: bool) -> Answer:
    """Return the answer of one number for two classes, of one number for each label, or of a map of such numbers."""
    probabilities, value = _probabilities(output, target)[0].flatten(), output[0].numpy()
    if probabilities.numel() == 1 and not stepwise:
        names = target.names if len(target.names) == 2 else ("0", "1")
        second = probabilities.item()
        return Answer(names[second > LIKELY], {names[0]: 1 - second, names[1]: second}, value)
    if output.ndim > 2:
        return Answer(None, {}, (_probabilities(output, target)[0] > LIKELY).numpy().astype(np.int64))
    many = target.names if len(target.names) == probabilities.numel() else tuple(map(str, range(probabilities.numel())))
    likely = dict(zip(many, probabilities.tolist(), strict=True))
    return Answer(tuple(name for name, p in likely.items() if p > LIKELY), likely, value)


def text(output: Tensor, target: Target) -> Answer:
    """Return the text of class scores, whose axes are `target.batch`, `target.axis` and time."""
    sure, best = (x.flatten() for x in _probabilities(output, target).max(target.axis))
    ids = greedy(best[None], target.blank)[0]
    read = best != target.blank
    read[1:] &= best[1:] != best[:-1]  # a character is read at its first step, as PaddleOCR scores it
    score = (sure[read] if ids else sure).mean().item()
    text = spelled(ids, target.blank, target.names)
    return Answer(text, {}, output.squeeze(target.batch).numpy(), score=score)


def places(output: Tensor, target: Target) -> Answer:
    """Return the places of keypoints, and how high their peaks are."""
    return Answer(None, {}, peaks(output)[0].numpy())


def picture(output: Tensor, target: Target) -> Answer:
    """Return an image of bytes, [H, W] or [H, W, C]."""
    x = output.movedim(target.axis, 3) if target.axis > 0 else output[..., None]
    mean, deviation = (x.new_tensor(values) for values in parse_scale(target.scale, x.shape[3]))
    image = (x * deviation + mean).clamp(0, 1).mul(255).round().to(torch.uint8)[0].numpy()
    image = image[..., ::-1] if target.order == "BGR" else image
    return Answer(None, {}, image[..., 0] if image.shape[2] == 1 else image)
