"""Which tokens attend to which: windows of vision transformers, and masks of decoders."""

from __future__ import annotations

import torch
from torch import Tensor


def relative_positions(height: int, width: int) -> Tensor:
    """Return the row of the bias table for each two tokens of a window.

    The result is int64 [height * width, height * width]. A row counts how far the first
    token is below and right of the second (Swin Transformer, Liu et al. 2021).
    """
    token = torch.arange(height * width, device="cpu")
    y, x = token // width, token % width
    return (y[:, None] - y + height - 1) * (2 * width - 1) + x[:, None] - x + width - 1


def causal_mask(length: int, device: torch.device) -> Tensor:
    """Return True where a later position is hidden: bool [length, length]."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
