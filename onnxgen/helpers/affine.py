"""A layer of two numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LearnableAffine(nn.Module):
    """Multiplies by a learned number, and adds a learned number."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(1, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x + self.bias
