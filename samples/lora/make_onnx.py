"""A small transformer that reads scikit-learn's digits row by row, trained and exported: the ONNX file to tune.

python samples/lora/make_onnx.py digits.onnx      # about ten seconds on a CPU
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

WIDTH, HEADS = 48, 4
TRAINED = 1300  # of the 1797 digits; the others tell how good the network is


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.v_proj, self.out_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        q, k, v = (p(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.fc1, self.fc2 = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class DigitTransformer(nn.Module):
    """[batch, 8, 8] float32, the rows of a digit -> scores [batch, 10] float32."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.positions = nn.Parameter(torch.randn(1, 8, WIDTH) * 0.02)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, rows: Tensor) -> Any:
        return self.head(self.norm(self.blocks(self.embed(rows) + self.positions)).mean(1))


def digits() -> tuple[Tensor, Tensor]:
    """All of them [1797, 8, 8] from 0 to 1, and what each is."""
    data = load_digits()
    return torch.from_numpy(data.images).float() / 16, torch.from_numpy(data.target)


def train(model: nn.Module, images: Tensor, labels: Tensor, steps: int, optimizer: torch.optim.Optimizer) -> None:
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(steps):
        batch = torch.randint(len(images), (64,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()


def make(path: Path, steps: int = 400) -> None:
    """Train on digits as they are, and export."""
    torch.manual_seed(0)
    model, (images, labels) = DigitTransformer(), digits()
    train(model, images[:TRAINED], labels[:TRAINED], steps, torch.optim.AdamW(model.parameters(), lr=2e-3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the legacy exporter says that it is the legacy exporter
        torch.onnx.export(
            model.eval(),
            (images[:1],),
            path,
            dynamo=False,
            opset_version=17,
            input_names=["rows"],
            output_names=["scores"],
            dynamic_axes={"rows": {0: "batch"}, "scores": {0: "batch"}},
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path, nargs="?", default=Path("digits.onnx"))
    make(parser.parse_args().output)
