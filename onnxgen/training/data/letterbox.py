"""Where an image lies in the frame that a model takes: stretched to it, or with its proportions and gray beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

INNER = "inner"  # beside boxes: where an image lies in the frame
WHOLE = torch.tensor([0.0, 0.0, 1.0, 1.0])  # the corners of an image as shares of it
GRAY = 114  # of 255: what is beside the image, as Ultralytics pads it (`LetterBox` in `data/augment.py`)


@dataclass(frozen=True)
class Fit:
    """The place of an image in a frame, in pixels.

    Attributes:
        frame: height and width of the frame.
        inner: height and width of the image in it.
        top, left: where the image begins.
    """

    frame: tuple[int, int]
    inner: tuple[int, int]
    top: int = 0
    left: int = 0

    @property
    def moves(self) -> bool:
        """Return False if the image fills the frame."""
        return self.inner != self.frame

    def into_frame(self, corners: Tensor) -> Tensor:
        """Return corners [..., 4] (x1, y1, x2, y2), given as shares of the image, as shares of the frame."""
        scale, start, whole = self._numbers(corners)
        return (corners * scale + start) / whole

    def out_of_frame(self, corners: Tensor) -> Tensor:
        """Return corners [..., 4], given in pixels of the frame, as shares of the image, cut off at its edges."""
        scale, start, _ = self._numbers(corners)
        return ((corners - start) / scale).clamp(0, 1)

    def _numbers(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pairs = (self.inner[1], self.inner[0]), (self.left, self.top), (self.frame[1], self.frame[0])
        scale, start, whole = (torch.tensor(pair * 2, dtype=like.dtype, device=like.device) for pair in pairs)
        return scale, start, whole


@dataclass(frozen=True)
class Placing:
    """How images get the size of a frame.

    Attributes:
        how: "stretch"; "letterbox" keeps the proportions, in the middle; "corner" does so at the top left, as YOLOX
            (`preproc` in `yolox/data/data_augment.py`); "line" gives the frame's height, at the left, and squeezes what
            is wider than the frame, as PaddleOCR (`resize_norm_img` in `ppocr/data/imaug/rec_img_aug.py`).
        byte: the gray beside an image, of 255.
    """

    how: str = "stretch"
    byte: int = GRAY

    @property
    def moves(self) -> bool:
        """Return True if images keep their proportions, so that what is labelled on them moves, too."""
        return self.how != "stretch"

    def pixel(self, channels: int) -> tuple[int, ...]:
        """Return the bytes of a pixel beside an image: gray, and opaque."""
        return (self.byte,) * min(channels, 3) + (255,) * (channels == 4)

    def fit(self, size: tuple[int, int], frame: tuple[int, int]) -> Fit:
        """Return where an image of this height and width lies in a frame."""
        if not self.moves:
            return Fit(frame, frame)
        if self.how == "line":
            return Fit(frame, (frame[0], min(self.width_of(size, frame[0]), frame[1])))
        ratio = min(frame[0] / size[0], frame[1] / size[1])
        height, width = (max(1, min(round(side * ratio), most)) for side, most in zip(size, frame))
        middle = self.how == "letterbox"
        top, left = (frame[0] - height) // 2 * middle, (frame[1] - width) // 2 * middle
        return Fit(frame, (height, width), top, left)

    def width_of(self, size: tuple[int, int], height: int) -> int:
        """Return the width in proportion of an image of this height and width, at another height."""
        return math.ceil(height * size[1] / size[0])


STRETCHED = Placing()
