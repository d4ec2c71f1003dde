"""ONNX Resize in full: every mode and coordinate transformation, one axis after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def resize(
    x: Tensor,
    axes: Sequence[int],
    sizes: Sequence[int] | None = None,
    scales: Sequence[float] | None = None,
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    rounding: str = "round_prefer_floor",
    cubic: float = -0.75,
    exclude_outside: bool = False,
    antialias: bool = False,
    roi: Tensor | Sequence[float] | None = None,
    outside: float = 0.0,
    policy: str = "stretch",
    whole: bool = False,
) -> Tensor:
    """ONNX Resize (19): resize the given axes, each to a size or by a scale.

    Args:
        x: any shape and dtype; modes other than "nearest" compute in floating point.
        sizes, scales: one per axis; scales win.
        mode: "nearest", "linear" or "cubic".
        coordinates, rounding: ONNX's coordinate_transformation_mode and nearest_mode.
        cubic: the coefficient a of the cubic kernel.
        exclude_outside: neighbours outside the input have weight 0, instead of
            repeating the edge.
        antialias: widen the kernel when shrinking.
        roi: with "tf_crop_and_resize", the starts, then the ends, of the region in
            [0, 1].
        outside: the value of points outside the input, with "tf_crop_and_resize".
        policy: ONNX's keep_aspect_ratio_policy.
        whole: "align_corners" is between whole sizes, as in PyTorch, even if a scale
            gives a fraction.
    """
    n, old, dtype = len(axes), [x.shape[a] for a in axes], x.dtype
    starts, ends = (list(roi[:n]), list(roi[n:])) if roi is not None else ([0.0] * n, [1.0] * n)
    cropped = coordinates == "tf_crop_and_resize"
    sizes, scales, widths = resize_targets(old, sizes, scales, policy, whole)
    if list(sizes) == old and not cropped:
        return x  # as onnxruntime, whatever the scales are
    if mode != "nearest" and dtype not in (torch.float32, torch.float64):
        x = x.float()
    missed = torch.zeros([1] * x.dim(), dtype=torch.bool, device=x.device)
    for axis, before, size, width, scale, start, end in zip(axes, old, sizes, widths, scales, starts, ends):
        if scale == 1 and size == before and not cropped:
            continue
        at = resize_coordinates(size, before, scale, coordinates, start, end, width, x.device)
        if cropped:
            shape = [size if a == axis % x.dim() else 1 for a in range(x.dim())]
            missed = missed | ((at < 0) | (at > before - 1)).reshape(shape)
        if mode == "nearest":
            x = x.index_select(axis, resize_nearest(at, before, scale, rounding))
            continue
        index, weight = resize_taps(at, before, scale if antialias else 1.0, mode, cubic, exclude_outside)
        x = weighted_select(x, axis, index, weight)
    if cropped:
        x = x.masked_fill(missed, outside)
    return x if x.dtype == dtype else x.to(dtype)


def resize_floor(x: Tensor, size: Sequence[int]) -> Tensor:
    """Resize the last axes to `size`: output point i is input point floor(i / scale).

    F.interpolate computes floor(i * (1 / scale)). For some sizes, such as 26 and 64, it
    rounds to another point.
    """
    for axis, new in enumerate(size, x.dim() - len(size)):
        i = torch.arange(new, dtype=torch.float32, device=x.device)
        scale = torch.tensor(new / x.shape[axis], dtype=torch.float32, device=x.device)
        x = x.index_select(axis, (i / scale).long())
    return x


def resize_targets(
    old: Sequence[int], sizes: Sequence[int] | None, scales: Sequence[float] | None, policy: str, whole: bool
) -> tuple[Sequence[int], Sequence[float], Sequence[float]]:
    """Return new sizes, scales and unrounded new sizes of the axes; see `resize`."""
    if scales is not None:
        new = [scale_size(d, s) for d, s in zip(old, scales)]  # of the whole axis with a roi, too, as in onnxruntime
        exact = [single_precision(d * single_precision(s)) for d, s in zip(old, scales)]
        return new, scales, new if whole else exact
    assert sizes is not None
    if policy == "stretch":
        return sizes, [s / max(d, 1) for s, d in zip(sizes, old)], sizes
    choose = min if policy == "not_larger" else max
    scale = choose(s / d for s, d in zip(sizes, old))
    new = [math.floor(scale * d + 0.5) for d in old]
    return new, [scale] * len(old), new


def resize_coordinates(
    size: int,
    before: int,
    scale: float,
    mode: str,
    start: Tensor | float,
    end: Tensor | float,
    width: float,
    device: torch.device,
) -> Tensor:
    """Map output points to input coordinates, float32 [size].

    `mode` is ONNX's coordinate_transformation_mode, `width` the size before it was
    rounded down.
    """
    i = torch.arange(size, dtype=torch.float32, device=device)
    by = torch.tensor(scale, dtype=torch.float32, device=device)
    if mode == "asymmetric":
        return i / by
    if mode == "tf_half_pixel_for_nn":
        return (i + 0.5) / by
    if mode == "align_corners":
        return i * (before - 1) / max(width - 1, 1)
    if mode == "tf_crop_and_resize":
        if size > 1:
            return start * (before - 1) + i * (end - start) * (before - 1) / (size - 1)
        return torch.zeros_like(i) + 0.5 * (start + end) * (before - 1)
    if mode == "pytorch_half_pixel" and size <= 1:
        return torch.zeros_like(i)
    if mode == "half_pixel_symmetric":
        step = single_precision(scale)
        share = single_precision(size / single_precision(step * before))
        offset = single_precision(before / 2 * single_precision(1 - share))
        exact = offset + (torch.arange(size, dtype=torch.float64) + 0.5) / step - 0.5
        return exact.to(device, torch.float32)  # not every device has float64
    return (i + 0.5) / by - 0.5


def resize_nearest(at: Tensor, before: int, scale: float, rounding: str) -> Tensor:
    """Return the nearest input index of each coordinate, by ONNX's nearest_mode.

    The rounding "simple" is that of opset 10. Up to 1e-6 beside a half is a half, as in
    onnxruntime.
    """
    if rounding == "simple":
        rounding = "ceil" if scale < 1 else "floor"
    half = at.floor() + 0.5
    at = torch.where((at - half).abs() <= 1e-6, half, at) if "round" in rounding else at
    if rounding == "round_prefer_floor":
        at = (at - 0.5).ceil()
    elif rounding == "round_prefer_ceil":
        at = (at + 0.5).floor()
    else:
        at = at.ceil() if rounding == "ceil" else at.floor()
    return at.clamp(0, before - 1).long()


def cubic_kernel(t: Tensor, a: float) -> Tensor:
    """Evaluate the cubic convolution kernel at the distances t (Keys 1981)."""
    t = t.abs()
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return torch.where(t <= 1, near, torch.where(t < 2, far, torch.zeros_like(t)))


def resize_taps(
    at: Tensor, before: int, scale: float, mode: str, cubic: float, exclude_outside: bool
) -> tuple[Tensor, Tensor]:
    """Return the neighbours of each coordinate and their linear or cubic weights.

    The kernel is widened by 1 / scale if scale < 1.

    Returns:
        Their indices (int64) and weights (float32, of sum 1), both [size, taps].
    """
    wide = min(scale, 1.0)
    support = (1.0 if mode == "linear" else 2.0) / wide
    first = (at.unsqueeze(1) - support).floor() + 1
    index = first + torch.arange(math.ceil(2 * support), device=at.device)
    distance = (index - at.unsqueeze(1)) * wide
    weight = (1 - distance.abs()).clamp(min=0) if mode == "linear" else cubic_kernel(distance, cubic)
    if exclude_outside:
        weight = weight * ((index >= 0) & (index < before))
    if exclude_outside or wide < 1:
        weight = weight / weight.sum(1, keepdim=True)
    return index.clamp(0, before - 1).long(), weight


def weighted_select(x: Tensor, axis: int, index: Tensor, weight: Tensor) -> Tensor:
    """Sum elements along `axis` at `index`, weighted by `weight`; both [size, taps]."""
    axis %= x.dim()
    shape = [*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]]
    picked = x.index_select(axis, index.flatten()).reshape(shape)
    weight = weight.to(x.dtype).reshape(*weight.shape, *[1] * (x.dim() - 1 - axis))
    return torch.sum(picked * weight, axis + 1)


def single_precision(value: float) -> float:
    """Round to float32 in a way that compiled code can trace (Veltkamp 1968)."""
    spread = value * 536870913.0  # 2**29 + 1: 53 bits of float64 less 24 of float32
    return spread - (spread - value)


def scale_size(size: int, scale: float) -> int:
    """`floor(size * scale)` in float32, as ONNX Resize computes an output size."""
    return math.floor(single_precision(size * single_precision(scale)))
