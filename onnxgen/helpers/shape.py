"""Shapes that are known only when the network runs."""

from __future__ import annotations

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
