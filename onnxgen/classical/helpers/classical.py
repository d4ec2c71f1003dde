"""Scores, features and labels of classical models (ai.onnx.ml), as in onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def text_at(texts: Sequence[str], index: Tensor) -> np.ndarray:
    """Look up strings by index, as an object array of the index's shape."""
    found = np.empty(tuple(index.shape), dtype=object)
    found[...] = np.array(texts, dtype=object)[index.cpu().numpy()]
    return found


def softmax_zero(x: Tensor) -> Tensor:
    """Softmax over the columns whose score is not 0 (to 1e-7); others stay about 0."""
    largest = x.amax(1, keepdim=True)
    is_zero = x.abs() <= 1e-7
    powers = (x - largest).exp()
    total = powers.masked_fill(is_zero, 0.0).sum(1, keepdim=True)
    return torch.where(is_zero, x * (-largest).exp(), powers) / total


def probit(x: Tensor) -> Tensor:
    """The normal distribution's quantile, by an approximate inverse error function."""
    y = 2 * x - 1
    log = ((1 - y) * (1 + y)).log()
    half = 2 / (math.pi * 0.147) + 0.5 * log
    root = (half.square() - log / 0.147).sqrt() - half
    return math.sqrt(2) * torch.where(y < 0, -1.0, 1.0) * root.sqrt()


def or_one(norm: Tensor) -> Tensor:
    """Return norms to divide by: 1 instead of 0."""
    return norm.masked_fill(norm == 0, 1.0)


def row_maxima(x: Tensor) -> Tensor:
    """Return the largest number of each row, ignoring NaN, as a column."""
    lowest = torch.finfo(x.dtype).min
    return x.masked_fill(x.isnan(), lowest).amax(-1, keepdim=True).clamp(min=lowest)


def fill_missing(x: Tensor, replaced: float | int, values: Tensor) -> Tensor:
    """Replace `replaced` (may be NaN) by its column's value, or by a single value."""
    found = x.isnan() if replaced != replaced else x == replaced
    columns = x.shape[-1] if x.dim() < 3 else -1
    return torch.where(found, values if values.numel() == columns else values[0], x)


def places_of(x: Tensor, keys: Tensor) -> Tensor:
    """Return each element's index among sorted keys, `len(keys)` if it is not a key.

    NaN equals NaN.
    """
    at = torch.searchsorted(keys, x.contiguous()).clamp(max=len(keys) - 1)
    found = keys[at] == x
    if x.dtype.is_floating_point:
        found = found | keys[at].isnan() & x.isnan()
    return at.masked_fill(~found, len(keys))


def text_places(x: np.ndarray, keys: Sequence[str]) -> Tensor:
    """Return the index of each string among keys, `len(keys)` if it is not a key."""
    found = {key: place for place, key in enumerate(keys)}
    return torch.tensor([found.get(text, len(keys)) for text in x.flat], dtype=torch.int64).reshape(x.shape)


def is_known(place: Tensor, count: int) -> Tensor:
    """Return the places if all are below `count`; otherwise raise `ValueError`."""
    if bool((place == count).any()):
        raise ValueError("an element is none of the encoder's categories")
    return place


def feature_rows(x: Tensor, count: int | None) -> Tensor:
    """Turn x into float32 rows of `count` numbers, cut or padded with zeros."""
    x = x.float().unsqueeze(0) if x.dim() == 1 else x.float().flatten(1)
    return x if count is None else torch.nn.functional.pad(x[:, :count], (0, max(count - x.shape[1], 0)))
