"""Counts the processes that prepare batches."""

from __future__ import annotations

import os
from collections.abc import Callable

from onnxgen.training.data.samples import Samples

MAX_WORKERS = 8


def count_workers(samples: Samples, workers: int | str, world: int = 1) -> int:
    """Return the number of worker processes; "auto": none for arrays in memory, else one per core of this rank."""
    if isinstance(workers, int):
        return workers
    if getattr(samples, "in_memory", False):
        return 0
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    return max(1, min(_cores() // max(local, 1), MAX_WORKERS))


def _cores() -> int:
    """Return the number of cores that this process may use. In a container these are fewer than the machine has."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
