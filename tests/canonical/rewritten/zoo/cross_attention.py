import math

import torch
from torch import nn


class Model(nn.Module):
    """What is asked attends to a memory of another width."""

    def __init__(self, width=12, memory=10, heads=3):
        super().__init__()
        self.heads, self.head = heads, width // heads
        self.q_weight = nn.Parameter(torch.randn(width, width))
        self.k_weight = nn.Parameter(torch.randn(width, memory))
        self.v_weight = nn.Parameter(torch.randn(width, memory))
        self.bias = nn.Parameter(torch.zeros(3 * width))
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def heads_of(self, x, weight, bias):
        """[length, batch, width] -> [batch * heads, length, head]."""
        length, batch, _ = x.shape
        x = (x @ weight.T + bias).view(length, batch * self.heads, self.head)
        return x.transpose(0, 1)

    def forward(self, query, memory):
        length, batch, width = query.shape
        bq, bk, bv = self.bias.chunk(3)
        q = self.heads_of(query, self.q_weight, bq)
        k = self.heads_of(memory, self.k_weight, bk)
        v = self.heads_of(memory, self.v_weight, bv)
        shares = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.head), dim=-1)
        heads = torch.bmm(shares, v).transpose(0, 1).reshape(length, batch, width)
        x = self.norm(query + self.out(heads))
        return x * torch.sigmoid(x)
