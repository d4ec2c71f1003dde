"""Shapes that are known only when the network runs."""

from __future__ import annotations

import torch
from torch import Tensor


def reshape_keeping(x: Tensor, shape: list[int]) -> Tensor:
    """ONNX Reshape: 0 in the shape keeps a size of x, -1 is computed from the rest."""
    return x.reshape([size or x.shape[axis] for axis, size in enumerate(shape)])


def unsqueeze_at(x: Tensor, axes: list[int]) -> Tensor:
    """ONNX Unsqueeze: insert axes of size 1 at `axes`, which count in the result."""
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def equal_parts(x: Tensor, count: int, dim: int = 0) -> tuple[Tensor, ...]:
    """ONNX Split into `count` equal parts; the last may be smaller or empty."""
    size = x.shape[dim]
    part = (size + count - 1) // count
    return torch.split(x, [max(0, min(part, size - i * part)) for i in range(count)], dim)
