"""Overhead of `onnxgen.training.fit` against a loop written by hand: the MNIST sample's network, the same data.

    python -m benchmarks.fit [--device cpu] [--batch 64,256] [--images 60000] [--rounds 3] [--precision 32-true]
                             [--compile] [--threads N] [--json FILE]

One epoch of as many random images as MNIST has: after each step of `fit` one by hand, so that whatever else the machine
does slows both alike. Of `fit` it is everything from the first step to the end of training: loader, metrics, what is
shown, the check for NaN, and the checkpoint and the weights that are saved. The loop by hand indexes tensors and does
nothing else. Ratios are medians over the rounds, on the CPU also of processor time; and glibc keeps the memory that it
has, since whether it gives a freed activation back at once is chance, and costs either up to a tenth.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.common import ROOT, arguments, finish
from onnxgen.runtime.load import load
from onnxgen.training import choose, fit
from onnxgen.training.settings import Settings

TARGETS = {64: 1.05, 256: 1.02}
SAMPLE = ROOT / "samples" / "mnist" / "mnist.onnx"
RATE = 1e-3
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt(3)


class Hand:
    """An epoch's steps as one writes them by hand."""

    def __init__(self, images: Tensor, labels: Tensor, batch: int, given: Settings, device: torch.device) -> None:
        self.model = load(SAMPLE).to(device).train()
        if given.compile:
            self.model.compile()
        self.images, self.labels, self.device = images, labels, device
        self.dtype = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(given.precision)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype is torch.float16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), RATE)
        self.batches = iter(torch.randperm(len(images)).split(batch))

    def step(self) -> None:
        chosen = next(self.batches)
        x, y = self.images[chosen].to(self.device), self.labels[chosen].to(self.device)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None):
            loss = F.nll_loss(self.model(x), y)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


@dataclass
class Turns(lightning.Callback):
    """After each step of `fit` one by hand; wall and processor seconds of either, those of `fit` to its very end."""

    hand: Hand
    device: torch.device

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.ours, self.theirs, self.began = [0.0, 0.0], [0.0, 0.0], now(self.device)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *of_the_step: Any) -> None:
        self.lap(self.ours)
        self.hand.step()
        self.lap(self.theirs)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.lap(self.ours)

    def lap(self, spent: list[float]) -> None:
        ended = now(self.device)
        for kind in (0, 1):
            spent[kind] += ended[kind] - self.began[kind]
        self.began = ended


def now(device: torch.device) -> tuple[float, float]:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter(), time.process_time()


def keep_memory() -> None:
    """Let glibc hand out freed memory again, rather than ask the system for new pages each time."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        for what in (TRIM_THRESHOLD, MMAP_THRESHOLD):
            if mallopt is not None:
                mallopt(what, 1 << 30)


def turns(images: Tensor, labels: Tensor, batch: int, given: Settings) -> Turns:
    """One epoch of both."""
    device = choose(given.device).torch_device
    made = Turns(Hand(images, labels, batch, given, device), device)
    with tempfile.TemporaryDirectory() as folder:
        data = {"train": (images, labels)}
        more: dict[str, Any] = {"batch_size": batch, "lr": RATE, "epochs": 1, "val": 0.0, "out": Path(folder) / "run"}
        fit(load(SAMPLE), data, settings=given, callbacks=[made], show="nothing", **more)
    return made


def measure(batch: int, number: int, rounds: int, given: Settings) -> dict[str, Any]:
    number -= number % batch
    images, labels = torch.randn(number, 1, 28, 28), torch.randint(0, 10, (number,))
    turns(images[: 20 * batch], labels[: 20 * batch], batch, given)  # warms up
    made = [turns(images, labels, batch, given) for _ in range(rounds)]
    wall, processor = (statistics.median(m.ours[kind] / m.theirs[kind] for m in made) for kind in (0, 1))
    target = TARGETS.get(batch)
    return {
        "device": given.device,
        "precision": given.precision + (" compiled" if given.compile else ""),
        "batch": batch,
        "fit images/s": round(number / statistics.median(m.ours[0] for m in made)),
        "by hand images/s": round(number / statistics.median(m.theirs[0] for m in made)),
        "ratio of time": round(wall, 3),
        "of processor time": round(processor, 3) if given.device == "cpu" else "",
        "target": "" if target is None else f"<= {target}",
        "": "" if target is None else "ok" if wall <= target else "MISSED",
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, mps, xpu, directml (default: cpu)")
    parser.add_argument("--batch", default="64,256", help="batch sizes (default: 64,256)")
    parser.add_argument("--images", type=int, default=60_000, help="images of an epoch (default: 60000)")
    parser.add_argument("--rounds", type=int, default=3, help="epochs (default: 3)")
    parser.add_argument("--precision", default="32-true", help="as of onnxgen train (default: 32-true)")
    parser.add_argument("--compile", action="store_true", help="torch.compile on both sides")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's)")
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    keep_memory()
    given = Settings(device=asked.device, precision=asked.precision, compile=asked.compile)
    rows = [measure(int(batch), asked.images, asked.rounds, given) for batch in asked.batch.split(",")]
    finish(rows, asked.json)


if __name__ == "__main__":
    main()
