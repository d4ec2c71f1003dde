"""Reads outputs: the text of class scores over time, and the places of keypoints in heatmaps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def greedy(best: Tensor, blank: int) -> list[list[int]]:
    """Return the classes that are read along time: repeats count once, and the blank is left out.

    Args:
        best: int64 [n, T], the most probable class at each time.
    """
    rows = (torch.unique_consecutive(row) for row in best)
    return [row[row != blank].tolist() for row in rows]


def spelled(ids: Sequence[int], blank: int, characters: Sequence[str]) -> str:
    """Return the text of class indices. `characters` are the classes in order, without the blank.

    A class without a character is its number. Without characters the numbers are parted by spaces.
    """
    places = [number - (number > blank) for number in ids]
    if not characters:
        return " ".join(map(str, ids))
    return "".join(characters[p] if p < len(characters) else f"<{i}>" for p, i in zip(places, ids, strict=True))


def peaks(maps: Tensor) -> Tensor:
    """Return the highest place of each heatmap [n, K, H, W], and its value: x, y, value [n, K, 3].

    x and y are shares of width and height. As in Xiao et al. (1804.06208), a place is moved by a quarter of a pixel
    towards the higher one of its two neighbours.
    """
    height, width = maps.shape[-2:]
    flat = maps.float().flatten(2)
    value, index = flat.max(2)
    places = []
    for size, at, stride in ((width, index % width, 1), (height, index // width, width)):
        before, after = ((index + step).clamp(0, flat.shape[2] - 1) for step in (-stride, stride))
        slope = flat.gather(2, after[..., None]) - flat.gather(2, before[..., None])
        inside = (at > 0) & (at < size - 1)
        places.append((at + 0.5 + 0.25 * slope[..., 0].sign() * inside) / size)
    return torch.stack([*places, value], 2)
