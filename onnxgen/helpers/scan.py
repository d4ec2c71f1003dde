"""Running sums and products that leave out the element itself."""

from __future__ import annotations

import torch
from torch import Tensor


def exclusive_cumsum(x: Tensor, dim: int) -> Tensor:
    """ONNX CumSum, `exclusive`: the sum of all earlier elements along `dim`."""
    before = x.narrow(dim, 0, max(x.shape[dim] - 1, 0)).cumsum(dim, dtype=x.dtype)
    return torch.cat([torch.zeros_like(x.narrow(dim, 0, min(x.shape[dim], 1))), before], dim)


def exclusive_cumprod(x: Tensor, dim: int) -> Tensor:
    """ONNX CumProd, `exclusive`: the product of all earlier elements along `dim`."""
    before = x.narrow(dim, 0, max(x.shape[dim] - 1, 0)).cumprod(dim, dtype=x.dtype)
    return torch.cat([torch.ones_like(x.narrow(dim, 0, min(x.shape[dim], 1))), before], dim)
