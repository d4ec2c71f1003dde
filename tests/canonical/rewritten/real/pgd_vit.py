import torch
import torch.nn.functional as F
from torch import nn


class BatchNormed(nn.Module):
    """A function of tokens, after a batch norm of their features, beside a skip."""

    def __init__(self, width, inner):
        super().__init__()
        self.norm, self.inner = nn.BatchNorm1d(width), inner

    def forward(self, tokens):
        b, n, c = tokens.shape
        normed = self.norm(tokens.reshape(b * n, c)).reshape(b, n, c)
        return tokens + self.inner(normed)


class SelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.to_out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (f(x).unflatten(2, (self.heads, -1)) for f in (self.to_q, self.to_k, self.to_v))
        dots = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        out = torch.einsum("bhij,bjhd->bihd", F.softmax(dots, dim=-1), v)
        return self.to_out(out.flatten(2))


class Model(nn.Module):
    def __init__(self, width=48, heads=3, depth=2, patch=16):
        super().__init__()
        self.patch = patch
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.token, self.position = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.randn(5, width))
        layers = []
        for _ in range(depth):
            mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            layers += [BatchNormed(width, SelfAttention(width, heads)), BatchNormed(width, mlp)]
        self.transformer = nn.Sequential(*layers)
        self.head = nn.ModuleDict({"norm": nn.BatchNorm1d(width), "fc": nn.Linear(width, 10)})

    def forward(self, images):
        patches = self.embed(images)
        patches = patches.permute(0, 2, 3, 1).reshape(patches.shape[0], -1, patches.shape[1])
        tokens = torch.cat([self.token.expand(patches.shape[0], 1, -1), patches], dim=1) + self.position
        tokens = self.transformer(tokens)
        return self.head["fc"](self.head["norm"](tokens.sum(dim=1) / tokens.shape[1]))
