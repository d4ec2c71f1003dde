"""Rotations of rotary embeddings, under their usual names."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate_half(x: Tensor) -> Tensor:
    """Swap the halves of the last axis, negate the second: (a, b) becomes (-b, a)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def rotate_pairs(x: Tensor) -> Tensor:
    """Turn each pair of neighbours (a, b) on the last axis into (-b, a)."""
    return torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
