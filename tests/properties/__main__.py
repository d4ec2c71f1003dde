"""`python -m tests.properties FAMILY[.TEST] COUNT [SEED]`: many cases of a family, and one failure of each kind."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import UnsatisfiedAssumption

from tests.properties.judge import Case, Tally


def kind(error: Exception) -> str:
    """What failures have in common: their text without numbers."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {re.sub(r'-?[0-9][0-9.e+-]*', '#', text)[:90]}"


def hunt(cases: Any, count: int, start: int) -> tuple[Tally, dict[str, tuple[int, Case, Exception]]]:
    """Judge so many cases; the smallest failure of each kind, and how many there were."""
    tally, found = Tally(), {}

    @seed(start)
    @settings(
        max_examples=count, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(cases)
    def each(case: Case) -> None:
        try:
            tally.judge(case)
        except UnsatisfiedAssumption:
            raise
        except Exception as error:
            tally.counts["failed"] += 1
            times, smallest, of = found.get(kind(error), (0, case, error))
            if len(repr(case)) < len(repr(smallest)):
                smallest, of = case, error
            found[kind(error)] = (times + 1, smallest, of)

    each()
    return tally, found


def main(name: str, count: int, start: int = 0) -> None:
    family, _, only = name.partition(".")
    module = importlib.import_module(f"tests.properties.test_{family}")
    for test, value in list(vars(module).items()):  # a test may import something
        if not hasattr(value, "cases") or only not in test:
            continue
        tally, found = hunt(value.cases, count, start)
        print(f"== {family}.{test} {dict(tally.counts)} {tally.last[:200]}", flush=True)
        for times, case, error in sorted(found.values(), key=lambda f: -f[0]):
            print(f"-- {times} times: {type(error).__name__}: {' '.join(str(error).split())[:600]}\n   {case!r}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], *map(int, sys.argv[2:4]))
