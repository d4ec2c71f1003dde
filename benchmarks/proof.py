"""What the check of every generation costs: seconds of the processor with it and without, side by side.

python -m benchmarks.proof FILE.onnx ...
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxgen.passes
from benchmarks.mutation.corpus import Unchecked
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.pipeline import build

TURNS = 3


def seconds(path: Path, out: Path, checker: Callable[..., Any]) -> float:
    onnxgen.passes.checker_for = checker
    started = time.process_time()
    build(path, Options(), out)
    return time.process_time() - started


def main() -> None:
    checked, ratios = onnxgen.passes.checker_for, []
    out = Path(tempfile.mkdtemp()) / "model.py"
    for path in map(Path, sys.argv[1:]):
        try:
            pairs = [(seconds(path, out, checked), seconds(path, out, lambda *_: Unchecked())) for _ in range(TURNS)]
        except OnnxgenError:
            continue
        with_check, without = (min(turn[i] for turn in pairs) for i in (0, 1))
        ratios.append(with_check / without)
        print(f"{ratios[-1]:5.2f} {with_check:7.2f} s {path.name}", flush=True)
    print(f"{len(ratios)} files: median {statistics.median(ratios):.3f}, largest {max(ratios):.2f}")


if __name__ == "__main__":
    main()
