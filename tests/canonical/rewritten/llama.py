import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        spread = torch.sqrt((x * x).mean(dim=-1, keepdim=True) + self.eps)
        return x / spread * self.weight


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RMSNorm(8)
        self.w1, self.w2, self.w3 = nn.Linear(8, 12, False), nn.Linear(12, 8, False), nn.Linear(8, 12, False)

    def forward(self, x):
        y = self.norm(x)
        gate = F.linear(y, self.w1.weight)
        return self.w2(gate * torch.sigmoid(gate) * self.w3(y)) + x
