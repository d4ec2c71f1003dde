import torch
from torch import nn


class FrozenAttention(nn.Module):
    """Attention whose weights are not trained."""

    def __init__(self, width=16, heads=4):
        super().__init__()
        self.heads = heads
        self.packed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        for parameter in self.parameters():
            parameter.requires_grad = False

    def forward(self, x, hidden):
        b, n, c = x.shape
        q, k, v = self.packed(x).view(b, n, 3, self.heads, c // self.heads).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / (c // self.heads) ** 0.5
        scores = scores + hidden * -10000.0
        return self.out(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(b, n, c))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16, eps=1e-12)
        self.attention = FrozenAttention()

    def forward(self, x, residual, mask):
        x = self.norm(x + residual)
        hidden = (mask.int() <= 0).float()[:, None, None, :]
        return self.norm(x + self.attention(x, hidden))
