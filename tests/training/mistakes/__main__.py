"""python -m tests.training.mistakes options|data|modules --first N --count N [--world NAME]"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import tempfile
from pathlib import Path

from tests.training.mistakes import worlds
from tests.training.mistakes.drawing import DRAW, tried
from tests.training.mistakes.judge import tell
from tests.training.sketches import sketched


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.training.mistakes", description=__doc__)
    parser.add_argument("kind", choices=sorted(DRAW))
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--world", choices=sorted(worlds.MAKE))
    parser.add_argument("--made", type=Path, help="a folder with the worlds, which are made if it is not there")
    given = parser.parse_args()
    codes, failed = collections.Counter[int](), 0
    with tempfile.TemporaryDirectory() as temporary, sketched():
        folder = given.made or Path(temporary) / "worlds"
        if not folder.exists():
            folder.mkdir(parents=True)
            worlds.made(folder)
        for seed in range(given.first, given.first + given.count):
            draw = random.Random(f"{given.kind} {seed}")
            world = given.world or draw.choice([*worlds.MAKE])
            for command, code, wrong in tried(given.kind, folder / world, draw):
                codes[code] += 1
                if wrong:
                    failed += 1
                    tell(f"{given.kind} {seed} {world}: {command}\n    {wrong.strip()[-1500:]}")
    tell(f"{given.count} draws, {codes.total()} commands; exit codes {dict(sorted(codes.items()))}; {failed} are wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
