"""What pads, cuts and repeats: Pad, Slice, Split, Tile, Expand, Concat."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.properties.judge import Case, agreement
from tests.properties.strategies import (
    PLAIN,
    Draw,
    axes_of,
    axis_of,
    distinct,
    i64,
    ints,
    opsets,
    placed,
    shapes,
    whole,
)

DTYPES = st.sampled_from(PLAIN)
FAR = [2**31 - 1, 2**63 - 1, -(2**31), -(2**63), 2**31 - 2, -(2**31) + 1]


@st.composite
def pad(draw: Draw) -> Case:
    opset = draw(opsets())
    modes = ["constant", "constant", "reflect", "edge"] + (["wrap"] if opset >= 19 else [])
    mode, dtype = draw(st.sampled_from(modes)), draw(DTYPES)
    x = draw(distinct(draw(shapes(1, 5)), "float32" if opset < 11 else dtype))
    axes = draw(axes_of(x.ndim)) if opset >= 18 and draw(st.booleans()) else list(range(x.ndim))
    pads = [draw(st.integers(0, 4)) for _ in range(2 * len(axes))]
    if draw(st.sampled_from([False, False, True])):  # what both ends cut off is no more than there is
        cuts = [(draw(st.integers(0, n)), draw(st.integers(0, n))) for n in (x.shape[a] for a in axes)]
        cuts = [(a, min(b, x.shape[axis] - a)) for axis, (a, b) in zip(axes, cuts, strict=True)]
        pads = [draw(st.sampled_from([p, -c])) for p, c in zip(pads, [a for a, _ in cuts] + [b for _, b in cuts])]
    if mode != "constant":
        # of an axis, onnxruntime takes no more than one reflection
        sizes = [x.shape[a] - (mode == "reflect") for a in axes] * 2
        pads = [min(p, s) for p, s in zip(pads, sizes, strict=True)]
    attrs: dict[str, Any] = {"mode": mode} if mode != "constant" or draw(st.booleans()) else {}
    if opset < 11:
        value = {"value": 2.5} if draw(st.booleans()) else {}
        return draw(placed("Pad", [x], {**attrs, **value, "pads": pads}, opset))
    fill = draw(whole([], str(x.dtype))) if draw(st.booleans()) else None
    given_axes = i64(axes) if opset >= 18 and (len(axes) < x.ndim or draw(st.booleans())) else None
    if given_axes is None and opset >= 18 and len(axes) == x.ndim:
        axes = sorted(a % x.ndim for a in axes)
    if given_axes is not None and draw(st.booleans()):
        given_axes = given_axes.astype(np.int32)
    return draw(placed("Pad", [x, i64(pads), fill, given_axes], attrs, opset))


@st.composite
def slices(draw: Draw) -> Case:
    opset = draw(opsets())
    x = draw(distinct(draw(shapes(1, 4, (0, 5))), draw(DTYPES)))
    axes = draw(axes_of(x.ndim, negative=opset >= 10))
    bound = st.integers(-7, 7) | st.sampled_from(FAR)
    starts, ends = ([draw(bound) for _ in axes] for _ in range(2))
    plain = axes == list(range(len(axes))) and draw(st.booleans())
    if opset < 10:
        attrs = {"starts": starts, "ends": ends} | ({} if plain else {"axes": axes})
        return draw(placed("Slice", [x], attrs, opset))
    steps = [draw(st.sampled_from([1, 1, 2, 3, 9, -1, -1, -2, -9])) for _ in axes]
    narrow = draw(st.sampled_from([np.int64, np.int64, np.int32]))
    if narrow == np.int32:
        starts, ends = ([max(-(2**31), min(2**31 - 1, v)) for v in vs] for vs in (starts, ends))
    given_steps = np.array(steps, narrow) if draw(st.booleans()) else None
    given_axes = None if plain else np.array(axes, narrow)
    inputs = [x, np.array(starts, narrow), np.array(ends, narrow), given_axes, given_steps]
    return draw(placed("Slice", inputs, {}, opset))


@st.composite
def split(draw: Draw) -> Case:
    opset, pieces = draw(opsets()), draw(st.integers(1, 4))
    sizes = draw(st.one_of(st.integers(0, 3).map(lambda n: [n] * pieces), ints(0, 3, pieces)))
    shape = list(draw(shapes(1, 4, (0, 4))))
    axis = draw(axis_of(len(shape), negative=opset >= 11))
    shape[axis] = sum(sizes)
    attrs: dict[str, Any] = {"axis": axis} if axis or draw(st.booleans()) else {}
    x, even = draw(distinct(shape, draw(DTYPES))), len(set(sizes)) == 1
    if opset >= 18 and draw(st.booleans()):  # equal pieces, the last one smaller
        x = draw(distinct([*shape[: axis % len(shape)], draw(st.integers(0, 9)), *shape[axis % len(shape) :][1:]]))
        return draw(placed("Split", [x], {**attrs, "num_outputs": pieces}, opset, pieces))
    if even and sizes[0] and draw(st.booleans()) and opset < 18:
        return draw(placed("Split", [x], attrs, opset, pieces))
    if opset < 13:
        return draw(placed("Split", [x], {**attrs, "split": sizes}, opset, pieces))
    return draw(placed("Split", [x, i64(sizes)], attrs, opset, pieces))


@st.composite
def tile(draw: Draw) -> Case:
    x = draw(distinct(draw(shapes(0, 4, (0, 3))), draw(DTYPES)))
    return draw(placed("Tile", [x, i64(draw(ints(0, 3, x.ndim)))], {}, draw(opsets())))


@st.composite
def expand(draw: Draw) -> Case:
    """Either of the two shapes may be longer, and either may have the ones."""
    whole_shape = list(draw(shapes(0, 4, (0, 3))))
    ones = [[d if draw(st.sampled_from([True, True, False])) else 1 for d in whole_shape] for _ in range(2)]
    first, second = (s[draw(st.integers(0, len(s))) :] for s in ones)
    x = draw(distinct(first, draw(DTYPES)))
    return draw(placed("Expand", [x, i64(second)], {}, draw(opsets(8))))


@st.composite
def concat(draw: Draw) -> Case:
    shape, opset, dtype = list(draw(shapes(1, 4, (0, 3)))), draw(opsets()), draw(DTYPES)
    axis = draw(axis_of(len(shape), negative=opset >= 11))
    parts = []
    for size in draw(st.lists(st.integers(0, 3), min_size=1, max_size=4)):
        shape[axis] = size
        parts.append(draw(distinct(shape, dtype)))
    return draw(placed("Concat", parts, {"axis": axis}, opset))


test_pad = agreement(pad(), 120)
test_slice = agreement(slices(), 120)
test_split = agreement(split(), 64)
test_tile = agreement(tile(), 32)
test_expand = agreement(expand(), 48)
test_concat = agreement(concat(), 32)
