"""Running sums and products that leave out the element itself."""

from __future__ import annotations

import torch
from torch import Tensor


def exclusive_cumsum(x: Tensor, dim: int) -> Tensor:
    """The sum of all earlier elements along `dim`, 0 for the first (ONNX CumSum,
    `exclusive`); x's dtype and shape.
    """
    before = x.narrow(dim, 0, max(x.shape[dim] - 1, 0)).cumsum(dim, dtype=x.dtype)
    return torch.cat([torch.zeros_like(x.narrow(dim, 0, min(x.shape[dim], 1))), before], dim)


def exclusive_cumprod(x: Tensor, dim: int) -> Tensor:
    """The product of all earlier elements along `dim`, 1 for the first (ONNX CumProd,
    `exclusive`).
    """
    before = x.narrow(dim, 0, max(x.shape[dim] - 1, 0)).cumprod(dim, dtype=x.dtype)
    return torch.cat([torch.ones_like(x.narrow(dim, 0, min(x.shape[dim], 1))), before], dim)
