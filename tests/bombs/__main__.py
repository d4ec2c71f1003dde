"""python -m tests.bombs --count 100: generates drawn files, each in a process of its own, within bounds."""

from __future__ import annotations

import argparse
import sys

from tests.bombs.cost import Cost, cost_of
from tests.bombs.drawn import drawn


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    faults = 0
    for number in range(asked.first, asked.first + asked.count):
        kind, data = drawn(number)
        cost: Cost = cost_of(data)
        fault = cost.fault()
        faults += bool(fault)
        print(f"{number:4} {kind:10} {len(data):6,} bytes: {cost}  {fault}", flush=True)
    print(f"{faults} of {asked.count} cost too much, or ended otherwise than by a clear line")
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
