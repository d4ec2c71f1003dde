import math

import torch
from torch import nn
from torch.nn import functional as F


class Conv1D(nn.Module):
    """A linear layer with its weight the other way round."""

    def __init__(self, outputs: int, inputs: int):
        super().__init__()
        self.w = nn.Parameter(torch.empty(inputs, outputs).normal_(std=0.02))
        self.b = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        flat = torch.addmm(self.b, x.view(-1, x.size(-1)), self.w)
        return flat.view(x.size()[:-1] + (self.b.size(0),))


class Model(nn.Module):
    def __init__(self, vocabulary=20, positions=8, width=4, heads=2):
        super().__init__()
        self.width, self.heads = width, heads
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.norm_attn, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.merge = Conv1D(3 * width, width), Conv1D(width, width)
        self.fc, self.proj = Conv1D(4 * width, width), Conv1D(width, 4 * width)
        self.register_buffer("causal", torch.tril(torch.ones(positions, positions)).view(1, 1, positions, positions))

    def attend(self, x):
        batch, length, _ = x.size()
        shape = (batch, length, self.heads, self.width // self.heads)
        q, k, v = (t.view(shape).transpose(1, 2) for t in torch.split(self.qkv(x), self.width, dim=2))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(shape[-1])
        hidden = self.causal[:, :, :length, :length] == 0
        scores = scores.masked_fill(hidden, -10000.0)
        mixed = torch.einsum("bhqk,bhkd->bqhd", scores.softmax(dim=-1), v)
        return self.merge(mixed.reshape(batch, length, self.width))

    def feed(self, x):
        return self.proj(F.gelu(self.fc(x), approximate="tanh"))

    def forward(self, ids):
        places = torch.arange(ids.size(1), device=ids.device)
        x = self.tokens(ids) + self.places(places)
        x = x + self.attend(self.norm_attn(x))
        return x + self.feed(self.norm_mlp(x))
