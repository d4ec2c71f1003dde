"""Padding with ONNX's semantics, where those of `F.pad` differ."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def pad_with(x: Tensor, sides: Sequence[int], value: Tensor) -> Tensor:
    """`F.pad` with a tensor of one element as the value, which gets a gradient."""
    inside = F.pad(torch.ones_like(x, dtype=torch.bool), sides)
    return torch.where(inside, F.pad(x, sides), value.reshape(()))


def pad_axes(
    x: Tensor,
    pads: Sequence[int],
    axes: Sequence[int] | None = None,
    mode: str = "constant",
    value: Tensor | float = 0,
) -> Tensor:
    """ONNX Pad: any axes, any rank, any dtype; negative pads crop.

    Args:
        pads: what to add at the beginning of each of `axes`, then at their ends.
        axes: default: all.
        mode: "constant", "reflect" (without repeating the edge), "edge" or "wrap";
            applied after cropping.
    """
    chosen = [a % x.dim() for a in (range(x.dim()) if axes is None else axes)]
    begins, ends = pads[: len(chosen)], pads[len(chosen) :]
    if mode == "constant":
        sides = [0] * (2 * x.dim())
        for axis, begin, end in zip(chosen, begins, ends):
            sides[2 * (x.dim() - 1 - axis)], sides[2 * (x.dim() - 1 - axis) + 1] = begin, end
        return pad_with(x, sides, value) if isinstance(value, Tensor) else F.pad(x, sides, value=value)
    for axis, begin, end in zip(chosen, begins, ends):
        size = x.shape[axis] + min(begin, 0) + min(end, 0)
        x = x.narrow(axis, -min(begin, 0), size)
        position = torch.arange(-max(begin, 0), size + max(end, 0), device=x.device)
        if mode == "edge":
            position = position.clamp(0, size - 1)
        elif mode == "wrap":
            position = position % size
        else:
            position = position % max(2 * size - 2, 1)  # a single element is repeated
            position = torch.minimum(position, 2 * size - 2 - position)
        x = x.index_select(axis, position)
    return x


def center_crop_pad(x: Tensor, sizes: Sequence[int], axes: Sequence[int] | None = None) -> Tensor:
    """ONNX CenterCropPad: crop or zero-pad both ends; odd elements go to the end."""
    for axis, size in zip(range(x.dim()) if axes is None else axes, sizes):
        spare = x.shape[axis] - size
        if spare >= 0:
            x = x.narrow(axis, spare // 2, size)
        else:
            sides = [0] * (2 * (x.dim() - axis % x.dim()))
            sides[-2], sides[-1] = -spare // 2, -spare - -spare // 2
            x = F.pad(x, sides)
    return x
