import torch
from torch import Tensor, nn


class SetEncoder(nn.Module):
    """The mean, over the members of a set that there are, of what two layers make of them."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())

    def forward(self, members: Tensor, there: Tensor) -> Tensor:
        total = torch.einsum("bnd,bno->bd", self.net(members), there)
        return total / there.sum(dim=1)


class Model(nn.Module):
    """Learned cardinalities: samples, predicates and joins of a query."""

    counts, features = (3, 6, 2), (6, 13, 6)

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.sets = nn.ModuleList(SetEncoder(f, width) for f in self.features)
        self.out = nn.Sequential(nn.Linear(3 * width, width), nn.ReLU(), nn.Linear(width, 1), nn.Sigmoid())

    def forward(self, query: Tensor) -> Tensor:
        pooled, start = [], 0
        for encoder, count, features in zip(self.sets, self.counts, self.features):
            rows = query[:, start : start + count]
            pooled.append(encoder(rows[:, :, :features], rows[:, :, features : features + 1]))
            start += count
        return self.out(torch.cat(pooled, dim=-1))
