"""Transformers whose layers are lists of sublayers in wrappers: what their classes are called."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.test_structure import classes, made, rows

DIM, HEADS = 8, 2


class PreNorm(nn.Module):
    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.fn = fn

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.fn(self.norm(x), *others)


class PostNorm(PreNorm):
    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.norm(self.fn(x, *others))


class Residual(nn.Module):
    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.fn(x, *others) + x


class Attending(nn.Module):
    """Attention to itself, or to the context that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q = nn.Linear(DIM, DIM, bias=False)
        self.to_kv = nn.Linear(DIM, 2 * DIM, bias=False)
        self.to_out = nn.Sequential(nn.Linear(DIM, DIM), nn.Dropout(0.0))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        k, v = self.to_kv(x if context is None else context).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (self.to_q(x), k, v))
        scores = q @ k.transpose(-1, -2) * (DIM // HEADS) ** -0.5
        return self.to_out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Feeding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(DIM, 16), nn.GELU(), nn.Dropout(0.0), nn.Linear(16, DIM), nn.Dropout(0.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Gating(nn.Module):
    """Two linear layers and an activation that are no feed-forward: the second makes the input's gate."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(DIM, 4), nn.Linear(4, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(F.relu(self.down(x.mean(1, keepdim=True)))))


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([Residual(PreNorm(Attending())), Residual(PreNorm(Feeding()))]) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for attend, feed in self.layers:
            x = feed(attend(x))
        return x


class Normed(nn.Module):
    """Norms after their children, and one wrapper that is alone of its kind."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([PostNorm(Attending()), Gating()]) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for attend, gate in self.layers:
            x = gate(attend(x) + x)
        return x


def test_wrappers_and_what_they_wrap_are_named_by_what_they_do(tmp_path: Path) -> None:
    found = classes(made(Wrapped, tmp_path, rows))
    assert set(found) == {
        *("Attention", "FeedForward", "PreNormAttention", "PreNormFeedForward"),
        *("ResidualAttention", "ResidualFeedForward", "Net"),
    }
    assert "self.fn = Attention()" in found["PreNormAttention"]
    assert "self.fn = PreNormFeedForward()" in found["ResidualFeedForward"]


def test_a_wrapper_alone_and_what_is_no_feed_forward(tmp_path: Path) -> None:
    assert set(classes(made(Normed, tmp_path, rows))) == {"Attention", "PostNorm", "Block", "Net"}
