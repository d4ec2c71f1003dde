"""Pooling of regions of interest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def roi_points(
    start: Tensor, length: Tensor, bins: int, ratio: int, extent: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the coordinates that RoiAlign samples along one axis.

    Args:
        start, length: [regions], of each region.
        ratio: samples per bin; 0: as many as the bin is long, rounded up.
        extent: the size of the image.

    Returns:
        The lower and the upper neighbour of each sample and their weights, which are 0
        outside the image; which samples belong to the region, all
        [regions, bins * samples]; and the number of samples per bin, [regions].
    """
    count = torch.full_like(length, ratio) if ratio > 0 else (length / bins).ceil().clamp(min=0)
    most = ratio if ratio > 0 else int(count.max()) if count.numel() else 0
    sample = torch.arange(most, dtype=start.dtype, device=start.device)
    inner = (sample + 0.5) / count.clamp(min=1).reshape(-1, 1, 1)
    outer = torch.arange(bins, dtype=start.dtype, device=start.device).reshape(-1, 1)
    at = (start.reshape(-1, 1, 1) + (outer + inner) * (length / bins).reshape(-1, 1, 1)).flatten(1)
    own = (sample < count.reshape(-1, 1, 1)).expand(-1, bins, -1).flatten(1)
    inside = (at >= -1) & (at <= extent) & own
    at = at.clamp(0, extent - 1)
    low = at.floor()
    upper = (at - low) * inside
    return low.long(), (low + 1).clamp(max=extent - 1).long(), (1 - (at - low)) * inside, upper, own, count


def roi_align(
    x: Tensor,
    rois: Tensor,
    batch: Tensor,
    size: Sequence[int],
    sampling_ratio: int = 0,
    scale: float = 1.0,
    half_pixel: bool = True,
    mode: str = "avg",
) -> Tensor:
    """ONNX RoiAlign (He et al. 2017).

    Args:
        x: [batch, channels, height, width].
        rois: [regions, 4], x1, y1, x2, y2 before `scale`.
        batch: integer [regions].
        size: height and width of the output.
        half_pixel: shift by half a pixel, and allow regions smaller than one pixel.
        mode: "avg", or "max" (of the weighted neighbours, as in onnxruntime).

    Returns:
        [regions, channels, *size].
    """
    box = rois * scale - (0.5 if half_pixel else 0.0)
    width, height = box[:, 2] - box[:, 0], box[:, 3] - box[:, 1]
    if not half_pixel:
        width, height = width.clamp(min=1), height.clamp(min=1)
    row = roi_points(box[:, 1], height, size[0], sampling_ratio, x.shape[2])
    column = roi_points(box[:, 0], width, size[1], sampling_ratio, x.shape[3])
    corners = []
    for i in range(2):
        for j in range(2):
            picked = x[batch.long().reshape(-1, 1, 1), :, row[i].unsqueeze(2), column[j].unsqueeze(1)]
            weight = row[2 + i].unsqueeze(2) * column[2 + j].unsqueeze(1)
            corners.append(picked * weight.unsqueeze(-1))  # [regions, rows, columns, channels]
    stacked = torch.stack(corners)
    shape = (len(rois), size[0], row[0].shape[1] // size[0], size[1], column[0].shape[1] // size[1], x.shape[1])
    if mode == "avg":
        total = stacked.sum(0).reshape(shape).sum((2, 4))
        return (total / (row[5] * column[5]).clamp(min=1).reshape(-1, 1, 1, 1)).permute(0, 3, 1, 2)
    if 0 in shape:
        return x.new_zeros(len(rois), x.shape[1], *size)
    own = row[4].unsqueeze(2) & column[4].unsqueeze(1)
    best = stacked.amax(0).masked_fill(~own.unsqueeze(-1), float("-inf")).reshape(shape).amax((2, 4))
    return torch.where(best == float("-inf"), 0.0, best).permute(0, 3, 1, 2)


def max_roi_pool(x: Tensor, rois: Tensor, size: Sequence[int], scale: float = 1.0) -> Tensor:
    """ONNX MaxRoiPool (Girshick 2015): the maximum of each bin; 0 for an empty bin.

    Args:
        x: [batch, channels, height, width].
        rois: [regions, 5], batch index, x1, y1, x2, y2 (inclusive, before `scale`).
        size: height and width of the output.

    Returns:
        [regions, channels, *size].
    """
    corner = (rois[:, 1:] * scale + 0.5).floor()  # rounded, halves up
    picked = x[rois[:, 0].long()]
    for axis, first in ((3, 0), (2, 1)):
        start, bins, extent = corner[:, first], size[axis - 2], picked.shape[axis]
        step = (corner[:, first + 2] - start + 1).clamp(min=1) / bins
        place = torch.arange(extent, device=x.device)
        made = []
        for i in range(bins):
            low, high = (i * step).floor() + start, ((i + 1) * step).ceil() + start
            inside = (place >= low.unsqueeze(1)) & (place < high.unsqueeze(1))  # [regions, extent]
            inside = inside.reshape(-1, *[1] * (axis - 1), extent, *[1] * (3 - axis))
            made.append(picked.masked_fill(~inside, float("-inf")).amax(axis))
        picked = torch.stack(made, axis)
    return torch.where(picked == float("-inf"), 0.0, picked)


def crop_and_resize(
    x: Tensor,
    boxes: Tensor,
    images: Tensor,
    size: tuple[int, int] | list[int],
    is_nearest: bool = False,
    outside: float = 0.0,
) -> Tensor:
    """Crop boxes of images and resize them: [boxes, channels, *size].

    Args:
        x: [batch, channels, height, width].
        boxes: [boxes, 4], y1, x1, y2, x2, whose corners are the centres of corner
            pixels; 1 is the last pixel.
        images: [boxes], the image of each box.
        size: height and width of the result; a single row or column is the middle of
            the box.
        is_nearest: take the nearest pixel, else bilinear.
        outside: the value outside the image.
    """

    def places(first: Tensor, last: Tensor, count: int, length: int) -> Tensor:
        if count == 1:
            return (0.5 * (first + last) * (length - 1))[:, None]
        steps = torch.arange(count, device=x.device, dtype=x.dtype)
        return first[:, None] * (length - 1) + steps * ((last - first) * (length - 1) / (count - 1))[:, None]

    height, width = x.shape[2:]
    ys, xs = places(boxes[:, 0], boxes[:, 2], size[0], height), places(boxes[:, 1], boxes[:, 3], size[1], width)
    shown = ((ys >= 0) & (ys <= height - 1))[:, :, None] & ((xs >= 0) & (xs <= width - 1))[:, None, :]
    chosen = x[images.long()]

    def pixels(rows: Tensor, columns: Tensor) -> Tensor:
        rows, columns = rows.long().clamp(0, height - 1), columns.long().clamp(0, width - 1)
        taken = chosen.gather(2, rows[:, None, :, None].expand(-1, x.shape[1], -1, width))
        return taken.gather(3, columns[:, None, None, :].expand(-1, x.shape[1], size[0], -1))

    if is_nearest:
        made = pixels((ys + 0.5).floor(), (xs + 0.5).floor())
    else:
        dy, dx = (ys - ys.floor())[:, None, :, None], (xs - xs.floor())[:, None, None, :]
        top = torch.lerp(pixels(ys.floor(), xs.floor()), pixels(ys.floor(), xs.ceil()), dx)
        low = torch.lerp(pixels(ys.ceil(), xs.floor()), pixels(ys.ceil(), xs.ceil()), dx)
        made = torch.lerp(top, low, dy)
    return torch.where(shown[:, None], made, outside)
