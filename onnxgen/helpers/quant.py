"""Integer arithmetic of quantised networks, exact on every device."""

from __future__ import annotations

import torch
from torch import Tensor


def dynamic_quantize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ONNX's DynamicQuantizeLinear: float32 to uint8 over the range of `x` and 0.

    Returns the quantised tensor, its scale (float32) and its zero point (uint8), both
    of rank 0. A range of one point has the scale 1, as in onnxruntime.
    """
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = torch.where(low == high, 1.0, (high - low) / 255)
    zero = (-low / scale).round().clamp(0, 255)
    return ((x / scale).round() + zero).clamp(0, 255).to(torch.uint8), scale, zero.to(torch.uint8)


def integer_matmul(a: Tensor, b: Tensor, a_zero: Tensor | int = 0, b_zero: Tensor | int = 0) -> Tensor:
    """`(a - a_zero) @ (b - b_zero)` of 8-bit integers as int32.

    It is computed in float64, where every sum is exact; torch has integer products on
    the CPU only.
    """
    return ((a.double() - a_zero) @ (b.double() - b_zero)).long().int()


def requantize(total: Tensor, scale: Tensor | float, zero: Tensor | int, dtype: torch.dtype) -> Tensor:
    """Scale integer sums, round half to even, add `zero`, saturate to int8 or uint8."""
    limits = torch.iinfo(dtype)
    return ((total.float() * scale).round() + zero).clamp(limits.min, limits.max).to(dtype)
