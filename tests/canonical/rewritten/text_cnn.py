import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(15, 6)
        self.narrow, self.wide = nn.Conv1d(6, 3, kernel_size=2), nn.Conv1d(6, 3, kernel_size=3)
        self.answer = nn.Linear(6, 2)

    def best(self, layer, x):
        return torch.amax(layer(x).relu(), dim=2)

    def forward(self, ids):
        x = self.words(ids).permute(0, 2, 1)
        return self.answer(torch.cat([self.best(self.narrow, x), self.best(self.wide, x)], dim=1))
