import torch
from torch import nn


class Model(nn.Module):
    """A layer of Whisper's encoder. One norm is used twice."""

    def __init__(self, width: int = 10, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.norm = nn.LayerNorm(width)
        self.in_proj = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)
        self.ffn = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def _heads(self, t: torch.Tensor) -> torch.Tensor:
        b, n, _ = t.shape
        t = t.view(b, n, self.heads, self.head_dim).transpose(1, 2).contiguous()
        return t.view(b * self.heads, n, self.head_dim)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        packed = self.in_proj(x)
        q = self._heads(packed[..., :c] * self.head_dim**-0.5)
        k, v = self._heads(packed[..., c : 2 * c]), self._heads(packed[..., 2 * c :])
        weights = torch.bmm(q, k.transpose(1, 2)).softmax(dim=-1)
        heads = torch.bmm(weights, v).view(b, self.heads, n, self.head_dim)
        return self.out_proj(heads.transpose(1, 2).reshape(b, n, c))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + 1.0
        residual = hidden
        hidden = residual + self.attention(self.norm(hidden))
        return hidden + self.ffn(self.norm(hidden))
