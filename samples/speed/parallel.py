"""One process alone beside all of them together, each with one thread and its own batch: prints both in images/s.

torchrun --nproc-per-node 2 -m samples.speed.parallel MODEL.py STEPS
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from samples.speed.loops import ROUNDS, Training

BATCH = 64  # images a process and step


def timed(training: Training, steps: int) -> float:
    """Images a second of one process, over a number of steps that is the same for all."""
    batch = training.batch(BATCH)
    training.step(*batch)
    start = time.perf_counter()
    for _ in range(steps):
        training.step(*batch)
    return BATCH * steps / (time.perf_counter() - start)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, steps = Path(sys.argv[1]), int(sys.argv[2])
    alone, together = Training(model), Training(model)
    together.model = DistributedDataParallel(together.model)
    rates: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        one = timed(alone, steps) if dist.get_rank() == 0 else 0.0
        dist.barrier()
        rates.append((one, dist.get_world_size() * timed(together, steps)))
        dist.barrier()
    if dist.get_rank() == 0:
        print(*(statistics.median(column) for column in zip(*rates, strict=True)), flush=True)
    dist.destroy_process_group()
    os._exit(0)  # threads of torch's that are still about abort the interpreter's own way out now and then


if __name__ == "__main__":
    main()
