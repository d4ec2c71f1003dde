"""Lists that grow and are joined anew at each step: each step joins one tensor more to the last result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.ops.harness import generate as _generate
from tests.whole.test_random_graphs import hold
from tests.whole.test_small_graphs import case

GRAPH = """
    (float[N, 4, 4] x) => (float[] y)
    {
        a = Relu(x) b = Tanh(x) c = Neg(x) d = Exp(x)
        p = Concat<axis = 1>(a, b) q = Concat<axis = -2>(a, b, c) r = %s
        s = ReduceSum<keepdims = 0>(p) t = ReduceMax<keepdims = 0>(q) u = ReduceMin<keepdims = 0>(r)
        v = Add(s, t) y = Sub(v, u)
    }"""


@pytest.mark.parametrize(
    ("last", "joined"),
    [
        ("Concat<axis = 1>(a, b, c, d)", [2, 2, 2]),
        ("Concat<axis = 1>(a, b, c, d, a)", [2, 2, 3]),
        ("Concat<axis = 1>(b, a, c, d)", [2, 3, 4]),
        ("Concat<axis = 2>(a, b, c, d)", [2, 3, 4]),
        ("Concat<axis = 1>(a, b, d)", [2, 3, 3]),
        ("Concat<axis = 1>(a, b, c)", [2, 3, 3]),
    ],
)
def test_how_many_are_joined(last: str, joined: list[int], tmp_path: Path) -> None:
    graph = case(GRAPH % last)
    assert hold(graph, tmp_path)
    source = _generate(graph.model, pretty=True).source
    lists = re.findall(r"torch\.cat\(\s*\[([^]]+)]", source)
    assert sorted(len(re.findall(r"\w+(\(\w+\))?,?", re.sub(r"\w+\.", "", found))) for found in lists) == joined
