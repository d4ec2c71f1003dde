"""Images: local response normalisation, columns to image, deformable convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def local_response_norm(x: Tensor, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    """ONNX LRN over windows of channels, x [batch, channels, ...].

    An even window has its longer side after the channel; torch's has it before.
    """
    squares = F.pad((x * x).movedim(1, -1), ((size - 1) // 2, size // 2)).unfold(-1, size, 1).sum(-1)
    return x / (bias + alpha / size * squares.movedim(-1, 1)) ** beta


def columns_to_image(
    x: Tensor,
    image: Sequence[int],
    block: Sequence[int],
    dilation: Sequence[int],
    pads: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    """ONNX Col2Im: add up blocks at their positions in an image of any rank.

    Args:
        x: [batch, channels * product of block, number of blocks].
        image, block, dilation, stride: one entry a spatial axis.
        pads: the begins, then the ends.

    Returns:
        [batch, channels, image...].
    """
    n = len(image)
    padded = [image[i] + pads[i] + pads[n + i] for i in range(n)]
    place = torch.zeros((), dtype=torch.long, device=x.device)  # [block..., blocks along each axis...]
    for i in range(n):
        count = (padded[i] - dilation[i] * (block[i] - 1) - 1) // stride[i] + 1
        inner = torch.arange(block[i], device=x.device).reshape(-1, *[1] * (n - 1 - i + n)) * dilation[i]
        outer = torch.arange(count, device=x.device).reshape(-1, *[1] * (n - 1 - i)) * stride[i]
        place = place * padded[i] + inner + outer
    values = x.reshape(x.shape[0], x.shape[1] // math.prod(block), -1)
    flat = x.new_zeros(values.shape[0], values.shape[1], math.prod(padded))
    made = flat.index_add(2, place.flatten(), values).reshape(*flat.shape[:2], *padded)
    return F.pad(made, [-p for i in reversed(range(n)) for p in (pads[i], pads[n + i])])


def bilinear_at(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Sample x bilinearly at fractional positions; zero outside.

    Args:
        x: [batch, channels, height, width].
        rows, columns: [batch, points].

    Returns:
        [batch, channels, points].
    """
    height, width = x.shape[2:]
    flat = x.flatten(2)
    total = x.new_zeros(*x.shape[:2], rows.shape[1])
    for row in (rows.floor(), rows.floor() + 1):
        for column in (columns.floor(), columns.floor() + 1):
            weight = (1 - (rows - row).abs()) * (1 - (columns - column).abs())
            weight = weight * ((row >= 0) & (row < height) & (column >= 0) & (column < width))
            index = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).long()
            picked = flat.gather(2, index.unsqueeze(1).expand(-1, flat.shape[1], -1))
            total = total + picked * weight.unsqueeze(1)
    return total


def deform_conv2d(
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    offset_groups: int = 1,
) -> Tensor:
    """ONNX DeformConv: a convolution with shifted sampling points.

    Dai et al. 2017; with `mask` Zhu et al. 2018.

    Args:
        x: [batch, channels, height, width].
        weight: [out channels, channels / groups, kernel height, kernel width].
        offset: [batch, offset_groups * kernel size * 2, out height, out width]; row
            before column.
        bias: [out channels].
        mask: [batch, offset_groups * kernel size, out height, out width], a factor for
            each tap.
        pads: top, left, bottom, right.

    Returns:
        [batch, out channels, out height, out width].
    """
    batch, channels = x.shape[:2]
    kernel_height, kernel_width = weight.shape[2:]
    height, width = offset.shape[2:]
    taps = kernel_height * kernel_width
    rows = torch.arange(kernel_height, device=x.device).repeat_interleave(kernel_width) * dilation[0]
    columns = torch.arange(kernel_width, device=x.device).repeat(kernel_height) * dilation[1]
    top = torch.arange(height, device=x.device) * stride[0] - pads[0]
    left = torch.arange(width, device=x.device) * stride[1] - pads[1]
    moved = offset.reshape(batch * offset_groups, taps, 2, height, width)
    row = moved[:, :, 0] + rows.reshape(-1, 1, 1) + top.reshape(-1, 1)
    column = moved[:, :, 1] + columns.reshape(-1, 1, 1) + left
    source = x.reshape(batch * offset_groups, channels // offset_groups, *x.shape[2:])
    picked = bilinear_at(source, row.flatten(1), column.flatten(1))
    picked = picked.reshape(batch, offset_groups, -1, taps, height * width)
    if mask is not None:
        picked = picked * mask.reshape(batch, offset_groups, 1, taps, height * width)
    picked = picked.reshape(batch, groups, channels // groups * taps, height * width)
    kernels = weight.reshape(groups, weight.shape[0] // groups, -1)
    y = (kernels @ picked).reshape(batch, weight.shape[0], height, width)
    return y if bias is None else y + bias.reshape(-1, 1, 1)
