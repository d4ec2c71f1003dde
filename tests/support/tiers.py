"""The tiers of the suite: `quick` has every test function with a few of its cases, `rest` has the other cases.

    python -m pytest --tier quick --seed 4462e2bd

`--shuffle` runs the files in another order, and the tests of each file. `--minutes` ends a run: what has not begun by
then is skipped, and the summary says how many tests those are.

Without `--tier`, all cases run. Which cases of a function are in the quick tier depends on the seed, so other commits
run others. `make test` takes the commit's hash; the seed is printed, and the same seed chooses the same cases. A test
that draws its inputs draws fewer in the quick tier, and is in `rest`, too. A case of ONNX's own suite is a case of its
operator.
"""

from __future__ import annotations

import os
import random
import re
import time
import zlib
from collections.abc import Sequence

import pytest

ONE_CASE_OF, MOST_CASES = 32, 3  # of a function: one case in the quick tier, and one for every 32 that it has
DRAWN = "ONNXGEN_DRAWN"  # in the environment of the quick tier: one of how many inputs are drawn
ONE_OF, LEAST = 6, 5
UNTIL = "ONNXGEN_TESTS_UNTIL"  # in the environment, for all workers: when no other test begins, in seconds since 1970
# ONNX makes a function for each of its cases.
ONNX_CASE = re.compile(r"::OnnxBackend(?:RealModelTest|\w+::test_[a-z]+)")


def drawn(count: int) -> int:
    """Return how many inputs a test draws that draws `count` in the whole suite."""
    return min(count, max(LEAST, count // int(os.environ.get(DRAWN, "1"))))


def function_of(name: str) -> str:
    """Return the function that a test is a case of."""
    found = ONNX_CASE.search(name)
    return name[: found.end()] if found else name.partition("[")[0]


def chosen(function: str, count: int, seed: str) -> set[int]:
    """Return which of a function's `count` cases are in the quick tier: evenly apart, the first one by the seed.

    Neighbouring cases are often alike, so they are taken from different parts of the list.
    """
    first = zlib.crc32(f"{seed} {function}".encode())
    some = min(MOST_CASES, 1 + count // ONE_CASE_OF)
    return {(first + count * k // some) % count for k in range(some)} if count else set()


def quick(names: Sequence[str], seed: str) -> set[int]:
    """Return the places of the quick tier's tests among all tests, which have a name `file::function[case]` each."""
    functions: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        functions.setdefault(function_of(name), []).append(place)
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
    group.addoption("--minutes", type=float, help="after which no other test begins")


def pytest_report_header(config: pytest.Config) -> str:
    tier, seed = config.getoption("--tier"), config.getoption("--seed")
    return (
        "all cases"
        if tier == "all"
        else f"tier {tier}, seed {seed}: up to {MOST_CASES} cases of each function are quick"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--tier") == "quick":  # before the files of tests are imported
        os.environ[DRAWN] = str(ONE_OF)
        config.add_cleanup(lambda: os.environ.pop(DRAWN, None))
    if (minutes := config.getoption("--minutes")) is not None:
        os.environ.setdefault(UNTIL, str(time.time() + 60 * minutes))
        config.add_cleanup(lambda: os.environ.pop(UNTIL, None))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that begins too late. pytest adds up those that are skipped here in one line."""
    if time.time() > float(os.environ.get(UNTIL, "inf")):
        pytest.skip(f"not run: {item.config.getoption('--minutes'):g} minutes were over")


def _draws(item: pytest.Item) -> bool:
    """Whether a test draws its inputs: Hypothesis does, or it asks `drawn` how many."""
    made = getattr(item, "obj", None)
    asks = drawn.__name__ in getattr(getattr(made, "__code__", None), "co_names", ())
    return asks or getattr(made, "is_hypothesis_test", False)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if shuffle := config.getoption("--shuffle"):
        items[:] = shuffled(items, shuffle)
    tier = config.getoption("--tier")
    if tier == "all":
        return
    inside = quick([item.nodeid for item in items], config.getoption("--seed"))
    chosen, left = list[pytest.Item](), list[pytest.Item]()
    for place, item in enumerate(items):
        is_chosen = place in inside if tier == "quick" else place not in inside or _draws(item)
        (chosen if is_chosen else left).append(item)
    items[:] = chosen
    config.hook.pytest_deselected(items=left)
