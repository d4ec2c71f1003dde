"""Conversions to types that torch does not have."""

from __future__ import annotations

import torch
from torch import Tensor


def float4(x: Tensor) -> Tensor:
    """The nearest numbers of float4e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives), ties to even, as float32.

    What is larger saturates (https://onnx.ai/onnx/technical/float4.html); NaN, which the type lacks, becomes -0.
    """
    x = x.masked_fill(torch.isnan(x), -0.0)
    size = x.abs().clamp(max=6.0)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return (torch.round(size / step) * step).copysign(x)
