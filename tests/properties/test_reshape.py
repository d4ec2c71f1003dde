"""What only gives elements other places: Reshape, Flatten, Squeeze, Unsqueeze, Transpose, DepthToSpace."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.properties.judge import Case, agreement
from tests.properties.strategies import PLAIN, Draw, axes_of, distinct, i64, opsets, placed, shapes

DTYPES = st.sampled_from(PLAIN)


@st.composite
def regrouped(draw: Draw, shape: tuple[int, ...]) -> list[int]:
    """Another shape of as many elements."""
    factors = [f for d in shape for f in _factors(d)]
    after = [1] * draw(st.integers(1 if factors else 0, 4))
    for factor in draw(st.permutations(factors)) if draw(st.booleans()) else factors:
        after[draw(st.integers(0, len(after) - 1))] *= factor
    return after


def _factors(number: int) -> list[int]:
    for f in (2, 3, 5, 7):
        if number > f and number % f == 0:
            return [f, *_factors(number // f)]
    return [] if number == 1 else [number]


@st.composite
def reshape(draw: Draw) -> Case:
    """Zeros that copy a dim (or, with allowzero, are one), and a -1."""
    opset = draw(opsets())
    x = draw(distinct(draw(shapes(0, 4, draw(st.sampled_from([(1, 6), (0, 4)])))), draw(DTYPES)))
    shape: list[int] = draw(regrouped(x.shape))
    attrs = {"allowzero": draw(st.integers(0, 1))} if opset >= 14 and draw(st.booleans()) else {}
    if not attrs.get("allowzero"):
        same = [i for i, d in enumerate(shape) if i < x.ndim and x.shape[i] == d and draw(st.booleans())]
        shape = [0 if i in same else d for i, d in enumerate(shape)]
    if shape and draw(st.booleans()):
        shape[draw(st.integers(0, len(shape) - 1))] = -1
    return draw(placed("Reshape", [x, i64(shape)], attrs, opset))


@st.composite
def flatten(draw: Draw) -> Case:
    x, opset = draw(distinct(draw(shapes(0, 4, (0, 4))), "float32")), draw(opsets())
    axis = draw(st.integers(-x.ndim if opset >= 11 else 0, x.ndim))
    return draw(placed("Flatten", [x], {"axis": axis} if axis != 1 or draw(st.booleans()) else {}, opset))


@st.composite
def squeeze(draw: Draw) -> Case:
    shape = draw(shapes(0, 5, draw(st.sampled_from([(1, 2), (0, 3)]))))
    opset, x = draw(opsets()), draw(distinct(shape, draw(DTYPES)))
    ones = [i for i, d in enumerate(shape) if d == 1 and draw(st.booleans())]
    if not ones:  # axes that are given and none: onnxruntime squeezes all, onnx.reference none, as we do
        return draw(placed("Squeeze", [x], {}, opset))
    axes = [a - x.ndim if opset >= 11 and draw(st.booleans()) else a for a in draw(st.permutations(ones))]
    if opset < 13:
        return draw(placed("Squeeze", [x], {"axes": axes}, opset))
    return draw(placed("Squeeze", [x, i64(axes)], {}, opset))


@st.composite
def unsqueeze(draw: Draw) -> Case:
    opset, x = draw(opsets()), draw(distinct(draw(shapes(0, 3, (0, 3))), draw(DTYPES)))
    rank = x.ndim + draw(st.integers(1, 3))
    axes = draw(axes_of(rank, rank - x.ndim, opset >= 11))[: rank - x.ndim]
    if opset < 13:
        return draw(placed("Unsqueeze", [x], {"axes": axes}, opset))
    return draw(placed("Unsqueeze", [x, i64(axes)], {}, opset))


@st.composite
def transpose(draw: Draw) -> Case:
    x = draw(distinct(draw(shapes(0, 5, (0, 4))), draw(DTYPES)))
    attrs: dict[str, Any] = {"perm": draw(st.permutations(range(x.ndim)))} if x.ndim and draw(st.booleans()) else {}
    return draw(placed("Transpose", [x], attrs, draw(opsets())))


@st.composite
def depth(draw: Draw) -> Case:
    op, block, opset = draw(st.sampled_from(["DepthToSpace", "SpaceToDepth"])), draw(st.integers(1, 3)), draw(opsets())
    # torch 2.13 leaves a batch of nothing as it is in pixel_unshuffle
    batch, *size = [draw(st.integers(op == "SpaceToDepth", 2)), *(draw(st.integers(1, 3)) for _ in range(3))]
    attrs: dict[str, Any] = {"blocksize": block}
    if op == "DepthToSpace":
        size[0] *= block * block
        if opset >= 11 and draw(st.booleans()):
            attrs["mode"] = draw(st.sampled_from(["DCR", "CRD"]))
    else:
        size[1:] = [d * block for d in size[1:]]
    return draw(placed(op, [draw(distinct([batch, *size]))], attrs, opset))


@st.composite
def shape_of(draw: Draw) -> Case:
    op, opset = draw(st.sampled_from(["Shape", "Shape", "Size"])), draw(opsets())
    x = np.zeros(draw(shapes(0, 4, (0, 5))), draw(DTYPES))
    attrs = {}
    if op == "Shape" and opset >= 15:
        attrs = {name: draw(st.integers(-6, 6)) for name in ("start", "end") if draw(st.booleans())}
    return draw(placed(op, [x], attrs, opset))


test_reshape = agreement(reshape(), 120)
test_flatten = agreement(flatten(), 32)
test_squeeze = agreement(squeeze(), 48)
test_unsqueeze = agreement(unsqueeze(), 32)
test_transpose = agreement(transpose(), 32)
test_depth_to_space = agreement(depth(), 48)
test_shape = agreement(shape_of(), 48)
