"""Reduce*, ArgMax, ArgMin, CumSum, TopK: axes in every form, ties, and nothing to reduce."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from tests.properties.judge import EPS, Case, agreement, sums
from tests.properties.strategies import (
    Array,
    Draw,
    axes_of,
    axis_of,
    distinct,
    i64,
    numbers,
    opsets,
    placed,
    shapes,
    whole,
)

REDUCE = [f"Reduce{n}" for n in "Sum Mean Prod Max Min L1 L2 LogSum LogSumExp SumSquare".split()]
POSITIVE = ("ReduceLogSum",)
ROUNDED = ("ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")


@st.composite
def over(draw: Draw, op: str, x: Array, opset: int) -> tuple[list[Any], dict[str, Any]]:
    """The inputs and attributes of a reduction."""
    attrs: dict[str, Any] = {"keepdims": draw(st.integers(0, 1))} if draw(st.booleans()) else {}
    axes = draw(axes_of(x.ndim, 0, opset >= 11)) if x.ndim and draw(st.booleans()) else None
    if opset < (13 if op == "ReduceSum" else 18):
        return [x], attrs | ({} if not axes else {"axes": axes})
    if draw(st.booleans()):
        attrs["noop_with_empty_axes"] = draw(st.integers(0, 1))
    return [x, None if axes is None else i64(axes)], attrs


@st.composite
def reduction(draw: Draw) -> Case:
    op, opset = draw(st.sampled_from(REDUCE)), draw(opsets())
    kinds = ["float32"] * 3 + ["float64", "int32", "int64"]
    if op in ("ReduceMax", "ReduceMin") and opset >= 12:
        kinds += ["int8", "uint8"] + (["bool"] if opset >= 20 else [])
    dtype = draw(st.sampled_from(kinds))
    shape = draw(shapes(0, 4, draw(st.sampled_from([(1, 4), (1, 4), (0, 3)]))))
    low, high = (1, 4) if op in POSITIVE else (-2, 2) if op == "ReduceProd" else (-4, 4)
    x = draw(whole(shape, dtype, low, high))
    inputs, attrs = draw(over(op, x, opset))
    exact = op not in ROUNDED
    bound = 0.0 if exact or op == "ReduceL2" else 8 * EPS if dtype == "float32" else 1e-14
    if not x.size:
        assume(op != "ReduceMean")  # of nothing NaN, says onnx.reference, as torch does; onnxruntime says 0
        # onnxruntime drops reduced axes from a tensor without elements; onnx.reference does not
        inputs, attrs = inputs[:1], {k: v for k, v in attrs.items() if k == "keepdims"}
    case = draw(placed(op, inputs, attrs, opset, rtol=0 if exact else 8 * EPS, atol=bound))
    # torch has no extreme of nothing, unless the file says that there is nothing
    return replace(case, named=frozenset()) if not x.size else case


@st.composite
def extreme_place(draw: Draw) -> Case:
    """Whole numbers: many ties."""
    opset = draw(opsets())
    dtype = draw(st.sampled_from(["float32", "float32", "int32", "int64", "float64", "int8", "uint8"]))
    x = draw(whole(draw(shapes(1, 4)), dtype, -2, 2))
    axis = draw(axis_of(x.ndim, negative=opset >= 11))
    attrs = {"axis": axis} if axis or draw(st.booleans()) else {}
    if draw(st.booleans()):
        attrs["keepdims"] = draw(st.integers(0, 1))
    if opset >= 12 and draw(st.booleans()):
        attrs["select_last_index"] = draw(st.integers(0, 1))
    return draw(placed(draw(st.sampled_from(["ArgMax", "ArgMin"])), [x], attrs, opset))


@st.composite
def running_sum(draw: Draw) -> Case:
    op, opset = draw(st.sampled_from(["CumSum"] * 3 + ["CumProd"])), draw(opsets(11))
    x = draw(whole(draw(shapes(1, 4, (0, 4))), draw(st.sampled_from(["float32", "float64", "int32", "int64"])), -3, 3))
    axis = np.array(draw(axis_of(x.ndim)), draw(st.sampled_from(["int64", "int32"])))
    axis = axis.reshape(1) if draw(st.booleans()) else axis
    attrs = {name: draw(st.integers(0, 1)) for name in ("exclusive", "reverse") if draw(st.booleans())}
    return draw(placed(op, [x, axis], attrs, 26 if op == "CumProd" else opset))


@st.composite
def top(draw: Draw) -> Case:
    """Values with ties: of equal ones the first comes first."""
    opset = draw(opsets())
    shape = draw(shapes(1, 4, (0, 5)))
    dtype = draw(st.sampled_from(["float32", "float32", "float64"] + (["int32", "int64"] if opset >= 11 else [])))
    x = draw(whole(shape, dtype) if draw(st.booleans()) else distinct(shape, dtype))
    axis = draw(axis_of(x.ndim, negative=opset >= 11))
    k = draw(st.integers(0, x.shape[axis]))
    attrs = {"axis": axis} if axis != -1 or draw(st.booleans()) else {}
    if opset < 10:
        return draw(placed("TopK", [x], {**attrs, "k": k}, opset, 2))
    if opset >= 11:
        attrs |= {name: draw(st.integers(0, 1)) for name in ("largest",) if draw(st.booleans())}
        attrs |= {"sorted": 1} if draw(st.booleans()) else {}
    return draw(placed("TopK", [x, i64([k])], attrs, opset, 2))


@st.composite
def sums_of_numbers(draw: Draw) -> Case:
    """Fractions, of both signs: what is left is rounding."""
    op, opset = draw(st.sampled_from(["ReduceSum", "ReduceMean", "ReduceLogSumExp", "ReduceSumSquare"])), draw(opsets())
    x = draw(numbers(draw(shapes(1, 3, (1, 9)))))
    inputs, attrs = draw(over(op, x, opset))
    return draw(placed(op, inputs, attrs, opset, rtol=8 * EPS, atol=sums(x.size, 1.0)))


test_reduce = agreement(reduction(), 160)
test_reduce_fractions = agreement(sums_of_numbers(), 32)
test_arg_max = agreement(extreme_place(), 48)
test_cum_sum = agreement(running_sum(), 48)
test_top_k = agreement(top(), 64)
