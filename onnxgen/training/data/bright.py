"""Images that are stored as floats from 0 to 255, and are taken for values from 0 to 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from onnxgen.errors import OnnxgenError
from onnxgen.training.data.samples import Field, Samples
from onnxgen.training.data.streaming.stream import leading

_LOOKED_AT = 200  # samples
_DARK = 16.0  # no image of values from 0 to 1, and no normalised one, is so bright
_WHITES = (255.0, 65535.0)


def white_of_floats(samples: Samples, column: str) -> float:
    """Return the value of white in a column of floats whose values reach far over 1, else 0."""
    if not samples.fields[column].dtype.is_floating_point:
        return 0.0
    values = samples.take(leading(samples, min(_LOOKED_AT, len(samples))), 0)[column]
    if not values.numel():
        return 0.0
    low, high = float(values.min()), float(values.max())
    return next((white for white in _WHITES if low >= 0 and _DARK < high <= white), 0.0)


def refuse_bright(samples: Samples, whites: Mapping[str, float]) -> None:
    """Refuse floats from 0 to 255 as images that are to be normalised or augmented: both mean values from 0 to 1."""
    for column, white in whites.items():
        if white == 1.0 and (found := white_of_floats(samples, column)):
            what = f"column {column!r} holds images as floats up to {found:.0f}, which are taken for 0 to 1"
            raise OnnxgenError(what, help=f"store them as uint8, or divide them by {found:.0f}")


def bright_notes(samples: Samples, columns: Iterable[str]) -> list[str]:
    """Return a note for each column of floats up to 255 that may be images and is fed as it is stored."""
    return [
        f"{column} is fed as it is stored, floats up to {white:.0f}: images would be scaled if they were uint8; or "
        f"divide them by {white:.0f}, unless the network takes them so"
        for column in columns
        if (white := white_of_floats(samples, column))
    ]


def bytes_notes(fed: Mapping[str, torch.dtype], fields: Mapping[str, Field]) -> list[str]:
    """Return a note for each column of bytes that is fed as floats without being an image. `fed`: dtypes by column."""
    return [
        f"{name} is fed as it is stored, from 0 to 255: images would be [n, height, width]"
        for name, dtype in fed.items()
        if dtype.is_floating_point and fields[name].dtype == torch.uint8
    ]
