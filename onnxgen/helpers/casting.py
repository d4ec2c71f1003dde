"""Conversions to types that torch does not have."""

from __future__ import annotations

import torch
from torch import Tensor


def float4(x: Tensor) -> Tensor:
    """Round to float4e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and negatives), half to even.

    The result is float32. Larger numbers saturate; NaN, which the type lacks, becomes
    -0 (https://onnx.ai/onnx/technical/float4.html).
    """
    x = x.masked_fill(torch.isnan(x), -0.0)
    size = x.abs().clamp(max=6.0)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return (torch.round(size / step) * step).copysign(x)


def float8_e8m0(x: Tensor, rounding: str = "up", saturate: bool = True) -> Tensor:
    """Round float32 to float8e8m0: powers of two from 2**-127 to 2**127, or NaN.

    Args:
        rounding: to the power "up", "down" or "nearest" (the larger of two equally near
            ones).
        saturate: clamp numbers to the range; else those outside become NaN.
    """
    smallest, largest = 2.0**-127, 2.0**127
    inside = x.clamp(smallest, largest)
    mantissa, exponent = torch.frexp(inside)  # 0.5 <= mantissa < 1
    least = {"up": 0.5, "down": 1.0, "nearest": 0.75}[rounding]
    more = mantissa > least if rounding == "up" else mantissa >= least
    made = torch.ldexp(torch.ones_like(x), exponent - 1 + more.int())
    lost = x.isnan() if saturate else x.isnan() | (x != inside)
    return made.masked_fill(lost, float("nan"))
