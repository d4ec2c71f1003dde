"""Reads handwritten digits.

`network.py` and `network.safetensors` are not in version control: building this package makes them from
`models/digits.onnx`.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from digits.network import Model


@functools.cache
def trained() -> Model:
    """The trained network, read when it is first needed."""
    return Model.from_pretrained().eval()


def read(images: Tensor) -> list[int]:
    """What is drawn in images [n, 8, 8], whose values go from 0 (paper) to 1 (ink)."""
    with torch.inference_mode():
        return trained()(images.unsqueeze(1)).argmax(1).tolist()
