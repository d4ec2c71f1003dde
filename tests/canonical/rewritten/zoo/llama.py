import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt(torch.mean(x * x, dim=-1, keepdim=True) + self.eps) * self.weight


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair of one element of the first half and one of the second."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, groups: int):
        super().__init__()
        self.heads, self.groups, self.head_dim = heads, groups, dim // heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, groups * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, groups * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, future: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = rotated(self.wq(x).view(b, n, self.heads, -1).transpose(1, 2), cos, sin)
        k = rotated(self.wk(x).view(b, n, self.groups, -1).transpose(1, 2), cos, sin)
        v = self.wv(x).view(b, n, self.groups, -1).transpose(1, 2)
        # the heads of a group share its keys and values
        q = q.view(b, self.groups, self.heads // self.groups, n, self.head_dim)
        scores = torch.einsum("bghqd,bgkd->bghqk", q, k) / self.head_dim**0.5
        scores = scores.masked_fill(future, float("-inf"))
        mixed = torch.einsum("bghqk,bgkd->bqghd", F.softmax(scores, dim=-1), v)
        return self.wo(mixed.reshape(b, n, -1))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, groups: int):
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(dim), Attention(dim, heads, groups)
        self.ffn_norm = RMSNorm(dim)
        self.w1, self.w3 = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.w2 = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), *rest)
        y = self.ffn_norm(x)
        gate = self.w1(y)
        return x + self.w2(gate * torch.sigmoid(gate) * self.w3(y))


class Model(nn.Module):
    def __init__(self, vocabulary: int = 59, dim: int = 24, heads: int = 4, groups: int = 2, depth: int = 2):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, groups) for _ in range(depth))
        self.norm, self.output = RMSNorm(dim), nn.Linear(dim, vocabulary, bias=False)
        size = dim // heads
        frequencies = 10000.0 ** (-torch.arange(0, size, 2).float() / size)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        n = ids.shape[1]
        angles = torch.outer(torch.arange(n, device=ids.device, dtype=torch.float32), self.frequencies)
        future = torch.ones(n, n, dtype=torch.bool, device=ids.device).triu(1)
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin(), future)
        return self.output(self.norm(x))
