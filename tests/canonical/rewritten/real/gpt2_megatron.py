import torch
import torch.nn.functional as F
from torch import nn


class ParallelAttention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads, self.head = heads, hidden // heads
        self.qkv, self.dense = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x, mask, past):
        b, n, _ = x.shape
        # [3, batch, heads, length, head]
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, self.head).permute(2, 0, 3, 1, 4)
        k, v = torch.cat([past[0], k], dim=-2), torch.cat([past[1], v], dim=-2)
        total = k.size(-2)
        scores = torch.matmul(q, k.transpose(-1, -2)) / self.head**0.5
        seen = mask[:, :, total - n : total, :total]
        scores = torch.mul(scores, seen) - 10000.0 * (1.0 - seen)
        context = torch.matmul(F.softmax(scores, -1), v).permute(0, 2, 1, 3).contiguous()
        return self.dense(context.view(b, n, -1)), torch.stack((k, v))


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.ln1, self.attn, self.ln2 = nn.LayerNorm(hidden), ParallelAttention(hidden, heads), nn.LayerNorm(hidden)
        self.h_to_4h, self.h4_to_h = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    @staticmethod
    def gelu(x):
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * x * (1.0 + 0.044715 * x * x)))

    def forward(self, x, mask, past):
        attended, present = self.attn(self.ln1(x), mask, past)
        x = x + attended
        return x + self.h4_to_h(self.gelu(self.h_to_4h(self.ln2(x)))), present


class Model(nn.Module):
    def __init__(self, vocabulary=10, hidden=8, heads=2, positions=64):
        super().__init__()
        self.word, self.position = nn.Embedding(vocabulary, hidden), nn.Embedding(positions, hidden)
        self.block, self.final = Block(hidden, heads), nn.LayerNorm(hidden)

    def forward(self, ids, positions, mask, past):
        x = self.word(ids) + self.position(positions)
        x, present = self.block(x, mask, past)
        return self.final(x) @ self.word.weight.t(), present
