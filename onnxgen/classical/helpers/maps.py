"""Maps of classical models (ai.onnx.ml): dicts from strings or numbers to strings or numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def zip_map(x: Tensor, keys: list[Any]) -> list[dict[Any, Tensor]]:
    """ONNX ZipMap: turn each row of x into a dict from keys to scalar tensors."""
    if x.shape[-1] != len(keys):
        raise ValueError(f"{x.shape[-1]} columns for {len(keys)} keys")
    return [dict(zip(keys, row)) for row in (x.unsqueeze(0) if x.dim() == 1 else x)]


def map_values(x: dict[Any, Any], keys: list[Any] | None, default: Any) -> list[Any]:
    """Look up keys in a dict; without keys, return all values in the keys' order."""
    return [x[key] for key in sorted(x)] if keys is None else [x.get(key, default) for key in keys]


def number_row(values: list[Any], dtype: torch.dtype) -> Tensor:
    """Return numbers, or strings that spell numbers, as a row."""
    kind = int if dtype == torch.int64 else float
    numbers = [torch.as_tensor(kind(v) if isinstance(v, str) else v, dtype=dtype) for v in values]
    return torch.stack(numbers).unsqueeze(0) if numbers else torch.zeros(1, 0, dtype=dtype)


def text_row(values: list[Any]) -> np.ndarray:
    """Return strings, or numbers with six digits after the point, as a row of text."""
    return np.array([[v if isinstance(v, str) else f"{float(v):f}" for v in values]], dtype=object)
