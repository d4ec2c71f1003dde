"""Generating costs what the nodes cost: a transformer of 100 blocks at most 12 times as much as one of 10."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from onnxgen.pipeline import generate
from tests.zoo import ZOO
from tests.zoo.export import export
from tests.zoo.vit import VisionTransformer


def seconds(depth: int, folder: Path, rounds: int) -> float:
    """Of the processor, which other processes slow less than the clock; the best of some rounds."""
    path = folder / f"{depth}.onnx"
    export(replace(ZOO["vit"], build=lambda: VisionTransformer(dim=8, depth=depth, heads=2)), path)
    spent = []
    for _ in range(rounds):
        start = time.process_time()
        generate(path, folder / "model.py", force=True)
        spent.append(time.process_time() - start)
    return min(spent)


def test_ten_times_the_blocks_take_at_most_twelve_times_as_long(tmp_path: Path) -> None:
    few, many = seconds(10, tmp_path, 2), seconds(100, tmp_path, 1)
    assert many <= 12 * few, f"{few:.2f} s and {many:.2f} s"
