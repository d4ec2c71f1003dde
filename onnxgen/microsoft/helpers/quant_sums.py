"""Quantised sums and softmax with onnxruntime's own rounding."""

from __future__ import annotations

import torch
from torch import Tensor


def quantized_sum(
    a: Tensor, a_scale: Tensor | float, b: Tensor, b_scale: Tensor | float, offset: Tensor | float
) -> Tensor:
    """onnxruntime's QLinearAdd: `a * a_scale + (b * b_scale + offset)`, saturated.

    It is rounded half to even. Products are added without rounding in between, as by
    its fused multiply-add, which float64 equals. The scales are relative to the
    result's, and the offset combines the three zero points.
    """
    total = (b.double() * b_scale + offset).float()
    total = (a.double() * a_scale + total).float()
    limits = torch.iinfo(a.dtype)
    return total.round().clamp(limits.min, limits.max).to(a.dtype)


def quantized_softmax(
    x: Tensor, x_scale: Tensor | float, y_scale: Tensor | float, y_zero: Tensor | int, dim: int
) -> Tensor:
    """onnxruntime's QLinearSoftmax along an axis.

    It multiplies by the whole number below `1 / y_scale`. For y_scale below about 1 /
    2000, onnxruntime 1.31 returns zeros, since its exponentials overflow; this does
    not.
    """
    below = x.double() - x.double().amax(dim, keepdim=True)
    exponentials = (below * x_scale).exp().float()
    steps = torch.floor(1.0 / torch.as_tensor(y_scale, dtype=torch.float32, device=x.device))
    limits = torch.iinfo(x.dtype)
    total = (exponentials * steps / exponentials.sum(dim, keepdim=True)).round() + y_zero
    return total.clamp(limits.min, limits.max).to(x.dtype)
