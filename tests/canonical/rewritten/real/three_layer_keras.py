from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Config:
    features: int = 16
    widths: tuple[int, ...] = (64, 32, 32)
    classes: int = 5


class Model(nn.Module):
    """A tagger of jets: a plain perceptron, its last layer a distribution."""

    def __init__(self, config: Config = Config()):
        super().__init__()
        sizes = (config.features, *config.widths)
        self.hidden = nn.ModuleList(nn.Linear(i, o) for i, o in zip(sizes, sizes[1:]))
        self.logits = nn.Linear(sizes[-1], config.classes)

    def forward(self, jets):
        for layer in self.hidden:
            jets = torch.clamp(layer(jets), min=0)
        scores = self.logits(jets)
        weights = (scores - scores.max(dim=-1, keepdim=True).values).exp()
        return weights / weights.sum(-1, keepdim=True)
