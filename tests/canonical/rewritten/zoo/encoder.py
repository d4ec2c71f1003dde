import torch
import torch.nn.functional as F
from torch import Tensor, nn


class EncoderLayer(nn.Module):
    """Post-norm, its three projections in one matrix."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ffn = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = torch.movedim(qkv, (2, 3), (0, 2))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        for norm, part in zip(self.norms, (self.attend, self.ffn)):
            x = norm(x + part(x))
        return x


class Model(nn.Module):
    def __init__(self, features: int = 9, width: int = 16, heads: int = 4, depth: int = 2, classes: int = 4) -> None:
        super().__init__()
        self.project = nn.Linear(features, width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(depth))
        self.classify = nn.Linear(width, classes)

    def forward(self, frames: Tensor) -> Tensor:
        x = self.project(frames)
        for layer in self.layers:
            x = layer(x)
        return torch.mean(self.classify(x), dim=1)
