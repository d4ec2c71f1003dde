"""A size of images for a network that takes several: one at which it was seen to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

import torch
from torch import nn

from onnxgen.record.signature import Signature
from onnxgen.surgery.example import undisturbed
from onnxgen.training.model import fixed_batch
from onnxgen.training.tasks import possible

Size: TypeAlias = tuple[int, int]  # height and width
Sizes: TypeAlias = Collection[tuple[int, ...]]  # channels, height and width of the data's images
Runs: TypeAlias = Callable[[tuple[int, ...]], bool]  # whether a network runs on an image of a shape

USUAL = 224  # height and width for images of unknown or large sizes
LARGEST = 320  # sides that are large: they cost much more time than they tell
STEP = 32  # most networks take its multiples
SIDES = (32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640)  # heights that networks have
HEIGHTS = (48, 32)  # of PaddleOCR since v3, and of CRNN and PaddleOCR before
TIMES = 4  # how many times wider than high a line of text is, say
SECONDS = 10.0  # for trying them


def usual(sizes: Sizes) -> Size:
    """Return about the size of the data's images; that of many networks if it is large or not known."""
    if not sizes:
        return USUAL, USUAL
    height, width = (_up(median(size[axis] for size in sizes)) for axis in (1, 2))
    return (height, width) if max(height, width) <= LARGEST else (USUAL, USUAL)


@dataclass(frozen=True)
class Chooser:
    """What is known of a network that decides the size of its images, where both it and the data leave it open.

    Attributes:
        runs: tells if it runs on an image; None: nothing is tried.
        lines: its images are lines of text.
        classifies: it tells classes of whole images apart, and most such networks are trained on images of one size.
        told: returns the size that its file tells.
    """

    runs: Runs | None = None
    lines: bool = False
    classifies: bool = False
    told: Callable[[], Size | None] = lambda: None

    def must(self, axes: str, fixed: Mapping[str, int], stored: Mapping[str, int] | None, sizes: Sizes) -> bool:
        """Return True if the size of the data's images can't be taken: they differ, or the network fails on them.

        Files with lines of text get the height of their readers in any case.

        Args:
            axes: of the input's images, such as "CHW".
            fixed: the sizes that the input fixes, by axis.
            stored: those of all the data's images; None if they differ.
            sizes: those of the data's files; empty if they were not looked at.
        """
        if stored is None or (self.lines and sizes and {*"HW"} - {*fixed}):
            return True
        found = {**stored, **fixed}
        return self.runs is not None and not self.runs(tuple(found[axis] for axis in axes))

    def choose(self, axes: str, fixed: Mapping[str, int], sizes: Sizes) -> Mapping[str, int]:
        """Return channels, height and width at which the network runs; {} if it does at none of those tried."""
        if self.lines and self.runs is not None and (found := advised_for_lines(axes, fixed, sizes, self.runs)):
            return found
        height, width = self.told() or usual(() if self.classifies else sizes)
        if "H" in fixed:
            width = max((size[2] for size in sizes), default=TIMES * fixed["H"])
        elif "W" in fixed:
            height = max((size[1] for size in sizes), default=fixed["W"])
        channels = max((size[0] for size in sizes), default=3)
        return advised(axes, {"C": channels, "H": height, "W": width, **fixed}, fixed, self.runs)


def runner(model: nn.Module, ports: Signature) -> Runs | None:
    """Return a function that runs a network of one input on an image; None if it has several."""
    if len(ports.inputs) != 1:
        return None
    dtype = getattr(torch, ports.inputs[0].dtype or "float32")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def runs(shape: tuple[int, ...]) -> bool:
        with undisturbed(model), suppress(Exception):  # a network's code may raise anything
            model(torch.zeros((fixed_batch(model) or 1, *shape), dtype=dtype, device=device))
            return True
        return False

    return runs


def advised(axes: str, sides: Mapping[str, int], fixed: Collection[str], runs: Runs | None) -> Mapping[str, int]:
    """Return channels, height and width at which a network runs, as near to `sides` as there are some.

    Args:
        axes: of the input's images, such as "CHW".
        sides: by axis.
        fixed: the axes of those that the input fixes.
        runs: None: nothing is tried.

    Returns:
        `sides` as they are if nothing was tried; {} if the network ran at no size.
    """
    if runs is None:
        return sides
    tried, begun = set[tuple[int, ...]](), time.monotonic()
    for height, width in _near(sides["H"], sides["W"]):
        found = {**sides, **{axis: size for axis, size in (("H", height), ("W", width)) if axis not in fixed}}
        shape = tuple(found[axis] for axis in axes)
        if shape not in tried and runs(shape):
            return found
        tried.add(shape)
        if time.monotonic() - begun > SECONDS:
            break
    return {}


def classifies(ports: Signature, asked: bool = False) -> bool:
    """Return True if a network tells classes of whole images apart, as far as is known.

    `asked`: it is trained to do so, which decides if its graph left that open.
    """
    purpose = ports.purpose
    known = () if purpose is None else (purpose.kind, *(purpose.candidates if asked else ()))
    return "classification" in known


def reads_lines(ports: Signature) -> bool:
    """Return True if a network may read lines of text: its scores are a sequence's."""
    return any(card.resize == "line" for card in possible(ports.purpose))


def advised_for_lines(axes: str, fixed: Mapping[str, int], sizes: Sizes, runs: Runs) -> Mapping[str, int]:
    """Return channels, height and width for lines of text; {} if the network ran at no height.

    The heights are those of published readers of lines, the more common one first. The width is that of the longest
    line in proportion.

    Args:
        fixed: sizes that the input fixes, by axis.
        sizes: those of the data's images.
    """
    longest = max((width / height for _, height, width in sizes), default=TIMES)
    channels = max((size[0] for size in sizes), default=3)
    for height in [fixed["H"]] if "H" in fixed else (*HEIGHTS, *SIDES):
        found = {"C": channels, "H": height, "W": _up(height * longest), **fixed}
        if runs(tuple(found[axis] for axis in axes)):
            return found
    return {}


def _near(height: int, width: int) -> Iterator[Size]:
    """Yield sizes: these, multiples of a step, then others in the same proportions."""
    yield height, width
    yield _up(height), _up(width)
    yield from ((side, _up(side * width / height)) for side in SIDES)


def _up(size: float) -> int:
    return max(-(-int(size) // STEP), 1) * STEP
