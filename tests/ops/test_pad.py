"""Pad and CenterCropPad against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.ops.fuzz import agree, examples, floats, ints
from tests.ops.harness import run_model, run_node, unbound_names
from tests.whole.test_random_graphs import hold
from tests.whole.test_small_graphs import case

OPS = ["Pad", "CenterCropPad"]


def i64(values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


@given(st.data())
@examples(60)
def test_constant(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    pads = data.draw(ints(-1, 3, 2 * len(shape)))
    value = data.draw(st.sampled_from([None, np.float32(0), np.float32(-1.5), np.array([2], np.float32)]))
    stored = data.draw(st.sampled_from([{1, 2}, {1}, set()]))
    inputs = [floats(*shape), i64(pads), value]
    stored = {i for i in stored if inputs[i] is not None}
    agree("Pad", inputs, {}, opset=13, initializers=stored, dynamic=data.draw(st.booleans()))


@given(st.data(), st.sampled_from(["reflect", "edge", "wrap"]))
@examples(80)
def test_other_modes(data: Any, mode: str) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    first = data.draw(st.integers(0, len(shape) - 1))
    pads = [0 if i % len(shape) < first else p for i, p in enumerate(data.draw(ints(0, 5, 2 * len(shape))))]
    if mode == "reflect":  # onnxruntime reads past the axis where more is asked for than it has
        pads = [min(p, shape[i % len(shape)] - 1) for i, p in enumerate(pads)]
    if mode == "wrap":
        pads = [min(p, shape[i % len(shape)]) for i, p in enumerate(pads)]
    dtype = data.draw(st.sampled_from([np.float32, np.int64, np.float64]))
    stored = data.draw(st.sampled_from([{1}, set()]))
    inputs = [(floats(*shape) * 9).astype(dtype), i64(pads)]
    agree("Pad", inputs, {"mode": mode}, opset=19, initializers=stored, dynamic=data.draw(st.booleans()))


@given(st.data(), st.sampled_from(["constant", "edge"]))
@examples(30)
def test_axes(data: Any, mode: str) -> None:
    rank = data.draw(st.integers(1, 4))
    axes = data.draw(st.permutations(range(rank)))[: data.draw(st.integers(1, rank))]
    axes = [a - rank if data.draw(st.booleans()) else a for a in axes]
    inputs = [floats(*range(2, 2 + rank)), i64(data.draw(ints(0, 3, 2 * len(axes)))), None, i64(axes)]
    agree("Pad", inputs, {"mode": mode}, opset=18, initializers={1, 3})
    agree("Pad", inputs, {"mode": mode}, opset=18)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint32", "uint64", "bool", "float16", "float64"])
def test_dtypes(dtype: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    value = np.array(1, dtype)
    run_node("Pad", [x, i64([0, 1, 1, 0]), value], initializers={1, 2})
    run_node("Pad", [x, i64([0, 1, 1, 0]), value])


@pytest.mark.parametrize("value", [2**53 + 1, -(2**62) - 1])
def test_large_integers_are_exact(value: int) -> None:
    run_node("Pad", [i64([1, 2]), i64([1, 0]), i64(value)], initializers={1, 2})
    run_node("Pad", [i64([1, 2]), i64([1, 0]), i64(value)])


def test_before_opset_11() -> None:
    run_node("Pad", [floats(2, 3)], {"pads": [0, 1, 2, 0], "value": 3.5}, 2)
    run_node("Pad", [floats(1, 1, 2, 3)], {"pads": [0, 0, 1, 1, 0, 0, 1, 2], "mode": "reflect"}, 2)


def test_what_people_write() -> None:
    ran = run_node("Pad", [floats(1, 2, 3, 4), i64([0, 0, 1, 2, 0, 0, 1, 2])], initializers={1}, dynamic=True)
    assert "F.pad(i0, (2, 2, 1, 1))" in ran.forward
    inputs = [floats(1, 2, 3, 4), i64([0, 0, 1, 2, 0, 0, 1, 2])]
    ran = run_node("Pad", inputs, {"mode": "reflect"}, initializers={1}, dynamic=True)
    assert "F.pad(i0, (2, 2, 1, 1), mode='reflect')" in ran.forward


def test_padded_to_a_size(tmp_path: Path) -> None:
    """What is taken off a number stands behind it."""
    graph = case("""(float[2, N] x) => (float[] y) <int64[1] most = {9}, int64[1] none = {0}> {
        n = Shape<start = 1>(x) m = Sub(most, n) p = Concat<axis = 0>(none, none, none, m) y = Pad(x, p) }""")
    assert hold(graph, tmp_path)
    assert "F.pad(x, (0, 9 - x.shape[1]))" in run_model(graph.model, graph.feeds[0]).forward


@given(st.data())
@examples(15)
def test_center_crop_pad(data: Any) -> None:
    rank = data.draw(st.integers(1, 3))
    axes = data.draw(st.permutations(range(rank)))[: data.draw(st.integers(1, rank))]
    assume(len(axes) == rank or data.draw(st.booleans()))
    wanted = i64(data.draw(ints(1, 7, len(axes))))
    x = floats(*range(3, 3 + rank))
    expected = _centered(x, axes, wanted)
    attrs = {"axes": [a - rank for a in axes]}
    run_node("CenterCropPad", [x, wanted], attrs, 18, expected=[expected], initializers={1})
    run_node("CenterCropPad", [x, wanted], attrs, 18, expected=[expected], dynamic=True)


def _centered(x: np.ndarray[Any, Any], axes: Any, sizes: Any) -> np.ndarray[Any, Any]:
    """The text of CenterCropPad-18; onnxruntime expands its function body, which is no other than this."""
    for axis, size in zip(axes, sizes):
        spare = x.shape[axis] - size
        if spare > 0:
            x = np.take(x, range(spare // 2, spare // 2 + size), axis)
        widths = [(0, 0)] * x.ndim
        widths[axis] = (max(0, -spare) // 2, max(0, -spare) - max(0, -spare) // 2)
        x = np.pad(x, widths)
    return x


@pytest.mark.parametrize("op", OPS)
def test_every_schema_name_is_bound(op: str) -> None:
    assert unbound_names(op) == []
