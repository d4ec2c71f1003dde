"""Pools: every attribute, one to three dims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from tests.properties.judge import EPS, Case, agreement, sums
from tests.properties.strategies import Draw, distinct, ints, numbers, opsets, placed, whole
from tests.properties.test_conv import AUTO


@st.composite
def window(draw: Draw, n: int, dilated: bool, ceil: bool) -> dict[str, Any]:
    """Attributes of a pool; each but the kernel may be left out."""
    kernel = draw(ints(1, 4, n))
    attrs: dict[str, Any] = {"kernel_shape": kernel, "auto_pad": draw(st.sampled_from(AUTO))}
    if draw(st.booleans()):
        attrs["strides"] = draw(ints(1, 4, n))
    if dilated and draw(st.booleans()):
        attrs["dilations"] = draw(ints(1, 3, n))
    if ceil and draw(st.booleans()):
        attrs["ceil_mode"] = draw(st.integers(0, 1))
    if attrs["auto_pad"].startswith("SAME"):
        # dilated, and over gaps between windows, onnxruntime has other sizes than its own shape inference
        attrs.pop("dilations", None)
        attrs["strides"] = [min(s, k) for s, k in zip(attrs.get("strides", [1] * n), kernel)]
    if attrs["auto_pad"] == "NOTSET":
        if draw(st.booleans()):
            del attrs["auto_pad"]
        if draw(st.booleans()):
            half = [draw(st.integers(0, k - 1)) for k in kernel]
            attrs["pads"] = half + (half if draw(st.booleans()) else [draw(st.integers(0, k - 1)) for k in kernel])
    return attrs


@st.composite
def sizes(draw: Draw, n: int) -> list[int]:
    return [draw(st.sampled_from([1, 2, 2, 0])), draw(st.integers(1, 2)), *draw(ints(1, 9, n))]


def fitting(case: Case) -> Case:
    """A window larger than the axis, which torch refuses, where the file knows the sizes."""
    (x, *_), attrs = case.inputs, case.attrs
    n = x.ndim - 2
    pads, dilations = attrs.get("pads", [0] * 2 * n), attrs.get("dilations", [1] * n)
    reach = [(k - 1) * d + 1 for k, d in zip(attrs["kernel_shape"], dilations)]
    small = any(x.shape[i + 2] + pads[i] + pads[n + i] < reach[i] or x.shape[i + 2] < reach[i] for i in range(n))
    return replace(case, named=frozenset()) if small else case


@st.composite
def max_pool(draw: Draw) -> Case:
    n, opset = draw(st.integers(1, 3)), draw(opsets())
    attrs = draw(window(n, dilated=opset >= 10, ceil=opset >= 10))
    outputs = draw(st.integers(1, 2)) if opset >= 8 else 1
    if outputs == 2 and draw(st.booleans()):
        attrs["storage_order"] = draw(st.integers(0, 1))
    dtype = draw(st.sampled_from(["float32"] * 3 + ["float64"] + (["int8", "uint8"] if opset >= 12 else [])))
    x = draw(distinct(draw(sizes(n)), dtype) if dtype.startswith("f") else whole(draw(sizes(n)), dtype))
    return fitting(draw(placed("MaxPool", [x], attrs, opset, outputs)))


@st.composite
def average_pool(draw: Draw) -> Case:
    n, opset = draw(st.integers(1, 3)), draw(opsets())
    attrs = draw(window(n, dilated=opset >= 19, ceil=opset >= 10))
    if draw(st.booleans()):
        attrs["count_include_pad"] = draw(st.integers(0, 1))
    case = fitting(draw(placed("AveragePool", [draw(whole(draw(sizes(n))))], attrs, opset, rtol=4 * EPS)))
    if attrs.get("count_include_pad"):  # of a window that does not fit, which the text does not have
        assume(all(size >= k for size, k in zip(case.inputs[0].shape[2:], attrs["kernel_shape"])))
    return case


@st.composite
def lp_pool(draw: Draw) -> Case:
    n, opset = draw(st.integers(1, 3)), draw(opsets())
    attrs = draw(window(n, dilated=opset >= 18, ceil=opset >= 18))
    if draw(st.booleans()):
        attrs["p"] = draw(st.integers(1, 4))
    terms = int(np.prod(attrs["kernel_shape"]))
    x = draw(whole(draw(sizes(n))))
    return fitting(draw(placed("LpPool", [x], attrs, opset, rtol=max(32, terms) * EPS)))


@st.composite
def of_everything(draw: Draw) -> Case:
    op = draw(st.sampled_from(["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"]))
    x = draw(numbers([draw(st.integers(0, 2)), draw(st.integers(1, 3)), *draw(ints(1, 4, draw(st.integers(1, 3))))]))
    attrs = {"p": draw(st.integers(1, 4))} if op == "GlobalLpPool" and draw(st.booleans()) else {}
    bound = 0.0 if op == "GlobalMaxPool" else sums(int(np.prod(x.shape[2:])), 1.0)
    return draw(placed(op, [x], attrs, draw(opsets()), rtol=32 * EPS, atol=bound))


test_max_pool = agreement(max_pool(), 96)
test_average_pool = agreement(average_pool(), 96)
test_lp_pool = agreement(lp_pool(), 64)
test_global_pools = agreement(of_everything(), 48)
