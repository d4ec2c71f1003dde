"""Overhead of `onnxgen.training.fit` against a loop written by hand: the MNIST sample's network, the same data.

    python -m benchmarks.fit [--device cpu] [--batch 64,256] [--images 60000] [--rounds 5] [--precision 32-true]
                             [--compile] [--threads N] [--json FILE]

One epoch of as many random images as MNIST has, by either, takes turns in one process; the ratio is the median over the
rounds. Of `fit` it is everything from the first step to the end of the epoch: loader, metrics, what is shown, the check
for NaN, and the checkpoint and the weights that are saved. The loop by hand indexes tensors and does nothing else. On
the CPU the ratio is also taken of processor time, which other programs on the machine disturb less; and glibc keeps the
memory that it has, since whether it gives a freed activation back at once is chance, and costs either loop up to a
tenth.
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
from torch import Tensor, nn

from benchmarks.common import ROOT, arguments, finish
from onnxgen.load import load
from onnxgen.training import choose, fit
from onnxgen.training.settings import Settings

TARGETS = {64: 1.05, 256: 1.02}
SAMPLE = ROOT / "samples" / "mnist" / "mnist.onnx"
RATE = 1e-3
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt(3)


@dataclass
class Clock(lightning.Callback):
    """Wall and processor seconds from the first training step to the end of training, what is saved included."""

    device: torch.device
    spent: tuple[float, float] = (0.0, 0.0)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.began = now(self.device)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.spent = since(self.began, self.device)


def now(device: torch.device) -> tuple[float, float]:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter(), time.process_time()


def since(began: tuple[float, float], device: torch.device) -> tuple[float, float]:
    wall, processor = now(device)
    return wall - began[0], processor - began[1]


def by_hand(model: nn.Module, images: Tensor, labels: Tensor, batch: int, given: Settings, device: torch.device) -> Any:
    """One epoch; wall and processor seconds."""
    model = model.to(device).train()
    if given.compile:
        model.compile()
    dtype = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(given.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    began = now(device)
    for chosen in torch.randperm(len(images)).split(batch):
        x, y = images[chosen].to(device), labels[chosen].to(device)
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            loss = F.nll_loss(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return since(began, device)


def ours(model: nn.Module, images: Tensor, labels: Tensor, batch: int, given: Settings, device: torch.device) -> Any:
    clock = Clock(device)
    with tempfile.TemporaryDirectory() as folder:
        data = {"train": (images, labels)}
        more: dict[str, Any] = {"batch_size": batch, "lr": RATE, "epochs": 1, "val": 0.0, "out": Path(folder) / "run"}
        fit(model, data, settings=given, callbacks=[clock], show="nothing", **more)
    return clock.spent


def keep_memory() -> None:
    """Let glibc hand out freed memory again, rather than ask the system for new pages each time."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        for what in (TRIM_THRESHOLD, MMAP_THRESHOLD):
            if mallopt is not None:
                mallopt(what, 1 << 30)


def measure(batch: int, number: int, rounds: int, given: Settings) -> dict[str, Any]:
    device = choose(given.device).torch_device
    number -= number % batch
    images, labels = torch.randn(number, 1, 28, 28), torch.randint(0, 10, (number,))
    pairs = []
    for turn in range(rounds + 1):
        order = (by_hand, ours) if turn % 2 else (ours, by_hand)
        found = {loop: loop(load(SAMPLE), images, labels, batch, given, device) for loop in order}
        if turn:  # the first round warms up
            pairs.append((found[ours], found[by_hand]))
    wall = statistics.median(a[0] / b[0] for a, b in pairs)
    processor = statistics.median(a[1] / b[1] for a, b in pairs)
    target = TARGETS.get(batch)
    return {
        "device": given.device,
        "precision": given.precision + (" compiled" if given.compile else ""),
        "batch": batch,
        "fit images/s": round(number / statistics.median(a[0] for a, _ in pairs)),
        "by hand images/s": round(number / statistics.median(b[0] for _, b in pairs)),
        "ratio of time": round(wall, 3),
        "of processor time": round(processor, 3) if device.type == "cpu" else "",
        "target": "" if target is None else f"<= {target}",
        "": "" if target is None else "ok" if wall <= target else "MISSED",
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, mps, xpu, directml (default: cpu)")
    parser.add_argument("--batch", default="64,256", help="batch sizes (default: 64,256)")
    parser.add_argument("--images", type=int, default=60_000, help="images of an epoch (default: 60000)")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of epochs (default: 5)")
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
