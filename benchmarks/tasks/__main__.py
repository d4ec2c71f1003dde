"""Train each task with onnxgen, and the original in a loop by hand: python -m benchmarks.tasks [NAME...]

Both ways have the same weights at the start, the same batches and the same optimizer. Loss and metric of the loop are
written without onnxgen. The table has a row for each network of the samples:

    onnxgen, by hand   the metric of the validation part after the last epoch, for each of three seeds
    s                  seconds of one training, of one core
    difference         of the means, onnxgen's minus that by hand
    spread             the greatest minus the smallest of three figures; the larger one of the two ways
    onnxruntime        the largest difference of the exported file's outputs from the trained module's, over the largest
                       output; the worst of the seeds

It ends with an error if onnxgen is worse by more than the spread, or a file computes something else than its module.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.tasks.images import ROWS as IMAGES
from benchmarks.tasks.places import ROWS as PLACES
from benchmarks.tasks.row import Row, by_hand, by_onnxgen, in_onnxruntime
from benchmarks.tasks.texts import ROWS as TEXTS

SEEDS = (0, 1, 2)
EQUAL = 1e-4  # of the largest output
ROWS = {row.name: row for row in (*IMAGES, *PLACES, *TEXTS)}
COLUMNS = ("network", "task", "metric", "onnxgen", "s", "by hand", "s", "difference", "spread", "onnxruntime")


def compared(row: Row, folder: Path) -> tuple[tuple[str, ...], bool]:
    """Return the cells of a row, and whether onnxgen does as well as the loop by hand."""
    given = row.made(folder)
    begun = time.process_time()
    ours = [by_onnxgen(row, given, seed, folder / f"run{seed}") for seed in SEEDS]
    between = time.process_time()
    theirs = [by_hand(row, given, seed) for seed in SEEDS]
    ended = time.process_time()
    differs = max(in_onnxruntime(given, result) for _, result in ours)
    figures = [[value for value, _ in ours], theirs]
    means = [statistics.mean(values) for values in figures]
    spread = max(max(values) - min(values) for values in figures)
    told = [", ".join(f"{value:.4g}" for value in values) for values in figures]
    seconds = [f"{part / len(SEEDS):.1f}" for part in (between - begun, ended - between)]
    cells = (row.name, row.task, row.metric, told[0], seconds[0], told[1], seconds[1])
    as_good = row.as_good(*means, spread) and differs <= EQUAL
    return (*cells, f"{means[0] - means[1]:.1e}", f"{spread:.1e}", f"{differs:.0e}"), as_good


def main() -> None:
    torch.set_num_threads(1)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    worse = []
    for name in sys.argv[1:] or ROWS:
        with tempfile.TemporaryDirectory() as folder:
            cells, as_good = compared(ROWS[name], Path(folder))
        print(f"| {' | '.join(cells)} |", flush=True)
        worse += [] if as_good else [name]
    if worse:
        raise SystemExit(f"worse than by hand, or unequal in onnxruntime: {', '.join(worse)}")


if __name__ == "__main__":
    main()
