"""Conversions to types that torch does not have."""

from __future__ import annotations

import torch
from torch import Tensor


def float4(x: Tensor) -> Tensor:
    """The nearest numbers of float4e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives), ties to even, as float32.

    What is larger saturates (https://onnx.ai/onnx/technical/float4.html); NaN becomes 6, as the type has none.
    """
    size = torch.where(torch.isnan(x), 6.0, x.abs().clamp(max=6.0))
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return (torch.round(size / step) * step).copysign(torch.where(torch.isnan(x), 1.0, x))
