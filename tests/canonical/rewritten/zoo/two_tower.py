import torch
from torch import nn


class Tower(nn.Module):
    def __init__(self, features: int, width: int):
        super().__init__()
        self.inner, self.outer = nn.Linear(features, width), nn.Linear(width, width, bias=False)

    def forward(self, x):
        e = torch.exp(2 * self.inner(x))
        return self.outer(1 - 2 / (e + 1))  # tanh


class Model(nn.Module):
    def __init__(self, features: int = 12, width: int = 16, relations: int = 4):
        super().__init__()
        self.tower = Tower(features, width)
        self.temperature = nn.Parameter(torch.tensor(1.0))
        self.relation = nn.Linear(2 * width, relations)

    def forward(self, query, document):
        a, b = self.tower(query), self.tower(document)
        score = torch.log1p(torch.exp(a)) * b.sigmoid()
        return score.sum(-1, True) / self.temperature, self.relation(torch.hstack((a, b)))
