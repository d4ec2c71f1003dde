"""Nested pairs that are joined along one axis are one list."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ops.harness import generate as _generate
from tests.whole.test_random_graphs import hold
from tests.whole.test_small_graphs import case

GRAPH = """
    (float[N, 4, 4] x) => (float[] y)
    {
        a = Relu(x) b = Tanh(x) c = Neg(x)
        p = Concat<axis = 1>(a, b) q = Concat<axis = %s>(c, p) r = Concat<axis = 1>(q, a)
        s = ReduceMax<keepdims = 0>(r) t = ReduceMin<keepdims = 0>(%s) y = Sub(s, t)
    }"""


@pytest.mark.parametrize(
    ("axis", "also", "lists"),
    [("1", "x", 1), ("-2", "x", 1), ("1", "p", 2), ("1", "q", 2), ("2", "x", 3)],
    ids=["one axis", "from the end", "a part is used", "the rest is used", "another axis"],
)
def test_one_list(axis: str, also: str, lists: int, tmp_path: Path) -> None:
    text = GRAPH % (axis, also)
    if axis == "2":  # what is joined along another axis must be as high, and then as wide
        text = text.replace("(c, p)", "(p, p)").replace("(q, a)", "(q, q)")
    graph = case(text)
    assert hold(graph, tmp_path)
    assert _generate(graph.model, pretty=True).source.count("torch.cat(") == lists
