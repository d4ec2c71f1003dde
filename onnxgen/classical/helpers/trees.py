"""Ensembles of decision trees (ai.onnx.ml), all rows and trees at once."""

from __future__ import annotations

import torch
from torch import Tensor


def tree_leaves(
    x: Tensor,
    features: Tensor,
    thresholds: Tensor,
    children: Tensor,
    roots: Tensor,
    depth: int,
    missing: Tensor | None = None,
) -> Tensor:
    """Return the leaf that each row of x reaches in each tree, `[rows, trees]`.

    A node tests `x[feature] <= threshold` and leads to `children[0]` if that is true,
    else to `children[1]`; a leaf leads to itself. `missing`: the nodes at which NaN
    counts as true.
    """
    node = roots.expand(x.shape[0], -1)
    for _ in range(depth):
        value = x.gather(1, features[node])
        first = value <= thresholds[node]
        if missing is not None:
            first = first | missing[node] & value.isnan()
        node = torch.where(first, children[0][node], children[1][node])
    return node


def leaf_weights(weights: Tensor, slots: Tensor, leaves: Tensor, empty: float = 0.0) -> Tensor:
    """Return leaf weights, `[rows, trees * slots]`; `empty` for unused slots (-1)."""
    padded = torch.nn.functional.pad(weights, (0, 1), value=empty)  # -1 is the last
    return padded[slots[leaves]].flatten(1)


def target_sums(weights: Tensor, targets: Tensor, leaves: Tensor, count: int) -> Tensor:
    """Sum the leaf weights (see `leaf_weights`) of each target: `[rows, count]`."""
    index = targets[leaves].flatten(1).clamp(min=0)
    return weights.new_zeros(len(weights), count).scatter_add(1, index, weights)


def target_extremes(weights: Tensor, targets: Tensor, leaves: Tensor, count: int, largest: bool) -> Tensor:
    """As `target_sums`, but the smallest or largest weight; 0 if there is none."""
    index = targets[leaves].flatten(1).clamp(min=0)
    limit = float("-inf") if largest else float("inf")
    start = weights.new_full((len(weights), count), limit)
    found = start.scatter_reduce(1, index, weights, "amax" if largest else "amin")
    return found.masked_fill(found == limit, 0.0)


def targets_reached(targets: Tensor, leaves: Tensor, count: int) -> Tensor:
    """Return True if a row reaches a leaf with a weight for a target [rows, count]."""
    found = targets[leaves].flatten(1)
    return torch.zeros(len(found), count + 1, device=found.device).scatter(1, found + 1, 1.0)[:, 1:] > 0
