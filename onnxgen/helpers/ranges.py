"""Ranges and one-hot positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def range_tensor(
    start: Tensor | float,
    limit: float,
    delta: Tensor | float,
    dtype: torch.dtype = torch.int64,
    device: torch.device | str = "cpu",
) -> Tensor:
    """ONNX Range: start, start + delta, ... before limit; it may be empty.

    The count is `max(ceil((limit - start) / delta), 0)`, while torch.arange raises an
    error if limit is in the other direction.
    """
    if dtype.is_floating_point:
        first, last, step = (rounded_to(float(v), dtype) for v in (start, limit, delta))
        count = math.ceil(rounded_to(last - first, dtype) / step)
    else:
        count = int(-((start - limit) // delta))
    steps = torch.arange(max(count, 0), device=device)
    wide = torch.int64
    if dtype.is_floating_point:
        wide = torch.promote_types(dtype, torch.float32)
    return (start + steps.to(wide) * delta).to(dtype)


def rounded_to(value: float, dtype: torch.dtype) -> float:
    """Round to a dtype in a way that compiled code can trace (Veltkamp 1968)."""
    spread = value * (torch.finfo(dtype).eps * 2.0**52 + 1)
    return spread - (spread - value)


def one_hot_places(indices: Tensor, depth: int, axis: int = -1) -> Tensor:
    """ONNX OneHot as bool: True where the position on the new axis equals the index.

    The new axis has the size `depth` and is at `axis`. Negative indices count from the
    end; those out of range are nowhere (F.one_hot refuses them).
    """
    indices = indices.long().unsqueeze(axis)
    indices = torch.where(indices < 0, indices + depth, indices)
    places = torch.arange(depth, device=indices.device)
    behind = indices.dim() - 1 - axis % indices.dim()
    return indices == places.reshape([-1] + [1] * behind)
