"""Slices along several axes, one after another: one index."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ops.harness import generate as _generate
from tests.ops.harness import run_model
from tests.whole.test_random_graphs import hold
from tests.whole.test_small_graphs import case

TWO = """
    (float[N, 4, L] x) => (float[] y)
    <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] last = {-1}>
    { %s }"""


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("a = Slice(x, one, three, one) y = Slice(a, one, last, two)", "x[:, 1:3, 1:-1]"),
        (
            "n = Shape<start = 1, end = 2>(x) a = Slice(x, zero, n, two, two) y = Slice(a, one, n, one)",
            "x[:, 1:, :4:2]",
        ),
        (
            "n = Shape<start = 2>(x) m = Sub(n, one) a = Slice(x, zero, m, two) y = Slice(a, one, two, one)",
            "x[:, 1:2, : ",
        ),
    ],
)
def test_one_index(body: str, text: str, tmp_path: Path) -> None:
    graph = case(TWO % body)
    assert hold(graph, tmp_path)
    assert text in _generate(graph.model, pretty=True).source


@pytest.mark.parametrize(
    "body",
    [
        "a = Slice(x, one, three, one) y = Slice(a, zero, one, one)",  # the same axis again
        "a = Slice(x, one, three, one) b = Slice(a, one, last, two) c = ReduceMax(a) y = Add(b, c)",  # used twice
    ],
)
def test_slices_that_stay(body: str, tmp_path: Path) -> None:
    graph = case(TWO % body)
    assert hold(graph, tmp_path)
    feeds = graph.feeds[0]
    assert "x[:, 1:3]" in run_model(graph.model, feeds).source


def test_a_slice_of_everything_is_gone(tmp_path: Path) -> None:
    """Also one whose end is a number, but more than a memory can hold."""
    stored = "int64[1] zero = {0}, int64[1] four = {4}, int64[1] one = {1}, int64[1] far = {1000000000}"
    text = f"(float[N, 4, 65536] x) => (float[] y) <{stored}> {{ %s }}"
    whole = case(text % "a = Slice(x, zero, four, one) b = Slice(a, zero, far, zero) y = Neg(b)")
    assert hold(whole, tmp_path)
    assert "return -x" in _generate(whole.model, pretty=True).source
    less = case((text % "b = Slice(x, zero, far, zero) y = Neg(b)").replace("65536", "4"))
    assert "[:1000000000]" in _generate(less.model, pretty=True).source  # bytes of 16 GB


def test_a_reversed_slice_stays(tmp_path: Path) -> None:
    stored = "int64[1] last = {-1}, int64[1] begin = {-9223372036854775807}, int64[1] one = {1}"
    graph = case(f"(float[N, 4, L] x) => (float[] y) <{stored}> {{ y = Slice(x, last, begin, one, last) }}")
    assert hold(graph, tmp_path)
    assert "flip(1)" in _generate(graph.model, pretty=True).source


ONE = """
    (float[N, 4, L] x) => (float[] y)
    <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] last = {-1}, int64[1] least = {-2},
     int64[1] far = {9223372036854775807}> { %s }"""


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("a = Slice(x, last, far, zero) y = Squeeze(a, zero)", "return x[-1]"),
        ("a = Slice(x, one, two, one) y = Squeeze(a, one)", "return x[:, 1]"),
        ("a = Slice(x, least, last, two) y = Squeeze(a, two)", "return x[..., -2]"),
        ("a = Slice(x, zero, one, two) y = Squeeze(a, last)", "return x[..., 0]"),
    ],
)
def test_one_element(body: str, text: str, tmp_path: Path) -> None:
    graph = case(ONE % body)
    assert hold(graph, tmp_path)
    assert text in _generate(graph.model, pretty=True).source


@pytest.mark.parametrize(
    "body",
    [
        "a = Slice(x, one, two, one) b = Squeeze(a, one) c = Unsqueeze(b, one) y = Sub(c, a)",  # used twice
        "a = Slice(x, zero, two, one) y = Unsqueeze(a, one)",  # two elements
        "a = Slice(x, last, zero, zero, last) y = Neg(a)",  # backwards
    ],
)
def test_parts_that_stay(body: str, tmp_path: Path) -> None:
    graph = case(ONE % body)
    assert hold(graph, tmp_path)
