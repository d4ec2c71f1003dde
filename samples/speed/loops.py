"""The network that is measured, its training step, and how two loops are measured side by side."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.training import open_model

ROUNDS = 3


class Training:
    """The MNIST sample's network with an optimizer, on a device. Pictures are noise: they take as long as digits."""

    def __init__(self, model: Path, device: str = "cpu", half: bool = False) -> None:
        torch.manual_seed(0)
        self.device = torch.device(device)
        self.model: nn.Module = open_model(model).train().to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.half = half

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        return torch.rand(size, 1, 28, 28, device=self.device), torch.randint(10, (size,), device=self.device)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16) if self.half else contextlib.nullcontext():
            return F.nll_loss(self.model(x).float(), y)

    def step(self, x: Tensor, y: Tensor, parts: int = 1) -> int:
        """One optimizer step, its gradients summed over so many parts of the batch; returns the images it took."""
        self.optimizer.zero_grad()
        for some, labels in zip(x.chunk(parts), y.chunk(parts), strict=True):
            (self.loss(some, labels) / parts).backward()
        self.optimizer.step()
        return len(x)


def rate(step: Callable[[], int], seconds: float, device: str = "cpu") -> float:
    """Images a second of a function that returns how many it took. The first calls are not counted."""
    wait = torch.accelerator.synchronize if device != "cpu" else lambda: None
    step(), step()
    wait()
    start, images = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        images += step()
    wait()
    return images / (time.perf_counter() - start)


def side_by_side(
    before: Callable[[], int], after: Callable[[], int], seconds: float, device: str = "cpu"
) -> tuple[float, float]:
    """The rates of two loops, the medians of three rounds in turn."""
    pairs = [(rate(before, seconds), rate(after, seconds, device)) for _ in range(ROUNDS)]
    return statistics.median(b for b, _ in pairs), statistics.median(a for _, a in pairs)
