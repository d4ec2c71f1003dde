"""Shapes that are known only when the network runs."""

from __future__ import annotations

import torch
from torch import Tensor


def reshape_keeping(x: Tensor, shape: list[int]) -> Tensor:
    """x in a new shape, in which 0 stands for the size that x has on that axis, and one -1 for what is left."""
    return x.reshape([size or x.shape[axis] for axis, size in enumerate(shape)])


def unsqueeze_at(x: Tensor, axes: list[int]) -> Tensor:
    """x with an axis of size 1 at each of `axes`, which are places in the result's shape."""
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def equal_parts(x: Tensor, count: int, dim: int = 0) -> tuple[Tensor, ...]:
    """ONNX Split into `count` parts of one size along an axis: the last ones may be smaller, or empty."""
    size = x.shape[dim]
    part = (size + count - 1) // count
    return torch.split(x, [max(0, min(part, size - i * part)) for i in range(count)], dim)
