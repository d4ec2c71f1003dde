"""A network with all kinds of layers that self-tests check, and data for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """Convolution, BatchNorm, Dropout, LSTM, GRU: x [batch, 1, 8, 8] to logits [batch, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.1)
        self.lstm = nn.LSTM(8, 8, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(16, 8, num_layers=2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3)
        self.register_buffer("scale", torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(torch.relu(self.norm(self.conv(x))))
        x = nn.functional.max_pool2d(x, 2) * self.scale.to(x.dtype)
        x, _ = self.lstm(x.flatten(2).transpose(1, 2))
        x, _ = self.gru(x)
        logits: Tensor = self.head(x[:, -1])
        return logits


def data(count: int = 96) -> tuple[Tensor, Tensor]:
    """Images whose class is their brightest third."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(count) % 3
    x = torch.randn(count, 1, 8, 8, generator=generator) * 0.1
    for k in range(3):
        x[y == k, :, :, 2 * k + 1] += 1.0
    return x, y
