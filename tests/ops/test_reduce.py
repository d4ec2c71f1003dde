"""Reductions, extremes, sorting and normalising against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser

from tests.ops.harness import assert_same, run_model, run_node, run_onnxruntime, unbound_names
from tests.support.tiers import drawn

F = np.float32
REDUCE = [f"Reduce{n}" for n in "Sum Mean Prod Max Min L1 L2 LogSum LogSumExp SumSquare".split()]
OPERATORS = [*REDUCE, *"ArgMax ArgMin Hardmax LpNormalization MeanVarianceNormalization TopK Unique".split()]
ATTRIBUTE_UNTIL = {"ReduceSum": 12}  # the last opset whose axes are an attribute; 17 for the others


def spread(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 2, shape).astype(F)


@pytest.mark.parametrize("name", OPERATORS)
def test_every_schema_version_binds(name: str) -> None:
    assert unbound_names(name) == []


@pytest.mark.parametrize("name", REDUCE)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [None, [1], [-1], [0, 2], [2, 0, 1]])
def test_axes(name: str, keepdims: int, axes: list[int] | None) -> None:
    x = spread(2, 3, 4)
    attrs = {"keepdims": keepdims}
    old = attrs if axes is None else attrs | {"axes": axes}
    run_node(name, [x], old, opset=7 if axes is None or min(axes) >= 0 else 11)
    given = None if axes is None else np.array(axes, np.int64)
    run_node(name, [x, given], attrs, opset=18, initializers=set() if given is None else {1}, dynamic=True)
    if given is not None:
        run_node(name, [x, given], attrs, opset=18)


@pytest.mark.parametrize("name", REDUCE)
def test_no_axes(name: str) -> None:
    x, none = spread(2, 3), np.zeros(0, np.int64)
    for noop in (0, 1):
        for inputs, stored in (([x], set()), ([x, none], {1}), ([x, none], set())):
            run_node(name, inputs, {"noop_with_empty_axes": noop}, opset=18, initializers=stored)


@pytest.mark.parametrize("name", REDUCE)
@pytest.mark.parametrize("dtype", ["int32", "int64", "float64"])
def test_types(name: str, dtype: str) -> None:
    x = np.array([[1, 2, 5], [3, 4, 4]], dtype)
    run_node(name, [x, np.array([1])], opset=18, initializers={1})
    negative = x if name in ("ReduceLogSum", "ReduceLogSumExp") else -x  # of integers onnxruntime rounds in steps
    run_node(name, [negative], {"keepdims": 0}, opset=18)


@pytest.mark.parametrize("name", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "uint32", "uint64", "float16"])
def test_extremes_by_type(name: str, dtype: str) -> None:
    x = np.array([[0, 1, 1], [1, 1, 1]]).astype(dtype)
    expected = (np.max if name == "ReduceMax" else np.min)(x, 1, keepdims=True)
    run_node(name, [x, np.array([1])], opset=20, initializers={1}, expected=[expected])
    if dtype == "uint64":
        big = np.array([[2**63, 3]], np.uint64)
        run_node(name, [big], {"keepdims": 0}, opset=20, expected=[(np.max if name == "ReduceMax" else np.min)(big)])


@pytest.mark.parametrize("name", [n for n in REDUCE if n != "ReduceMean"])
def test_nothing_to_reduce(name: str) -> None:
    x = np.zeros((2, 0, 3), F)
    run_node(name, [x, np.array([1])], opset=20, initializers={1})
    run_node(name, [x, np.array([1])], {"keepdims": 0}, opset=20)
    if name in ("ReduceMax", "ReduceMin"):
        run_node(name, [x.astype(np.int32), np.array([1])], opset=20, initializers={1})


@pytest.mark.parametrize("name", REDUCE)
def test_scalar(name: str) -> None:
    run_node(name, [np.array(1.5, F)], opset=13)


def test_infinity() -> None:
    run_node("ReduceLogSumExp", [np.array([[np.inf, 1], [-np.inf, 1], [1000, 1001]], F), np.array([1])], opset=18)
    run_node("ReduceMax", [np.array([[np.inf, 1], [-np.inf, 1]], F), np.array([1])], opset=18)


@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_places(name: str, last: int, keepdims: int) -> None:
    x = np.array([[1, 3, 3, 1], [2, 2, 2, 2]])
    for axis in (0, 1, -1):
        for dtype in ("float32", "int32", "uint8"):
            attrs = {"axis": axis, "keepdims": keepdims, "select_last_index": last}
            run_node(name, [x.astype(dtype)], attrs, dynamic=dtype == "float32")


def test_place_of_uint64() -> None:
    run_node("ArgMax", [np.array([1, 2**63, 5], np.uint64)], {"keepdims": 0}, expected=[np.array(1)])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("opset", [11, 13])
def test_hardmax(axis: int, opset: int) -> None:
    run_node("Hardmax", [spread(2, 3, 4)], {"axis": axis}, opset=opset)
    run_node("Hardmax", [np.ones((2, 3, 4), F)], {"axis": axis}, opset=opset)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lp_normalization(p: int, axis: int, dtype: str) -> None:
    x = np.array([[1, -2, 0], [3, 4, 0], [1e-20 if p == 1 else 1e-10, 0, 0]], dtype)
    run_node("LpNormalization", [x], {"p": p, "axis": axis})


def test_lp_normalization_of_half_precision() -> None:
    x = np.array([[0, 0], [3, 4]], np.float16)
    run_node("LpNormalization", [x], expected=[np.array([[0, 0], [0.6, 0.8]], np.float16)], opset=22)


def test_mean_variance_normalization() -> None:
    run_node("MeanVarianceNormalization", [spread(2, 3, 4, 5)])
    run_node("MeanVarianceNormalization", [spread(2, 3, 4)], {"axes": [1, -1]})


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=7),
    st.integers(0, 7),
    st.sampled_from(["float32", "int64", "int32", "float64"]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=drawn(40), deadline=None)
def test_top_k(values: list[int], k: int, dtype: str, largest: bool, stored: bool) -> None:
    """Small integers: many ties."""
    x = np.stack([np.array(values, dtype), np.array(values[::-1], dtype)])
    count = np.array([min(k, len(values))], np.int64)
    run_node("TopK", [x, count], {"largest": int(largest)}, outputs=2, initializers={1} if stored else set())
    if largest:
        run_node("TopK", [x.T.astype(F), count], {"axis": 0}, outputs=2, opset=10, initializers={1})


def test_top_k_of_opset_1() -> None:
    x = np.array([[1, 5, 5, 2]], F)
    run_node("TopK", [x], {"k": 2}, opset=1, outputs=2, expected=[np.array([[5, 5]], F), np.array([[1, 2]])])


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_top_k_unsigned(dtype: str) -> None:
    x = np.array([1, np.iinfo(dtype).max, 7], dtype)
    run_node("TopK", [x, np.array([2])], outputs=2, expected=[x[[1, 2]], np.array([1, 2])])
    run_node("TopK", [x, np.array([1])], {"largest": 0}, outputs=2, expected=[x[[0]], np.array([0])])


@given(st.lists(st.integers(-2, 2), min_size=1, max_size=8), st.sampled_from([0, 1]), st.sampled_from([None, 0, 1]))
@settings(max_examples=drawn(30), deadline=None)
def test_unique(values: list[int], in_order: int, axis: int | None) -> None:
    x = np.stack([np.array(values, F)] * 2, 1) if axis == 0 else np.array([values, values], F)
    attrs = {"sorted": in_order} | ({} if axis is None else {"axis": axis})
    run_node("Unique", [x], attrs, outputs=4)


def test_reads_well() -> None:
    x = spread(2, 3, 4, 5)
    forward = run_node("ReduceMean", [x, np.array([2, 3])], opset=18, initializers={1}).forward
    assert "F.adaptive_avg_pool2d(i0, 1)" in forward
    assert "i0.sum(dim=-1)" in run_node("ReduceSum", [x, np.array([-1])], {"keepdims": 0}, initializers={1}).forward
    assert "i0.mean()" in run_node("ReduceMean", [x], {"keepdims": 0}).forward


@pytest.mark.parametrize("name", REDUCE)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", ["0", "0, 1", "1", ""])
@pytest.mark.parametrize("kind", ["float", "int32"])
def test_of_what_is_selected_even_if_it_is_nothing(name: str, keepdims: int, axes: str, kind: str) -> None:
    """A suppression may keep no box."""
    if name in ("ReduceLogSum", "ReduceLogSumExp", "ReduceL2") and kind == "int32":
        return
    stored = f"ax = Constant <value = int64[{axes.count(',') + 1}] {{{axes}}}> ()" if axes else ""
    text = f"""g ({kind}[n, 3] x, bool[n] c) => ({kind}[a] y) {{
        {stored} s = Compress <axis = 0> (x, c) y = {name} <keepdims = {keepdims}> (s{", ax" if axes else ""}) }}"""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')
    x = np.array([[1, -2, 3], [5, 7, 2]], "float32" if kind == "float" else kind)
    for chosen in ([False, False], [True, True], [True, False]):
        feeds = {"x": x, "c": np.array(chosen)}
        expected = run_onnxruntime(model, feeds)
        assert_same(run_model(model, feeds).outputs, expected)


@pytest.mark.parametrize("name", ["ReduceMean", "ReduceMax"])
def test_sizes_of_inputs_are_no_selection(name: str) -> None:
    ran = run_node(name, [spread(2, 3)], {"axes": [0], "keepdims": 0}, opset=17, dynamic=True)
    assert {"ReduceMean": "i0.mean(dim=0)", "ReduceMax": "i0.amax(dim=0)"}[name] in ran.forward


def test_the_mean_of_half_numbers_whose_sum_is_none() -> None:
    text = """g (float16[n, 2] x, bool[n] c) => (float16[a] y) {
        s = Compress <axis = 0> (x, c) y = ReduceMean <axes = [0], keepdims = 0> (s) }"""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    for chosen in ([True, True], [False, False]):
        feeds = {"x": np.full((2, 2), 60000, np.float16), "c": np.array(chosen)}
        assert_same(run_model(model, feeds).outputs, run_onnxruntime(model, feeds))


@pytest.mark.parametrize("dtype", [F, np.int32])
def test_the_mean_of_nothing(dtype: type) -> None:
    run_node("ReduceMean", [np.zeros((0, 3), dtype)], {"axes": [0], "keepdims": 0}, opset=17)
