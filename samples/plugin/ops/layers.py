"""What is copied into generated modules. onnxgen reads this file, and does not run it."""

import torch
from torch import Tensor, nn


def snake(x: Tensor, a: Tensor) -> Tensor:
    """x + sin(a * x)^2 / a"""
    return x + torch.sin(a * x) ** 2 / a


class Snake(nn.Module):
    """The activation for what repeats itself, with a frequency for each feature."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return snake(x, self.a)
