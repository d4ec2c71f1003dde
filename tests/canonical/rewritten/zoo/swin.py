import torch
import torch.nn.functional as F
from torch import nn


def windows(x, size):
    """[batch, h, w, c] -> [batch * windows, size * size, c]."""
    b, h, w, c = x.shape
    x = x.view(b, h // size, size, w // size, size, c)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, size * size, c)


def joined(x, size, h, w):
    """The way back."""
    x = x.view(-1, h // size, w // size, size, size, x.shape[-1])
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, h, w, x.shape[-1])


def regions(side, size, shift):
    """Which places of a rolled map may see each other: 0, and else -100."""
    number = torch.zeros(1, side, side, 1)
    slices = (slice(0, -size), slice(-size, -shift), slice(-shift, None))
    for i, rows in enumerate(slices):
        for j, columns in enumerate(slices):
            number[:, rows, columns] = 3 * i + j
    number = windows(number, size).squeeze(-1)
    apart = number[:, None, :] != number[:, :, None]
    return torch.zeros(apart.shape).masked_fill(apart, -100.0)


class Block(nn.Module):
    def __init__(self, width, side, heads, size, shift):
        super().__init__()
        self.side, self.heads, self.size, self.shift = side, heads, size, shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(1, heads, size**2, size**2))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        if shift:
            self.register_buffer("mask", regions(side, size, shift), persistent=False)

    def attention(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (c // self.heads) ** -0.5 + self.bias
        if self.shift:
            count = self.mask.shape[0]
            scores = scores.view(b // count, count, self.heads, n, n) + self.mask[None, :, None]
            scores = scores.view(b, self.heads, n, n)
        return self.proj((F.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, n, c))

    def forward(self, x):
        b, n, c = x.shape
        y = self.norm1(x).view(b, self.side, self.side, c)
        if self.shift:
            y = torch.roll(y, shifts=(-self.shift, -self.shift), dims=(1, 2))
        y = joined(self.attention(windows(y, self.size)), self.size, self.side, self.side)
        if self.shift:
            y = torch.roll(y, shifts=(self.shift, self.shift), dims=(1, 2))
        x = x + y.view(b, n, c)
        return x + self.mlp(self.norm2(x))


class Merge(nn.Module):
    def __init__(self, width, side):
        super().__init__()
        self.side, self.norm, self.reduce = side, nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x):
        x = x.view(x.shape[0], self.side, self.side, -1)
        x = torch.cat([x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], dim=3)
        return self.reduce(self.norm(x.flatten(1, 2)))


class Model(nn.Module):
    def __init__(self, width=12, side=16, heads=(2, 3, 4), size=4, classes=10):
        super().__init__()
        self.embed, self.embed_norm = nn.Conv2d(3, width, 2, 2), nn.LayerNorm(width)
        layers = []
        for number, count in enumerate(heads):
            if number:
                layers.append(Merge(width, side))
                width, side = 2 * width, side // 2
            shift = size // 2 if side > size else 0
            layers += [Block(width, side, count, size, 0), Block(width, side, count, size, shift)]
        self.layers = nn.ModuleList(layers)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, image):
        x = self.embed_norm(self.embed(image).flatten(2).mT)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))
