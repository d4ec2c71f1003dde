"""One loop in a process of its own, for what it needs at most: prints MiB above what the network itself takes.

python -m samples.speed.memory MODEL.py whole|accumulated|kept|detached
"""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

from samples.speed.loops import Training

BATCH, PARTS = 512, 8  # "whole" and "accumulated"
LOOKED_AT, LOOKS = 64, 30  # "kept" and "detached": losses of so many batches that are not trained on


def peak() -> float:
    """MiB of memory that this process has had at most."""
    status = Path("/proc/self/status")  # Linux: the other number is at least what the process that started this one had
    if status.is_file():
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) / 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def look(training: Training, batch: int, count: int, detach: bool) -> int:
    """Sum the losses of batches as they are, or detached from what computed them; returns the images it took."""
    total = 0.0
    for _ in range(count):
        loss = training.loss(*training.batch(batch))
        total = total + (loss.detach() if detach else loss)
    return batch * count


def main() -> None:
    training = Training(Path(sys.argv[1]))
    training.step(*training.batch(2))
    before = peak()
    if sys.argv[2] in ("kept", "detached"):
        look(training, LOOKED_AT, LOOKS, sys.argv[2] == "detached")
    else:
        for _ in range(2):
            training.step(*training.batch(BATCH), PARTS if sys.argv[2] == "accumulated" else 1)
    print(peak() - before)


if __name__ == "__main__":
    main()
