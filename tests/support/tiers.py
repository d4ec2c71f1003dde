"""The tiers of the suite: `quick` has every test function with a few of its cases, `rest` has the other cases.

    python -m pytest --tier quick --seed 4462e2bd

`--shuffle` runs the files in another order, and the tests of each file.

Without `--tier`, all cases run. Which cases of a function are in the quick tier depends on the seed, so other commits
run others. `make test` takes the commit's hash; the seed is printed, and the same seed chooses the same cases.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

import pytest

CASES = 2  # of a function, in the quick tier


def chosen(function: str, count: int, seed: str) -> set[int]:
    """Return which of a function's `count` cases are in the quick tier: evenly apart, the first one by the seed.

    Neighbouring cases are often alike, so they are taken from different parts of the list.
    """
    first = zlib.crc32(f"{seed} {function}".encode())
    return {(first + count * k // CASES) % count for k in range(CASES)} if count else set()


def quick(names: Sequence[str], seed: str) -> set[int]:
    """Return the places of the quick tier's tests among all tests, which have a name `file::function[case]` each."""
    functions: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        functions.setdefault(name.partition("[")[0], []).append(place)
    return {cases[k] for function, cases in functions.items() for k in chosen(function, len(cases), seed)}


def shuffled(items: Sequence[pytest.Item], seed: str) -> list[pytest.Item]:
    """Return the tests in another order; those of a file stay together, since they share what is made once."""
    draw, files = random.Random(seed), dict[str, list[pytest.Item]]()
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    groups = list(files.values())
    draw.shuffle(groups)
    return [item for group in groups for item in draw.sample(group, len(group))]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption(
        "--tier", choices=("all", "quick", "rest"), default="all", help="a few cases of each function, or the others"
    )
    group.addoption("--seed", default="0", help="which cases are in the quick tier; the commit's hash in `make test`")

    group.addoption("--shuffle", metavar="SEED", help="the files in another order, and the tests of each file, too")


def pytest_report_header(config: pytest.Config) -> str:
    tier, seed = config.getoption("--tier"), config.getoption("--seed")
    return "all cases" if tier == "all" else f"tier {tier}, seed {seed}: up to {CASES} cases of each function are quick"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if shuffle := config.getoption("--shuffle"):
        items[:] = shuffled(items, shuffle)
    tier = config.getoption("--tier")
    if tier == "all":
        return
    inside = quick([item.nodeid for item in items], config.getoption("--seed"))
    left = [item for place, item in enumerate(items) if (place in inside) != (tier == "quick")]
    items[:] = [item for place, item in enumerate(items) if (place in inside) == (tier == "quick")]
    config.hook.pytest_deselected(items=left)
