"""Plain multilayer perceptrons, and one with several inputs and outputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    def __init__(self, sizes: tuple[int, ...] = (16, 32, 32, 10), dropout: float = 0.2) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in zip(sizes[:-2], sizes[1:-1]):
            layers += [nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(sizes[-2], sizes[-1])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))


class TwoTower(nn.Module):
    """Two inputs, two outputs, one encoder that is called twice."""

    def __init__(self, features: int = 12, hidden: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, hidden, bias=False))
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.combine = nn.Linear(hidden * 2, 4)

    def forward(self, query: Tensor, document: Tensor) -> tuple[Tensor, Tensor]:
        q, d = self.encoder(query), self.encoder(document)
        score = (F.softplus(q) * torch.sigmoid(d)).sum(-1, keepdim=True) / self.temperature
        return score, self.combine(torch.cat([q, d], dim=-1))
