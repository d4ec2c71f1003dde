"""A GPT-2 language model, Radford et al. 2019: Conv1D weights stored [in, out], tied input and output embeddings."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Conv1D(nn.Module):
    """A linear layer that stores its weight transposed, as GPT-2's checkpoints do."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.02)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(x.size()[:-1] + (self.outputs,))


class NewGELU(nn.Module):
    """The tanh approximation, written out (Hendrycks and Gimpel 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class GPT2Attention(nn.Module):
    bias: Tensor

    def __init__(self, dim: int, heads: int, positions: int) -> None:
        super().__init__()
        self.heads, self.dim = heads, dim
        causal = torch.tril(torch.ones(positions, positions, dtype=torch.bool)).view(1, 1, positions, positions)
        self.register_buffer("bias", causal, persistent=False)
        self.c_attn = Conv1D(3 * dim, dim)
        self.c_proj = Conv1D(dim, dim)
        self.attn_dropout = nn.Dropout(0.1)
        self.resid_dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, self.dim // self.heads).transpose(1, 2)
            for t in self.c_attn(x).split(self.dim, dim=2)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.dim // self.heads)
        scores = torch.where(self.bias[:, :, :length, :length], scores, torch.finfo(scores.dtype).min)
        x = self.attn_dropout(scores.softmax(dim=-1)) @ v
        return self.resid_dropout(self.c_proj(x.transpose(1, 2).reshape(batch, length, self.dim)))


class GPT2MLP(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.c_fc = Conv1D(4 * dim, dim)
        self.act = NewGELU()
        self.c_proj = Conv1D(dim, 4 * dim)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


class GPT2Block(nn.Module):
    def __init__(self, dim: int, heads: int, positions: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(dim)
        self.attn = GPT2Attention(dim, heads, positions)
        self.ln_2 = nn.LayerNorm(dim)
        self.mlp = GPT2MLP(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2Model(nn.Module):
    def __init__(self, vocabulary: int, dim: int, heads: int, layers: int, positions: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, dim)
        self.wpe = nn.Embedding(positions, dim)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList(GPT2Block(dim, heads, positions) for _ in range(layers))
        self.ln_f = nn.LayerNorm(dim)

    def forward(self, input_ids: Tensor) -> Tensor:
        position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)
        x = self.drop(self.wte(input_ids) + self.wpe(position_ids))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class GPT2LMHeadModel(nn.Module):
    """Token ids [batch, length] int64 -> logits [batch, length, vocabulary]."""

    def __init__(
        self, vocabulary: int = 61, dim: int = 24, heads: int = 3, layers: int = 2, positions: int = 32
    ) -> None:
        super().__init__()
        self.transformer = GPT2Model(vocabulary, dim, heads, layers, positions)
        self.lm_head = nn.Linear(dim, vocabulary, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.lm_head(self.transformer(input_ids))
