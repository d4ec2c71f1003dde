"""What picks elements: Gather, GatherElements, GatherND, OneHot, Where, Trilu, Compress."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.properties.judge import Case, agreement
from tests.properties.strategies import PLAIN, SEEDS, Array, Draw, axis_of, distinct, i64, opsets, placed, shapes, whole

DTYPES = st.sampled_from([*PLAIN, "str"])


@st.composite
def places(draw: Draw, shape: Any, size: int, negative: bool, dtype: str = "int64") -> Array:
    """Indices of an axis, from the front and from the back. None of an axis without elements."""
    low = -size if negative else 0
    return np.asarray(np.random.default_rng(draw(SEEDS)).integers(low, max(size, 1), shape)).astype(dtype)


INDEX = st.sampled_from(["int64", "int32"])
# types of indices, values and depth that onnxruntime takes together
ONE_HOT = [("int64", "int64", "int64"), ("int64", "int32", "float32"), ("int64", "float32", "int64")]
ONE_HOT += [("int32", "float32", "int32"), ("int32", "float32", "float32")]


@st.composite
def gather(draw: Draw) -> Case:
    opset = draw(opsets())
    x = draw(distinct(draw(shapes(1, 4, draw(st.sampled_from([(1, 4), (0, 3)])))), draw(DTYPES)))
    axis = draw(axis_of(x.ndim, negative=opset >= 11))
    if x.dtype == object:  # of texts after the axis, onnxruntime moves only the first (onnx.reference: all)
        axis = x.ndim - 1
    shape = draw(shapes(0, 3, (0, 3))) if x.shape[axis] else (0,)
    index = draw(places(shape, x.shape[axis], opset >= 11, draw(INDEX)))
    return draw(placed("Gather", [x, index], {"axis": axis} if axis or draw(st.booleans()) else {}, opset))


@st.composite
def gather_elements(draw: Draw) -> Case:
    x = draw(distinct(draw(shapes(1, 4)), draw(DTYPES)))
    axis = draw(axis_of(x.ndim))
    shape = [draw(st.integers(0, d)) for d in x.shape]
    shape[axis] = draw(st.integers(0, 5))
    index = draw(places(shape, x.shape[axis], True, draw(INDEX)))
    attrs = {"axis": axis} if axis or draw(st.booleans()) else {}
    return draw(placed("GatherElements", [x, index], attrs, draw(opsets(11))))


@st.composite
def gather_nd(draw: Draw) -> Case:
    opset = draw(opsets(11))
    x = draw(distinct(draw(shapes(1, 4)), draw(DTYPES)))
    batch = draw(st.integers(0, x.ndim - 1)) if opset >= 12 else 0
    depth = draw(st.integers(1, x.ndim - batch))
    outer = [*x.shape[:batch], *draw(shapes(0 if batch else 1, 2, (0, 3)))]
    index = np.stack([draw(places(outer, d, True)) for d in x.shape[batch : batch + depth]], -1)
    attrs = {"batch_dims": batch} if batch or opset >= 12 and draw(st.booleans()) else {}
    return draw(placed("GatherND", [x, index], attrs, opset))


@st.composite
def one_hot(draw: Draw) -> Case:
    opset, depth = draw(opsets(9)), draw(st.integers(1, 4))
    kind, value, count = draw(st.sampled_from(ONE_HOT))
    index = draw(places(draw(shapes(1, 3, (0, 3))), depth + 2, opset >= 11, kind))
    axis = draw(st.integers(-index.ndim - 1, index.ndim))
    number = np.array(depth if draw(st.booleans()) else [depth], count)
    attrs = {"axis": axis} if axis != -1 or draw(st.booleans()) else {}
    return draw(placed("OneHot", [index, number, draw(distinct([2], value))], attrs, opset))


@st.composite
def broadcast(draw: Draw, count: int) -> list[list[int]]:
    """Shapes that broadcast together."""
    shape = list(draw(shapes(0, 4, (0, 3))))
    return [
        [1 if draw(st.sampled_from([True, False, False])) else d for d in shape][draw(st.integers(0, len(shape))) :]
        for _ in range(count)
    ]


@st.composite
def where(draw: Draw) -> Case:
    a, b, c = draw(broadcast(3))
    dtype = draw(DTYPES)
    inputs = [draw(distinct(a, "bool")), draw(distinct(b, dtype)), draw(distinct(c, dtype))]
    return draw(placed("Where", inputs, {}, draw(opsets(9))))


@st.composite
def trilu(draw: Draw) -> Case:
    x = draw(distinct(draw(shapes(2, 4, (0, 4))), draw(st.sampled_from(["float32", "int64", "bool", "float64"]))))
    k = i64(draw(st.integers(-6, 6))) if draw(st.booleans()) else None
    attrs = {"upper": draw(st.integers(0, 1))} if draw(st.booleans()) else {}
    return draw(placed("Trilu", [x, k], attrs, draw(opsets(14))))


@st.composite
def compress(draw: Draw) -> Case:
    opset, x = draw(opsets(9)), draw(distinct(draw(shapes(1, 4)), draw(DTYPES)))
    axis = draw(axis_of(x.ndim, negative=opset >= 11)) if draw(st.booleans()) else None
    size = x.size if axis is None else x.shape[axis]
    chosen = np.random.default_rng(draw(SEEDS)).integers(0, 2, draw(st.integers(0, size))).astype(bool)
    return draw(placed("Compress", [x, chosen], {} if axis is None else {"axis": axis}, opset))


@st.composite
def nonzero(draw: Draw) -> Case:
    """No scalars: of one, the text asks for a shape [0, N] and onnx.reference has it, onnxruntime [1, N]."""
    dtype = draw(st.sampled_from(["float32", "int64", "int32", "bool", "uint8"]))
    x = draw(whole(draw(shapes(1, 4, (0, 3))), dtype, -1, 1))
    return draw(placed("NonZero", [x], {}, draw(opsets(9))))


test_gather = agreement(gather(), 80)
test_gather_elements = agreement(gather_elements(), 48)
test_gather_nd = agreement(gather_nd(), 64)
test_one_hot = agreement(one_hot(), 48)
test_where = agreement(where(), 48)
test_trilu = agreement(trilu(), 32)
test_compress = agreement(compress(), 32)
test_nonzero = agreement(nonzero(), 24)
