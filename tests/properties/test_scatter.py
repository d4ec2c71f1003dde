"""ScatterElements, ScatterND and Scatter: every reduction, repeated and negative indices."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.properties.judge import Case, agreement
from tests.properties.strategies import SEEDS, Draw, axis_of, distinct, opsets, placed, shapes, whole
from tests.properties.test_gather import places


@st.composite
def reduction(draw: Draw, opset: int, since: int, extremes: int) -> dict[str, Any]:
    names = ["none"] + (["add", "mul"] if opset >= since else []) + (["max", "min"] if opset >= extremes else [])
    name = draw(st.sampled_from(names))
    return {"reduction": name} if opset >= since and (name != "none" or draw(st.booleans())) else {}


REDUCED = ["float32", "int64", "int32", "float64", "float16"]


@st.composite
def scatter_elements(draw: Draw) -> Case:
    opset = draw(opsets(9))
    op = "Scatter" if opset < 11 else "ScatterElements"
    attrs = draw(reduction(opset, 16, 18))
    x = draw(whole(draw(shapes(1, 4)), draw(st.sampled_from(REDUCED))))
    axis = draw(axis_of(x.ndim, negative=opset >= 11))
    shape = [draw(st.integers(0, d)) for d in x.shape]
    if attrs.get("reduction", "none") != "none":
        shape[axis] = draw(st.integers(0, 6))
        index = draw(places(shape, x.shape[axis], True, draw(st.sampled_from(["int64", "int32"]))))
    else:  # which of several values wins is nobody's promise
        index = _permuted(shape, axis, x.shape[axis], draw(SEEDS), opset >= 11)
    updates = draw(whole(shape, str(x.dtype), -2, 2))
    return draw(placed(op, [x, index, updates], {**attrs, "axis": axis}, opset))


def _permuted(shape: list[int], axis: int, size: int, seed: int, negative: bool) -> Any:
    """Indices of which no two along an axis are equal."""
    rng = np.random.default_rng(seed)
    full = [*shape]
    full[axis] = size
    order = np.argsort(rng.random(full), axis)
    index = np.take(order, range(shape[axis]), axis)
    return (index - size * rng.integers(0, 2, index.shape)).astype(np.int64) if negative else index.astype(np.int64)


@st.composite
def scatter_nd(draw: Draw) -> Case:
    opset = draw(opsets(11))
    attrs = draw(reduction(opset, 16, 18))
    x = draw(whole(draw(shapes(1, 4)), draw(st.sampled_from(REDUCED))))
    depth = draw(st.integers(1, x.ndim))
    outer, spots = list(draw(shapes(1, 2, (0, 3)))), int(np.prod(x.shape[:depth]))
    rng = np.random.default_rng(draw(SEEDS))
    if attrs.get("reduction", "none") == "none":
        outer = outer if np.prod(outer) <= spots else [min(spots, 3)]
        flat = rng.permutation(spots)[: int(np.prod(outer))]
    else:
        flat = rng.integers(0, spots, int(np.prod(outer)))
    index = np.stack(np.unravel_index(flat.astype(np.int64), x.shape[:depth]), -1).reshape(*outer, depth)
    index = index - np.array(x.shape[:depth]) * rng.integers(0, 2, index.shape)
    updates = draw(whole([*outer, *x.shape[depth:]], str(x.dtype), -2, 2))
    return draw(placed("ScatterND", [x, index.astype(np.int64), updates], attrs, opset))


@st.composite
def tensor_scatter(draw: Draw) -> Case:
    batch, length, more, width = (draw(st.integers(1, d)) for d in (3, 5, 3, 3))
    steps = draw(st.integers(1, length))
    mode = draw(st.sampled_from([None, "linear", "circular"]))
    starts = [draw(st.integers(0, length - 1 if mode == "circular" else length - steps)) for _ in range(batch)]
    places = np.array(starts, np.int64) if draw(st.booleans()) else None
    inputs = [draw(distinct([batch, more, length, width])), draw(distinct([batch, more, steps, width])), places]
    attrs = {"mode": mode} if mode else {}
    return draw(placed("TensorScatter", inputs, attrs, draw(opsets(24))))


test_scatter_elements = agreement(scatter_elements(), 96)
test_scatter_nd = agreement(scatter_nd(), 96)
test_tensor_scatter = agreement(tensor_scatter(), 32)
