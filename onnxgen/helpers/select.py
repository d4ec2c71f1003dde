"""The largest and the distinct elements, and products over several axes."""

from __future__ import annotations

import torch
from torch import Tensor


def stable_topk(x: Tensor, k: int, dim: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """ONNX TopK: the k largest (or smallest) elements along `dim`, and their indices.

    Equal elements stay in the order of x: ONNX TopK promises that, torch.topk does not.
    """
    values, places = x.sort(dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k), places.narrow(dim, 0, k)


def distinct(x: Tensor, dim: int | None = None, sorted: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ONNX Unique: the distinct elements (or slices along `dim`) of x.

    They are sorted, or in the order of first occurrence. Then, as int64 vectors: the
    first position of each, the inverse, and the counts.
    """
    _, inverse, counts = torch.unique(x.detach(), sorted=True, return_inverse=True, return_counts=True, dim=dim)
    inverse = inverse.flatten()
    places = torch.arange(inverse.numel(), device=x.device)
    first = torch.full_like(counts, inverse.numel()).scatter_reduce(0, inverse, places, "amin")
    if not sorted:
        order = first.argsort()
        first, counts, inverse = first[order], counts[order], order.argsort()[inverse]
    values = x.flatten()[first] if dim is None else x.index_select(dim, first)  # torch.unique has no gradient
    return values, first, inverse, counts


def extreme(x: Tensor, dims: list[int], keepdim: bool, largest: bool) -> Tensor:
    """The largest (or smallest) element over some axes, over all if `dims` is empty.

    Without elements it is the lowest (or highest) number of the type (ONNX
    ReduceMax-20), while torch.amax raises an error.
    """
    axes = {d % max(x.dim(), 1) for d in dims} or set(range(x.dim()))
    if all(x.shape[axis] for axis in axes):
        return (x.amax if largest else x.amin)(tuple(axes), keepdim)
    if x.dtype.is_floating_point:
        limit = float("-inf") if largest else float("inf")
    else:
        limit = torch.iinfo(x.dtype).min if largest else torch.iinfo(x.dtype).max
    shape = [1 if d in axes else n for d, n in enumerate(x.shape) if keepdim or d not in axes]
    return x.new_full(shape, limit)


def prod_over(x: Tensor, dims: list[int], keepdim: bool = False) -> Tensor:
    """The product over several axes, all of them if `dims` is empty; in x's dtype."""
    axes = {d % max(x.dim(), 1) for d in dims} or set(range(x.dim()))
    for axis in range(x.dim() - 1, -1, -1):
        if axis in axes:
            x = x.prod(dim=axis, keepdim=keepdim, dtype=x.dtype)
    return x
