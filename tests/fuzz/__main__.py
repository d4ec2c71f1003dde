"""python -m tests.fuzz reader|lowering|pipeline --executions N --corpus FOLDER"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

from tests.fuzz.engine import Fuzzer
from tests.fuzz.seeds import all_seeds, few
from tests.fuzz.targets import TARGETS


def stored_seeds(folder: Path) -> list[bytes]:
    """The seeds, which are made once for a corpus."""
    if not folder.exists():
        partial = folder.with_name("seeds.part")
        partial.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(all_seeds()):
            (partial / f"{number:05}.onnx").write_bytes(data)
        partial.rename(folder)
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--executions", type=int, required=True, help="in all, with those of earlier runs")
    parser.add_argument("--corpus", type=Path, required=True, help="a folder; the same one goes on")
    parser.add_argument("--few", action="store_true", help="begin with the few seeds that are made at once")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    seeds = few() if given.few else stored_seeds(given.corpus / "seeds")
    state = Fuzzer(given.target, given.corpus, seeds).run(given.executions, told=True)
    return 1 if state.findings else 0


if __name__ == "__main__":
    sys.exit(main())
