import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.maps = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x, cache):
        batch, new, width = x.shape
        q, k, v = (f(x).view(batch, new, self.heads, width // self.heads).transpose(1, 2) for f in self.maps[:3])
        k, v = (torch.cat(pair, dim=-2) for pair in zip(cache, (k, v)))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k).div((width // self.heads) ** 0.5)
        out = torch.einsum("bhqk,bhkd->bqhd", torch.softmax(scores, -1), v)
        return self.maps[3](out.flatten(2)), (k, v)


class Block(nn.Module):
    def __init__(self, width=12, heads=2, hidden=20):
        super().__init__()
        self.attention, self.mlp = (
            Attention(width, heads),
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)),
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, x, cache):
        y, cache = self.attention(self.norm(x), cache)
        x = x + y
        return x + self.mlp(x), cache


class Model(nn.Module):
    """A step of a decoder: returns the scores, and the keys and values of each layer."""

    def __init__(self, vocabulary=31, width=12, depth=3):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.unembed = nn.Linear(width, vocabulary)

    def forward(self, ids, keys, values):
        x, caches = self.embedding(ids), []
        for block, cache in zip(self.blocks, zip(keys, values)):
            x, cache = block(x, cache)
            caches.extend(cache)
        return (self.unembed(x), *caches)
