"""Resize and Upsample in all their modes, GridSample."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from tests.properties.judge import EPS, Case, agreement
from tests.properties.strategies import Draw, axes_of, i64, ints, numbers, opsets, placed, whole

COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
SCALES = st.sampled_from([0.25, 0.3, 0.5, 0.6, 0.75, 1.0, 1.3, 1.5, 2.0, 2.5, 3.0])
NONE = np.zeros(0, np.float32)


@st.composite
def modes(draw: Draw, opset: int, mode: str) -> dict[str, Any]:
    attrs: dict[str, Any] = {"mode": mode} if mode != "nearest" or draw(st.booleans()) else {}
    coordinates = COORDINATES + (["half_pixel_symmetric"] if opset >= 19 else [])
    if draw(st.booleans()):
        attrs["coordinate_transformation_mode"] = draw(st.sampled_from(coordinates))
    if mode == "nearest" and draw(st.booleans()):
        attrs["nearest_mode"] = draw(st.sampled_from(ROUNDINGS))
    if mode == "cubic" and draw(st.booleans()):
        attrs["cubic_coeff_a"] = draw(st.sampled_from([-0.5, -1.0, -0.75]))
    if mode == "cubic" and draw(st.booleans()):
        attrs["exclude_outside"] = draw(st.integers(0, 1))
    if opset >= 18 and mode != "nearest" and draw(st.booleans()):
        attrs["antialias"] = 1
        if mode == "linear" and draw(st.booleans()):
            attrs["exclude_outside"] = draw(st.integers(0, 1))
    if attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize" and draw(st.booleans()):
        attrs["extrapolation_value"] = draw(st.sampled_from([0.0, 7.5]))
    return attrs


@st.composite
def resize(draw: Draw, mode: str) -> Case:
    opset = draw(opsets(11))
    attrs, n = draw(modes(opset, mode)), draw(st.sampled_from([1, 2, 2, 2, 3]))
    if attrs.get("mode") == "cubic":
        n = 2
    lead = draw(st.sampled_from([2, 2, 2, 0])) if n == 2 else draw(st.sampled_from([2, 0]))
    x = draw(numbers([*ints_of(draw, lead, 1, 2), *draw(ints(1, 6, n))]))
    axes = list(range(x.ndim))
    if opset >= 18 and draw(st.booleans()):
        # onnxruntime takes negative axes for none where a policy is named; onnx.reference has no negative axes
        axes = [a + lead if a >= 0 else a for a in draw(axes_of(n))]
        attrs["axes"] = axes
    chosen = [a % x.ndim for a in axes]
    sizes = scales = None
    if draw(st.booleans()):
        scales = np.array([1.0 if a < lead else draw(SCALES) for a in chosen], np.float32)
        scales = np.maximum(scales, np.array([1 / x.shape[a] for a in chosen], np.float32))
    else:
        sizes = i64([x.shape[a] if a < lead else draw(st.integers(1, 9)) for a in chosen])
        if opset >= 18 and lead in (0, n) and draw(st.booleans()):
            policies = ["stretch", "not_larger", "not_smaller"]
            attrs["keep_aspect_ratio_policy"] = draw(st.sampled_from(policies))
            if "axes" in attrs:
                attrs["axes"] = chosen
    roi = None
    if attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        starts = [0.0 if a < lead else draw(st.sampled_from([0.0, 0.1, -0.25, 0.4])) for a in chosen]
        ends = [1.0 if a < lead else draw(st.sampled_from([1.0, 0.9, 1.25, 0.6])) for a in chosen]
        roi = np.array(starts + ends, np.float32)
    after = sizes if sizes is not None else np.floor(scales * np.float32([x.shape[a] for a in chosen]))
    copied = [x.shape[a] == n for a, n in zip(chosen, after, strict=True)]
    plain = scales is None and roi is None
    # onnxruntime copies an axis whose size stays, whatever the scale and the region; the text does not
    assume(plain or not any(copied) or (scales is not None and roi is None and all(scales[copied] == 1)))
    if attrs.get("coordinate_transformation_mode") == "align_corners" and scales is not None:
        # between whole sizes or not: the text and onnxruntime, against onnx.reference and the standard's own tests
        assume(all(float(s * np.float32(x.shape[a])).is_integer() for s, a in zip(scales, chosen, strict=True)))
    inputs = [x, roi, scales, sizes]
    if opset < 13:
        inputs = [x, NONE if roi is None else roi, NONE if scales is None else scales, sizes]
    return draw(placed("Resize", inputs, attrs, opset, rtol=64 * EPS, atol=64 * EPS))


def ints_of(draw: Draw, n: int, low: int, high: int) -> list[int]:
    return list(draw(ints(low, high, n)))


@st.composite
def upsample(draw: Draw) -> Case:
    opset, mode = draw(opsets(7, 9)), draw(st.sampled_from(["nearest", "linear"]))
    n = 2 if mode == "linear" else draw(st.sampled_from([1, 2, 3]))
    x = draw(numbers([*ints_of(draw, 2, 1, 2), *draw(ints(1, 5, n))]))
    scales = [1.0, 1.0, *(draw(st.sampled_from([1.0, 1.3, 1.5, 2.0, 2.5, 3.0])) for _ in range(n))]
    assume(all(s == 1 or int(np.float32(s) * n) != n for s, n in zip(scales[2:], x.shape[2:])))  # copied, as above
    attrs: dict[str, Any] = {"mode": mode}
    bound = {"rtol": 64 * EPS, "atol": 64 * EPS}
    if opset < 9:
        return draw(placed("Upsample", [x], {**attrs, "scales": scales}, opset, **bound))
    return draw(placed("Upsample", [x, np.array(scales, np.float32)], attrs, opset, **bound))


@st.composite
def grid_sample(draw: Draw) -> Case:
    opset = draw(opsets(16))
    n = draw(st.sampled_from([2, 2, 3])) if opset >= 20 else 2
    names = ["linear", "nearest"] + (["cubic"] if n == 2 else [])
    if opset < 20:
        names = ["bilinear", "nearest", "bicubic"]
    attrs: dict[str, Any] = {"mode": draw(st.sampled_from(names))} if draw(st.booleans()) else {}
    if draw(st.booleans()):
        attrs["padding_mode"] = draw(st.sampled_from(["zeros", "border", "reflection"]))
    if draw(st.booleans()):
        attrs["align_corners"] = draw(st.integers(0, 1))
    batch = draw(st.integers(1, 2))
    x = draw(numbers([batch, draw(st.integers(1, 2)), *draw(ints(1, 5, n))]))
    grid = draw(numbers([batch, *draw(ints(0, 4, n)), n], low=-2.5, high=2.5))
    # a coordinate is rounded in steps of its size, and a slope between neighbours is 2 at most
    return draw(placed("GridSample", [x, grid], attrs, opset, rtol=64 * EPS, atol=512 * EPS))


@st.composite
def affine_grid(draw: Draw) -> Case:
    n, batch = draw(st.sampled_from([2, 3])), draw(st.integers(1, 2))
    theta = draw(whole([batch, n, n + 1]))
    size = i64([batch, draw(st.integers(1, 2)), *draw(ints(2, 4, n))])
    attrs = {"align_corners": draw(st.integers(0, 1))} if draw(st.booleans()) else {}
    return draw(placed("AffineGrid", [theta, size], attrs, draw(opsets(20)), rtol=16 * EPS, atol=32 * EPS))


test_resize_to_the_nearest = agreement(resize("nearest"), 70)
test_resize_by_lines = agreement(resize("linear"), 70)
test_resize_by_cubes = agreement(resize("cubic"), 70)
test_upsample = agreement(upsample(), 40)
test_grid_sample = agreement(grid_sample(), 80)
test_affine_grid = agreement(affine_grid(), 24)
