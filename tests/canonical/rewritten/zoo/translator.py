import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """As `nn.MultiheadAttention` keeps its weights, but one head after the other."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.inward = nn.Linear(width, 3 * width)
        self.outward = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        wq, wk, wv = self.inward.weight.chunk(3)
        bq, bk, bv = self.inward.bias.chunk(3)
        q, k, v = x @ wq.t() + bq, memory @ wk.t() + bk, memory @ wv.t() + bv
        made = []
        for head in range(self.heads):
            part = slice(head * self.size, (head + 1) * self.size)
            scores = q[..., part] @ k[..., part].transpose(1, 2) / self.size**0.5
            made.append(scores.softmax(-1) @ v[..., part])
        return self.outward(torch.cat(made, -1))


class Layer(nn.Module):
    """Of the encoder, or with `crossed` of the decoder."""

    def __init__(self, width: int, heads: int, hidden: int, crossed: bool) -> None:
        super().__init__()
        self.itself, self.norm = Attention(width, heads), nn.LayerNorm(width)
        if crossed:
            self.other, self.other_norm = Attention(width, heads), nn.LayerNorm(width)
        self.crossed = crossed
        self.up, self.down, self.last = nn.Linear(width, hidden), nn.Linear(hidden, width), nn.LayerNorm(width)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        x = self.norm(x + self.itself(x, x))
        if self.crossed:
            x = self.other_norm(x + self.other(x, memory))
        return self.last(x + self.down(torch.relu(self.up(x))))


class Stack(nn.Module):
    def __init__(self, depth: int, *sizes: int, crossed: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(*sizes, crossed) for _ in range(depth))
        self.norm = nn.LayerNorm(sizes[0])

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, memory)
        return self.norm(x)


class Model(nn.Module):
    def __init__(self, words: int = 20, width: int = 12, heads: int = 2, hidden: int = 20, depth: int = 3) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(words, width), nn.Linear(width, words)
        self.reader = Stack(depth, width, heads, hidden)
        self.writer = Stack(depth, width, heads, hidden, crossed=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.reader(self.words(source))
        return self.out(self.writer(self.words(target), memory))
