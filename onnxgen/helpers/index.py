"""Indexing with ONNX's semantics where no single torch call has them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def nonnegative_index(index: Tensor, size: int) -> Tensor:
    """Convert indices, negative ones counting from the end, to non-negative int64.

    Args:
        index: integer indices in [-size, size).
        size: the size of the indexed axis.
    """
    return torch.where(index < 0, index + size, index).long()


def gather_batched(x: Tensor, index: Tensor, batch_dims: int) -> Tensor:
    """ONNX GatherND with leading axes that x and index share.

    Args:
        x: [b..., n...].
        index: [b..., i..., k].

    Returns:
        [b..., i..., the axes of x after the first batch_dims + k].
    """
    between = index.dim() - 1 - batch_dims
    batch = []
    for axis in range(batch_dims):
        counter = torch.arange(x.shape[axis], device=x.device)
        batch.append(counter.reshape(-1, *[1] * (batch_dims - 1 - axis + between)))
    where = (*batch, *index.unbind(-1))
    return x[where]


def scatter_nd_reduce(x: Tensor, index: Tensor, updates: Tensor, reduce: str) -> Tensor:
    """ONNX ScatterND with a reduction: multiply ("prod") or compare ("amax", "amin").

    Args:
        x: [n...].
        index: int64 [i..., k], positions along the first k axes of x; negative ones
            count from the end.
        updates: [i..., the other axes of x].
        reduce: a reduction of `Tensor.scatter_reduce`.
    """
    k = index.shape[-1]
    rows = torch.zeros(index.shape[:-1], dtype=torch.long, device=x.device)
    for axis in range(k):
        i = index[..., axis]
        rows = rows * x.shape[axis] + torch.where(i < 0, i + x.shape[axis], i)
    width = math.prod(x.shape[k:])
    flat = x.reshape(math.prod(x.shape[:k]), width)
    rows = rows.reshape(-1, 1).expand(-1, width)
    return flat.scatter_reduce(0, rows, updates.reshape(-1, width), reduce).reshape(x.shape)


def slice_axes(
    x: Tensor, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int]
) -> Tensor:
    """ONNX Slice: `x[start:end:step]` along each of `axes`; steps may be negative."""
    for start, end, axis, step in zip(starts, ends, axes, steps):
        if step < 0:  # position p of the flipped axis is position ~p of the axis itself
            stop = None if end in (2**31 - 1, 2**63 - 1) else ~end  # "to the end" in both directions
            piece = slice(min(~start, x.shape[axis] - 1), stop, -step)
            x = x.index_select(axis, torch.arange(x.shape[axis] - 1, -1, -1, device=x.device))  # of any dtype
        else:
            piece = slice(max(start, -x.shape[axis]), max(end, -x.shape[axis]), step)  # torch warns of very low numbers
        x = x[(slice(None),) * (axis % x.dim()) + (piece,)]
    return x


def reverse_sequence(x: Tensor, lengths: Tensor, time_axis: int = 0, batch_axis: int = 1) -> Tensor:
    """ONNX ReverseSequence: reverse the first `lengths[b]` steps of each sample.

    Args:
        x: [time, batch, ...] or [batch, time, ...].
        lengths: integer [batch].
    """
    step = torch.arange(x.shape[time_axis], device=x.device)
    last = lengths.long().unsqueeze(1) - 1
    index = torch.where(step <= last, last - step, step)  # [batch, time]
    sample = torch.arange(x.shape[batch_axis], device=x.device).unsqueeze(1)
    return x.movedim((batch_axis, time_axis), (0, 1))[sample, index].movedim((0, 1), (batch_axis, time_axis))


def write_cache(cache: Tensor, update: Tensor, starts: Tensor, axis: int = -2, circular: bool = False) -> Tensor:
    """ONNX TensorScatter: write `update` into the cache, from each sample's start on.

    Args:
        cache: [batch, ..., size, ...].
        update: [batch, ..., length, ...] along `axis`, length <= size.
        starts: integer [batch].
        circular: continue at the beginning after the end.
    """
    position = starts.long().unsqueeze(1) + torch.arange(update.shape[axis], device=cache.device)
    if circular:
        position = position % cache.shape[axis]
    sample = torch.arange(cache.shape[0], device=cache.device).unsqueeze(1)
    written = cache.movedim(axis, 1).index_put((sample, position), update.movedim(axis, 1))
    return written.movedim(1, axis)
