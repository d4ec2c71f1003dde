"""`python -m tests.hunts scopes --cases 1000 --seed 0`"""

from __future__ import annotations

import argparse
import os
import sys

from tests.hunts.hunting import hunt

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.hunts")
    hunts = ("scopes", "modules", "names", "composite", "edits", "untouched", "differences", "transplants")
    parser.add_argument("hunt", choices=hunts)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", help="of edits: one kind; of untouched: a folder")
    parser.add_argument(
        "--what", choices=("keep", "change"), help="of edits: those that keep the function, or that change it"
    )
    given = parser.parse_args()
    # torch's exporter writes each graph that it refuses to the process's own output
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if given.hunt == "untouched":
        from tests.hunts.untouched import hunt as hunt_untouched

        untouched = hunt_untouched(given.seed, given.cases, given.only, given.what == "keep")
        sys.exit(1 if untouched["different"] else 0)
    if given.hunt == "edits":
        from tests.hunts.edits import hunt as hunt_edits

        found = hunt_edits(given.seed, given.cases, given.only, None if given.what is None else given.what == "keep")
        sys.exit(1 if found["keep wrong"] or found["change wrong"] else 0)
    if given.hunt == "transplants":
        from tests.hunts.transplants import hunt as hunt_transplants

        found = hunt_transplants(given.seed, given.cases)
        sys.exit(1 if found["wrong"] or found["crash"] else 0)
    if given.hunt == "differences":
        from tests.hunts.differences import hunt as hunt_differences

        table = hunt_differences(
            given.seed, given.cases, given.only, None if given.what is None else given.what == "keep"
        )
        sys.exit(1 if any(verdict.split(" ", 1)[1] not in ("ok", "void") for verdict in table) else 0)
    table = hunt(given.hunt, given.seed, given.cases, given.workers)
    sys.exit(1 if table["wrong"] or table["crash"] else 0)
