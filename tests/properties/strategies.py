"""What families of operators draw alike: shapes, values, axes, opsets, and where inputs come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.properties.judge import Case

Array = np.ndarray[Any, Any]
Draw = Any

NEWEST = 26  # onnxruntime 1.31 runs no newer opset
FLOATS = ["float32", "float64", "float16"]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
# movable by every operator of onnxruntime that only moves elements
PLAIN = ["float32", "int64", "int32", "float64", "bool", "uint8", "float16"]


def opsets(first: int = 7, last: int = NEWEST) -> st.SearchStrategy[int]:
    return st.integers(first, last)


def shapes(low: int = 0, high: int = 4, dims: tuple[int, int] = (1, 5)) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of `low` to `high` dims. A dim is seldom 0 or 1."""
    return st.lists(st.integers(*dims), min_size=low, max_size=high).map(tuple)


def ints(low: int, high: int, n: int) -> st.SearchStrategy[list[int]]:
    """A list of n ints."""
    return st.lists(st.integers(low, high), min_size=n, max_size=n)


def maybe(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A value, or None."""
    return st.none() | value


def i64(values: Any) -> Array:
    return np.array(values, np.int64)


SEEDS = st.integers(0, 2**16)


@st.composite
def whole(draw: Draw, shape: Sequence[int], dtype: str = "float32", low: int = -4, high: int = 4) -> Array:
    """Whole numbers so small that sums and products of them are exact in float32 whatever the order."""
    low = max(low, 0) if dtype.startswith(("u", "b")) else low
    values = np.random.default_rng(draw(SEEDS)).integers(low, high, shape, endpoint=True)
    return np.asarray(values).astype(dtype)


@st.composite
def numbers(draw: Draw, shape: Sequence[int], dtype: str = "float32", low: float = -1, high: float = 1) -> Array:
    """Any numbers between two."""
    values = np.random.default_rng(draw(SEEDS)).uniform(low, high, shape)
    return np.asarray(values).astype(dtype)


@st.composite
def distinct(draw: Draw, shape: Sequence[int], dtype: str = "float32") -> Array:
    """Numbers of which no two are equal, as far as the dtype has so many, so that a wrong place shows."""
    size = int(np.prod(shape))
    order = np.random.default_rng(draw(SEEDS)).permutation(size) + 1
    if dtype == "bool":
        return (order % 2 == 0).reshape(shape)
    if dtype == "str":
        return np.array([f"t{i}" for i in order] + [""], object)[:-1].reshape(shape)
    return np.asarray(order.reshape(shape)).astype(dtype)


@st.composite
def axis_of(draw: Draw, rank: int, negative: bool = True) -> int:
    axis = draw(st.integers(0, rank - 1))
    return axis - rank if negative and draw(st.booleans()) else axis


@st.composite
def axes_of(draw: Draw, rank: int, low: int = 1, negative: bool = True) -> list[int]:
    """Some axes in any order, from the front or from the back."""
    chosen = draw(st.permutations(range(rank)))[: draw(st.integers(min(low, rank), rank))]
    return [a - rank if negative and draw(st.booleans()) else a for a in chosen]


@st.composite
def placed(
    draw: Draw,
    op: str,
    inputs: list[Any],
    attrs: dict[str, Any] | None = None,
    opset: int = 21,
    outputs: int | list[str] = 1,
    rtol: float = 0.0,
    atol: float = 0.0,
    constant: Sequence[int] = (),
) -> Case:
    """The node with its inputs stored or given at run time, and with sizes known or not.

    `constant`: indices of inputs that onnxruntime wants stored.
    """
    while inputs and inputs[-1] is None:
        inputs = inputs[:-1]
    present = [n for n, v in enumerate(inputs) if v is not None]
    stored = set(draw(st.sampled_from([[], present[1:]]) | st.sets(st.sampled_from(present))))
    stored |= {n for n in constant if n in present}
    if len(stored) == len(present) and 0 not in constant:
        stored -= {0}
    rank = max(np.asarray(v).ndim for v in inputs if v is not None)
    named = draw(st.sampled_from([[], list(range(rank))]) | st.sets(st.integers(0, max(rank - 1, 0))))
    return Case(op, inputs, attrs or {}, opset, outputs, frozenset(stored), frozenset(named), rtol, atol)


@st.composite
def some(draw: Draw, **values: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Attributes, each of which may be left out."""
    return {name: draw(value) for name, value in values.items() if draw(st.booleans())}
