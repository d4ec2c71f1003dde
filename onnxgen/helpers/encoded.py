"""Decoding of image files."""

from __future__ import annotations

import torch
from torch import Tensor


def decode_image(stream: Tensor, pixels: str = "RGB") -> Tensor:
    """ONNX ImageDecoder: decode an image file to uint8 [height, width, channels].

    The result has no elements if the file can't be decoded.

    Args:
        stream: the file's bytes, uint8.
        pixels: "RGB", "BGR" or "Grayscale".
    """
    from io import BytesIO

    import numpy
    from PIL import Image, UnidentifiedImageError

    channels = 1 if pixels == "Grayscale" else 3
    try:
        with Image.open(BytesIO(stream.cpu().numpy().tobytes())) as image:
            array = numpy.array(image.convert("L" if channels == 1 else "RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        return torch.zeros(0, 0, channels, dtype=torch.uint8, device=stream.device)
    made = torch.from_numpy(array).to(stream.device).reshape(*array.shape[:2], channels)
    return made.flip(-1) if pixels == "BGR" else made
