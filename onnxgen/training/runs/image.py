"""What `run.json` says of an input of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from onnxgen.common.built import Between, OneOf

ORDERS = ("RGB", "BGR")  # of channels


@dataclass(frozen=True)
class Image:
    """How an image becomes an input: convert to these channels, fit (bilinear, antialiased), scale, normalise.

    Attributes:
        channels: 1 is gray, 3 is RGB, 4 is RGBA.
        height, width: in pixels.
        axes: of one sample: "CHW", "HWC", "HW", or "flat" (the elements of CHW in one axis).
        mean, std: for each channel, of values from 0 to 1. None: values are fed as they are, from 0 to `white`.
        white: the value of white in the data of the run.
        beside: the bytes of a pixel beside an image that keeps its proportions; None: images are stretched.
        at: where such an image lies: "middle", "corner" or "line" (see `Placing`).
        order: of the channels as they are fed: "RGB", or "BGR" as OpenCV has them. `mean` and `std` are in this order.
        width_step: a line that is longer than `width` gets the least multiple of it that it needs; 0: it is squeezed.
    """

    channels: Annotated[int, OneOf((1, 3, 4))]
    height: Annotated[int, Between(1, 1 << 20)]
    width: Annotated[int, Between(1, 1 << 20)]
    axes: Annotated[str, OneOf(("CHW", "HWC", "HW", "flat"))]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    white: Annotated[float, Between(1e-9, 1e9)]
    beside: tuple[Annotated[int, Between(0, 255)], ...] | None = None
    at: Annotated[str, OneOf(("middle", "corner", "line"))] = "middle"
    order: Annotated[str, OneOf(ORDERS)] = "RGB"
    width_step: Annotated[int, Between(0, 1 << 20)] = 0

    def check(self) -> None:
        """Raise `ValueError` if the values do not go together."""
        if (self.mean is None) != (self.std is None):
            raise ValueError("its image has a mean without a deviation, or the other way round")
        for values in (self.mean, self.std, self.beside):
            if values is not None and len(values) != self.channels:
                what = f"{len(values)} means, deviations or bytes of a pixel"
                raise ValueError(f"its image has {self.channels} channels, and {what}")
        if not all(deviation > 0 for deviation in self.std or ()):
            raise ValueError("its image has a deviation that is not positive")
