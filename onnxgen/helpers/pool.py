"""Pooling with ONNX's semantics, where those of torch's functions differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def pool_windows(x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """Return all pooling windows of x [batch, channels, size...] as a view.

    The view is [batch, channels, out..., kernel...].
    """
    for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation), 2):
        x = x.unfold(axis, (k - 1) * d + 1, s)[..., ::d]
    return x


def average_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    pads: Sequence[int],
    overhang: Sequence[int],
    count_include_pad: bool,
) -> Tensor:
    """ONNX AveragePool with dilation and with different padding on each side.

    Args:
        x: [batch, channels, size...].
        pads: padding for `F.pad`; it counts as elements only if `count_include_pad`. A
            window without elements is 0.
        overhang: further padding for `F.pad` that never counts (from a rounded-up
            output size).
    """
    counted = x.new_ones(1, 1, *x.shape[2:])
    counted = F.pad(F.pad(counted, pads, value=float(count_include_pad)), overhang)
    axes = list(range(-len(kernel), 0))
    total = pool_windows(F.pad(F.pad(x, pads), overhang), kernel, stride, dilation).sum(axes)
    count: Tensor = pool_windows(counted, kernel, stride, dilation).sum(axes)
    return total / count.clamp(min=1)


def summed_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    pads: Sequence[int],
    overhang: Sequence[int],
    count_include_pad: bool,
) -> Tensor:
    """`average_pool` summed one by one; where padding counts, `overhang` does, too."""
    ones, axes = (1,) * len(kernel), list(range(-len(kernel), 0))
    counted = F.pad(F.pad(x.new_ones(1, 1, *x.shape[2:]), pads), overhang)
    windows = pool_windows(F.pad(F.pad(x, pads), overhang), kernel, stride, ones).flatten(-len(kernel))
    total = windows[..., 0]
    for number in range(1, windows.shape[-1]):
        total = total + windows[..., number]
    if count_include_pad:
        return total / math.prod(kernel)
    return total / pool_windows(counted, kernel, stride, ones).sum(axes)


def lp_pool(x: Tensor, p: float, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """ONNX LpPool: the p-norm of each window of x [batch, channels, size...]."""
    norm: Tensor = torch.linalg.vector_norm(pool_windows(x, kernel, stride, dilation), p, list(range(-len(kernel), 0)))
    return norm


def max_pool_with_indices(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    pads: Sequence[int],
    column_major: bool = False,
) -> tuple[Tensor, Tensor]:
    """ONNX MaxPool that also returns the indices of the maxima.

    Args:
        x: [batch, channels, size...], 1 to 3 sizes.
        pads: padding for `F.pad`; it is never the maximum.
        column_major: count spatial positions with the first axis fastest (storage_order
            1).

    Returns:
        The maxima, and the position (int64) of each in the flattened x.
    """
    sizes, n = x.shape[2:], len(kernel)
    pools = (F.max_pool1d_with_indices, F.max_pool2d_with_indices, F.max_pool3d_with_indices)
    padded = F.pad(x, pads, value=float("-inf"))
    y, flat = pools[n - 1](padded, tuple(kernel), tuple(stride), (0,) * n, tuple(dilation))
    positions: list[Tensor] = []
    for axis in reversed(range(n)):  # of the flattened padded sizes
        positions.insert(0, flat % padded.shape[2 + axis] - pads[2 * (n - 1 - axis)])
        flat = flat // padded.shape[2 + axis]
    index = torch.zeros_like(flat)
    for axis in reversed(range(n)) if column_major else range(n):
        index = index * sizes[axis] + positions[axis]
    plane = torch.arange(x.shape[0] * x.shape[1], device=x.device) * math.prod(sizes)
    return y, index + plane.reshape(x.shape[0], x.shape[1], *[1] * n)


def masked_max_pool(
    x: Tensor, mask: Tensor, kernel: Sequence[int], stride: Sequence[int], pads: Sequence[int]
) -> Tensor:
    """onnxruntime's MaxpoolWithMask: rows of a window end at the first 0 of the mask.

    Args:
        x: [batch, channels, size...].
        mask: integers, of x's sizes. As in onnxruntime's kernel, the first element of a
            plane is never hidden, and the mask of the nth plane is read from n times
            its size on, modulo the number of the mask's planes.
        pads: padding for `F.pad`; it is never the maximum.

    Returns:
        The maxima; the lowest number of the type for windows without elements.
    """
    lowest, size = torch.finfo(x.dtype).min, math.prod(x.shape[2:])
    begins = torch.arange(x.shape[0] * x.shape[1], device=x.device) * size % (mask.shape[0] * mask.shape[1])
    seen = mask.flatten()[begins.unsqueeze(-1) + torch.arange(size, device=x.device)] != 0
    seen[:, :1] = True
    ones, axes = (1,) * len(kernel), list(range(-len(kernel), 0))
    shown = pool_windows(F.pad(seen.reshape(x.shape).int(), pads, value=1), kernel, stride, ones).cumprod(-1)
    values = F.pad(torch.where(x > lowest, x, lowest), pads, value=lowest)
    return torch.where(shown > 0, pool_windows(values, kernel, stride, ones), lowest).amax(axes)


def max_unpool(x: Tensor, index: Tensor, shape: Sequence[int], windows: Sequence[int] | None = None) -> Tensor:
    """ONNX MaxUnpool: write x into zeros of a shape at the positions `index`.

    Args:
        x: [batch, channels, size...].
        index: of x's shape, int64: positions in the flattened result.
        windows: the shape that all windows together cover, in which `index` counts. A
            larger result has zeros at the ends.
    """
    counted = shape if windows is None else [min(pair) for pair in zip(shape, windows)]
    made = x.new_zeros(math.prod(counted)).scatter(0, index.flatten(), x.flatten()).reshape(list(counted))
    if windows is None:
        return made
    return F.pad(made, [s for pair in zip(shape[::-1], counted[::-1]) for s in (0, pair[0] - pair[1])])
