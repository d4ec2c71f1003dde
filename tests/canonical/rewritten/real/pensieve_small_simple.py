import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    """Pensieve's actor: the bit rate of the next chunk."""

    def __init__(self, width=128, rates=6):
        super().__init__()
        self.quality, self.buffer, self.left = (nn.Linear(1, width) for _ in range(3))
        self.throughput, self.delay = nn.Linear(8, width), nn.Linear(8, width)
        self.sizes = nn.Linear(rates, width)
        self.hidden, self.policy = nn.Linear(6 * width, width), nn.Linear(width, rates)

    def forward(self, state):
        rows = state.unbind(dim=1)
        parts = [
            F.relu(self.quality(rows[0][:, -1:])),
            F.relu(self.buffer(rows[1][:, -1:])),
            F.relu(self.throughput(rows[2])),
            F.relu(self.delay(rows[3])),
            F.relu(self.sizes(rows[4][:, :6])),
            self.left(rows[4][:, -1:]),
        ]
        return self.policy(F.relu(self.hidden(torch.cat(parts, dim=-1))))
