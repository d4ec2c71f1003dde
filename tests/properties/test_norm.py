"""Normalisation and Softmax."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.properties.judge import EPS, Case, agreement
from tests.properties.strategies import Array, Draw, axis_of, numbers, opsets, placed, shapes

# a mean, a variance and a root of some tens of numbers near 1; with a small variance the error is divided by its root
CLOSE = {"rtol": 256 * EPS, "atol": 512 * EPS}


def close(x: Array, axes: tuple[int, ...], epsilon: float) -> dict[str, float]:
    """The tolerance of a norm over axes of numbers up to 1: a variance is a difference of rounded squares."""
    smallest = float(x.astype(np.float64).var(axes).min()) if x.size else 1.0
    bound = 64 * EPS * (1 + 1 / (smallest + epsilon))
    return {"rtol": bound, "atol": bound}


@st.composite
def images(draw: Draw, batch: int = 0) -> list[int]:
    return [draw(st.integers(batch, 3)), draw(st.integers(1, 4)), *draw(shapes(0, 3, (1, 4)))]


@st.composite
def batch_norm(draw: Draw) -> Case:
    opset, shape = draw(opsets()), draw(images())
    if draw(st.sampled_from([False, False, False, True])):
        shape = shape[:2]
    x, n = draw(numbers(shape)), shape[1]
    inputs = [x, *(draw(numbers([n])) for _ in range(3)), draw(numbers([n], low=0.25))]
    attrs: dict[str, Any] = {"epsilon": draw(st.sampled_from([1e-5, 1e-3]))} if draw(st.booleans()) else {}
    if draw(st.booleans()):
        attrs["momentum"] = 0.5
    return draw(placed("BatchNormalization", inputs, attrs, opset, **CLOSE))


@st.composite
def layer_norm(draw: Draw) -> Case:
    op = draw(st.sampled_from(["LayerNormalization", "LayerNormalization", "RMSNormalization"]))
    opset = draw(opsets(17 if op.startswith("Layer") else 23))
    x = draw(numbers(draw(shapes(1, 4, (2, 5)))))
    axis = draw(axis_of(x.ndim))
    attrs: dict[str, Any] = {"axis": axis} if axis != -1 or draw(st.booleans()) else {}
    axis = attrs.get("axis", -1) % x.ndim
    if draw(st.booleans()):
        attrs["epsilon"] = draw(st.sampled_from([1e-2, 1e-3]))
    over = list(x.shape[axis:])
    inputs = [x, draw(numbers(over))]
    if op.startswith("Layer"):
        inputs += [draw(numbers(over))] if draw(st.booleans()) else []
    bound = close(x, tuple(range(axis, x.ndim)), attrs.get("epsilon", 1e-5))
    outputs = draw(st.integers(1, 3)) if op.startswith("Layer") else 1
    return draw(placed(op, inputs, attrs, opset, outputs, **bound))


@st.composite
def group_norm(draw: Draw) -> Case:
    opset, groups, shape = draw(opsets(18)), draw(st.integers(1, 3)), draw(images(1))
    shape = [shape[0], groups * draw(st.integers(1, 2)), *(shape[2:] or [3])]
    per = groups if opset < 21 else shape[1]
    inputs = [draw(numbers(shape)), draw(numbers([per])), draw(numbers([per]))]
    attrs = {"num_groups": groups} | ({"epsilon": 1e-2} if draw(st.booleans()) else {})
    grouped = inputs[0].reshape(shape[0], groups, -1)
    case = draw(placed("GroupNormalization", inputs, attrs, opset, **close(grouped, (2,), attrs.get("epsilon", 1e-5))))
    return replace(case, named=frozenset()) if all(d == 1 for d in (shape[0], *shape[2:])) else case


@st.composite
def instance_norm(draw: Draw) -> Case:
    shape = draw(images(1))
    shape = shape if len(shape) > 2 else [*shape, 4]
    inputs = [draw(numbers(shape)), draw(numbers([shape[1]])), draw(numbers([shape[1]]))]
    attrs = {"epsilon": draw(st.sampled_from([1e-2, 1e-3]))} if draw(st.booleans()) else {}
    bound = close(inputs[0], tuple(range(2, len(shape))), attrs.get("epsilon", 1e-5))
    case = draw(placed("InstanceNormalization", inputs, attrs, draw(opsets()), **bound))
    # torch refuses channels of one element, unless the file says that they are such
    return replace(case, named=frozenset()) if all(d == 1 for d in shape[2:]) else case


@st.composite
def local_response(draw: Draw) -> Case:
    x = draw(numbers([draw(st.integers(1, 2)), draw(st.integers(1, 6)), *draw(shapes(2, 2, (1, 3)))]))
    attrs: dict[str, Any] = {"size": draw(st.sampled_from([1, 3, 5]))}
    attrs |= {n: draw(st.sampled_from([0.5, 0.75, 1.5])) for n in ("alpha", "beta", "bias") if draw(st.booleans())}
    return draw(placed("LRN", [x], attrs, draw(opsets()), **CLOSE))


@st.composite
def softmax(draw: Draw) -> Case:
    """Before opset 13, over all axes from one on."""
    op, opset = draw(st.sampled_from(["Softmax", "LogSoftmax", "Hardmax"])), draw(opsets())
    dtype = draw(st.sampled_from(["float32", "float32", "float64"]))
    x = draw(numbers(draw(shapes(1, 4, draw(st.sampled_from([(1, 4), (0, 3)])))), dtype, low=-8, high=8))
    if op == "Hardmax":
        x = np.round(x / 4).astype(dtype)  # ties
    default = -1 if opset >= 13 else 1
    axis = draw(axis_of(x.ndim, negative=opset >= 11))
    attrs = {"axis": axis} if axis != default or draw(st.booleans()) else {}
    case = draw(placed(op, [x], attrs, opset, rtol=64 * EPS, atol=64 * EPS))
    # torch has no greatest element of nothing, unless the file says that there is nothing
    return replace(case, named=frozenset()) if op == "Hardmax" and not x.size else case


@st.composite
def lp_norm(draw: Draw) -> Case:
    x = draw(numbers(draw(shapes(1, 3))))
    attrs = {"axis": draw(axis_of(x.ndim))} | ({"p": draw(st.integers(1, 2))} if draw(st.booleans()) else {})
    return draw(placed("LpNormalization", [x], attrs, draw(opsets()), rtol=32 * EPS))


test_batch_norm = agreement(batch_norm(), 48)
test_layer_norm = agreement(layer_norm(), 48)
test_group_norm = agreement(group_norm(), 40)
test_instance_norm = agreement(instance_norm(), 32)
test_lrn = agreement(local_response(), 24)
test_softmax = agreement(softmax(), 64)
test_lp_normalization = agreement(lp_norm(), 24)
