"""ONNX's node tests at older opsets, where onnxruntime or the reference makes of them what is stated.

Each is run at the older opsets that have a schema version not run yet, and about half of them at a random other one,
the same in every run. ONNXGEN_OLDER=all runs each at every opset that has other schemas for it. `pytest -s` prints
counts.
"""

from __future__ import annotations

import functools
import os
import random
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from onnx import defs

from tests.backend.older import DOMAINS, Older, Version, older, versions
from tests.ops.harness import all_cases
from tests.ops.test_old_schemas import run_here

PARTS = 16
ALL = os.environ.get("ONNXGEN_OLDER") == "all"
SHARE = 0.5  # of the tests that bring nothing new
AT_LEAST = 30  # tests that are run in each part


def cases_of(part: int) -> list[Any]:
    """The tests of a part, those of an operator together, in a random order that never changes."""

    def operator(case: Any) -> str:
        return str(case.model.graph.node[0].op_type) if len(case.model.graph.node) == 1 else str(case.name)

    mine = [case for case in all_cases() if zlib.crc32(operator(case).encode()) % PARTS == part]
    return sorted(mine, key=lambda case: zlib.crc32(case.name.encode()))


def chosen(case: Any, seen: set[Version]) -> Iterator[Older]:
    """The models to run, each of which is kept: those that have a version not in `seen`, and perhaps a random one."""
    rng = random.Random(case.name)
    found = list(older(case, None if ALL else [rng.randrange(7, 28)]))
    rng.shuffle(found)
    more = len(found) if ALL else int(rng.random() < SHARE)
    for one in found:
        if (more > 0 or not versions(one.model) <= seen) and one.is_kept:
            more -= 1
            yield one


@functools.cache
def current() -> frozenset[Version]:
    """The schema versions that the tests are of."""
    return frozenset(version for case in all_cases() for version in versions(case.model))


def every_version(part: int) -> set[Version]:
    """The older schema versions of the operators whose tests are of this part."""
    single = [case.model.graph.node[0] for case in cases_of(part) if len(case.model.graph.node) == 1]
    names = {(node.domain, node.op_type) for node in single if node.domain in DOMAINS}
    every = {(s.domain, s.name, s.since_version) for s in defs.get_all_schemas_with_history() if not s.deprecated}
    return {version for version in every - current() if version[:2] in names}


@pytest.mark.parametrize("part", range(PARTS))
def test_what_is_stated_comes_of_older_schemas_too(part: int) -> None:
    seen: set[Version] = set()
    ran, failed = Counter[int](), []
    for case in cases_of(part):
        for one in chosen(case, seen):
            try:
                one.run()
            except Exception as error:
                failed.append(f"{case.name} at {one.opset}, {one.how}: {error}")
            ran[one.opset] += 1
            seen |= versions(one.model)
    print(f"\n{sum(ran.values())} tests by opset: {dict(sorted(ran.items()))}; {len(seen)} schema versions")
    assert not failed, "\n".join(failed)
    left = every_version(part) - seen - run_here()
    assert not left, f"no test runs {sorted(left)}"
    assert sum(ran.values()) >= AT_LEAST
