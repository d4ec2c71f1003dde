"""What authors of rotary embeddings call by these names."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate_half(x: Tensor) -> Tensor:
    """The second half of the last axis, negated, before the first."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def rotate_pairs(x: Tensor) -> Tensor:
    """Of the last axis every two neighbours (a, b) as (-b, a)."""
    return torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
