"""A Llama-like decoder, Touvron et al. 2023: RMSNorm, rotary positions, SwiGLU, grouped key and value heads."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps))


class RotaryEmbedding(nn.Module):
    """Rotary positions, Su et al. 2021, in the halves layout."""

    inv_freq: Tensor

    def __init__(self, dim: int, base: float = 10000.0) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / base ** (torch.arange(0, dim, 2).float() / dim), persistent=False)

    def forward(self, length: int) -> tuple[Tensor, Tensor]:
        angles = torch.arange(length, device=self.inv_freq.device).float()[:, None] * self.inv_freq[None, :]
        both = torch.cat([angles, angles], dim=-1)
        return both.cos(), both.sin()


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], dim=-1)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.q_proj = nn.Linear(dim, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, dim, bias=False)

    def repeat(self, x: Tensor) -> Tensor:
        batch, kv_heads, length, dim = x.shape
        times = self.heads // kv_heads
        return x[:, :, None].expand(batch, kv_heads, times, length, dim).reshape(batch, self.heads, length, dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        scores = q @ self.repeat(k).transpose(2, 3) / math.sqrt(self.head_dim) + mask
        out = F.softmax(scores, dim=-1) @ self.repeat(v)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.self_attn = Attention(dim, heads, kv_heads)
        self.mlp = MLP(dim, dim * 2)
        self.input_layernorm = RMSNorm(dim)
        self.post_attention_layernorm = RMSNorm(dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    def __init__(self, vocabulary: int, dim: int, heads: int, kv_heads: int, layers: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(DecoderLayer(dim, heads, kv_heads) for _ in range(layers))
        self.norm = RMSNorm(dim)
        self.rotary_emb = RotaryEmbedding(dim // heads)

    def forward(self, input_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        cos, sin = self.rotary_emb(length)
        mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.norm(x)


class LlamaForCausalLM(nn.Module):
    """Token ids [batch, length] int64 -> logits [batch, length, vocabulary]."""

    def __init__(self, vocabulary: int = 59, dim: int = 24, heads: int = 4, kv_heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.model = LlamaModel(vocabulary, dim, heads, kv_heads, layers)
        self.lm_head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.lm_head(self.model(input_ids))
