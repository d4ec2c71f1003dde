"""Resize and Upsample against onnxruntime: every mode, and `F.interpolate` where a person would write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import parser

import onnxgen
from tests.ops.fuzz import agree, examples, floats, ints
from tests.ops.harness import generate, instantiate, node_model, run_node, unbound_names

COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
SCALES = [0.3, 0.5, 0.6, 0.7, 1.0, 1.3, 1.5, 2.0, 2.5, 3.0, 4.0]
OPSETS = st.sampled_from([11, 13, 18, 19, 21])


def vector(values: list[float], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.array(values, dtype)


@st.composite
def target(draw: Any, n: int = 2) -> tuple[list[Any], dict[str, bool]]:
    """The inputs after X (roi, scales, sizes), with or without sizes."""
    if draw(st.booleans()):
        return [None, vector([1, 1, *draw(st.lists(st.sampled_from(SCALES), min_size=n, max_size=n))])], {}
    return [None, None, vector([1, 2, *draw(ints(1, 12, n))], np.int64)], {}


def compare(x: Any, inputs: list[Any], attrs: dict[str, Any], opset: int, dynamic: bool, stored: bool) -> None:
    if opset == 11:
        inputs = [np.zeros(0, np.float32), *inputs[1:]]
        if inputs[1] is None:
            inputs[1] = np.zeros(0, np.float32)
    if attrs.get("coordinate_transformation_mode") == "half_pixel_symmetric":
        opset = max(opset, 19)
    # onnxruntime aligns corners between whole sizes, as PyTorch does, and ONNX's reference between fractions of pixels
    producer = "pytorch" if attrs.get("coordinate_transformation_mode") == "align_corners" else ""
    present = {i + 1 for i, v in enumerate(inputs) if v is not None} if stored else set()
    agree("Resize", [x, *inputs], attrs, opset=opset, dynamic=dynamic, initializers=present, producer=producer)


@given(
    target(),
    st.sampled_from(COORDINATES),
    st.sampled_from(ROUNDINGS),
    OPSETS,
    st.booleans(),
    st.booleans(),
    ints(4, 9, 2),
)
@examples(40)
def test_nearest(to: Any, coordinates: str, rounding: str, opset: int, dynamic: bool, stored: bool, size: Any) -> None:
    attrs = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    compare(floats(1, 2, *size), to[0], attrs, opset, dynamic, stored)


@given(target(), st.sampled_from(COORDINATES), OPSETS, st.booleans(), st.booleans(), ints(4, 9, 2))
@examples(30)
def test_linear(to: Any, coordinates: str, opset: int, dynamic: bool, stored: bool, size: Any) -> None:
    attrs = {"mode": "linear", "coordinate_transformation_mode": coordinates}
    compare(floats(1, 2, *size), to[0], attrs, opset, dynamic, stored)


@given(
    target(),
    st.sampled_from(COORDINATES),
    OPSETS,
    st.booleans(),
    st.sampled_from([-0.75, -0.5]),
    st.integers(0, 1),
    ints(2, 7, 2),
)
@examples(30)
def test_cubic(to: Any, coordinates: str, opset: int, dynamic: bool, a: float, exclude: int, size: Any) -> None:
    attrs = {
        "mode": "cubic", "coordinate_transformation_mode": coordinates, "cubic_coeff_a": a, "exclude_outside": exclude,
    }  # fmt: skip
    compare(floats(1, 2, *size), to[0], attrs, opset, dynamic, True)


@given(
    target(),
    st.sampled_from(["half_pixel", "align_corners", "asymmetric"]),
    st.sampled_from(["linear", "cubic"]),
    st.integers(0, 1),
    ints(2, 9, 2),
)
@examples(20)
def test_antialias(to: Any, coordinates: str, mode: str, exclude: int, size: Any) -> None:
    # onnxruntime leaves an axis alone whose size stays, whatever its scale
    assume(to[0][1] is None or all(s == 1 or int(s * n) != n for s, n in zip(to[0][1][2:], size)))
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates, "antialias": 1, "exclude_outside": exclude}
    compare(floats(1, 2, *size), to[0], attrs, 18, False, True)


@given(
    st.sampled_from(["nearest", "linear", "cubic"]),
    st.lists(st.floats(-0.25, 1.25, width=32), min_size=4, max_size=4),
    st.booleans(),
    ints(2, 7, 2),
    ints(1, 8, 2),
)
@examples(30)
def test_crop_and_resize(mode: str, roi: list[float], by_sizes: bool, size: Any, after: list[int]) -> None:
    assume(all(a != b for a, b in zip(after, size)))  # onnxruntime crops nothing from an axis whose size stays
    region = vector([0, 0, min(roi[:2]), min(roi[2:]), 1, 1, max(roi[:2]) + 0.25, max(roi[2:]) + 0.25])
    inputs = [region, None, vector([1, 2, *after], np.int64)] if by_sizes else [region, vector([1, 1, 2, 1.5])]
    attrs = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5}
    for stored in (True, False):
        compare(floats(1, 2, *size), inputs, attrs, 13, False, stored)


@given(
    st.sampled_from(["not_larger", "not_smaller"]), st.sampled_from(["nearest", "linear"]), ints(2, 7, 2), ints(1, 9, 2)
)
@examples(20)
def test_keep_aspect_ratio(policy: str, mode: str, size: Any, after: list[int]) -> None:
    attrs = {"mode": mode, "keep_aspect_ratio_policy": policy, "axes": [2, 3]}
    compare(floats(1, 2, *size), [None, None, vector(after, np.int64)], attrs, 19, False, True)
    compare(floats(1, 2, *size), [None, None, vector(after, np.int64)], attrs, 19, True, True)


@pytest.mark.parametrize(
    "mode, rank",
    [("nearest", 1), ("nearest", 2), ("nearest", 3), ("nearest", 5), ("linear", 2), ("linear", 3), ("linear", 5)],
)
def test_other_ranks(mode: str, rank: int) -> None:
    x = floats(*range(2, 2 + rank))
    scales = vector([1.0] * max(rank - 3, 0) + [2.0] * min(rank, 3))
    attrs = {"mode": mode, "coordinate_transformation_mode": "half_pixel"}
    run_node("Resize", [x, None, scales], attrs, 19, initializers={2})
    run_node("Resize", [x, None, scales], attrs, 19, dynamic=True)


INTEGERS = [np.uint8, np.int8, np.int32]  # for which onnxruntime has no cubic


@pytest.mark.parametrize(
    "mode, dtype", [*((m, d) for m in ("nearest", "linear") for d in (*INTEGERS, np.float16)), ("cubic", np.float16)]
)
def test_dtypes(mode: str, dtype: Any) -> None:
    x = (np.arange(24).reshape(1, 2, 3, 4) * 5 - 50).astype(dtype)
    tolerance = {"rtol": 2e-3, "atol": 1e-3} if dtype is np.float16 else {}
    run_node("Resize", [x, None, vector([1, 1, 1.5, 2])], {"mode": mode}, 19, initializers={2}, **tolerance)


def test_float64_and_int64() -> None:
    """onnxruntime has no kernel for them: as for float32."""
    x = np.arange(24).reshape(1, 2, 3, 4) * 5 - 50
    for mode in ("nearest", "linear", "cubic"):
        inputs = [None, vector([1, 1, 1.5, 2])]
        ran = run_node("Resize", [x.astype(np.float32), *inputs], {"mode": mode}, 19, initializers={2})
        wide = ran.expected[0].astype(np.float64)
        args = ({"mode": mode}, 19, 1, {2})
        run_node("Resize", [x.astype(np.float64), *inputs], *args, expected=[wide], rtol=1e-5, atol=1e-4)
    nearest = run_node("Resize", [x.astype(np.float32), *inputs], {"mode": "nearest"}, 19, initializers={2})
    run_node("Resize", [x, *inputs], {"mode": "nearest"}, 19, 1, {2}, expected=[nearest.expected[0].astype(np.int64)])


@given(
    st.sampled_from(["nearest", "linear"]),
    st.lists(st.sampled_from(SCALES), min_size=2, max_size=2),
    st.booleans(),
    st.sampled_from([7, 9, 10]),
    ints(4, 9, 2),
)
@examples(25)
def test_before_opset_11(mode: str, scales: list[float], dynamic: bool, opset: int, size: Any) -> None:
    x, factors = floats(1, 2, *size), [1.0, 1.0, *scales]
    if opset == 7:
        agree("Upsample", [x], {"mode": mode, "scales": factors}, opset=opset, dynamic=dynamic)
    else:
        inputs = [x, vector(factors)]
        name = "Upsample" if opset == 9 else "Resize"
        agree(name, inputs, {"mode": mode}, opset=opset, dynamic=dynamic, initializers={1})


def test_what_people_write() -> None:
    """The usual requests are `F.interpolate`, over dynamic sizes too."""
    x, twice = floats(1, 2, 5, 6), vector([1, 1, 2, 2])
    usual = {
        "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        "bilinear": {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
        "bicubic": {"mode": "cubic", "coordinate_transformation_mode": "half_pixel"},
    }
    for mode, attrs in usual.items():
        for dynamic in (False, True):
            ran = run_node("Resize", [x, None, twice], attrs, 19, initializers={2}, dynamic=dynamic)
            rest = "" if mode == "nearest" else f", mode='{mode}'"
            assert f"F.interpolate(i0, scale_factor=2{rest})" in ran.forward


FLOOR = 'nearest_mode = "floor", coordinate_transformation_mode = "asymmetric", mode = "nearest"'


def to_size_of(other: str, steps: str) -> onnx.ModelProto:
    """Return a graph that resizes x to the last axis of y, which `steps` may compute."""
    text = f"""g (float[1, 1, n] x{other}) => (float[a, b, c] z) {{
        one = Constant <value = int64[2] {{1, 1}}> () {steps} last = Shape <start = 2> (y)
        s = Concat <axis = 0> (one, last) z = Resize <{FLOOR}> (x, , , s) }}"""
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')


@pytest.mark.parametrize("part", range(1, 9))
def test_nearest_of_every_pair_of_sizes(part: int, tmp_path: Path) -> None:
    """Sizes that have nothing to do with each other, as of the levels of a feature pyramid."""
    onnx.save(to_size_of(", float[1, 1, m] y", ""), path := tmp_path / "m.onnx")
    onnxgen.generate(path, tmp_path / "model.py")
    assert "return resize_floor(x, size=" in (tmp_path / "model.py").read_text()
    session, made = onnxruntime.InferenceSession(path), onnxgen.load(path)
    points = np.arange(256, dtype=np.float32).reshape(1, 1, -1)
    for n in range(part, 257, 8):
        x = points[:, :, :n]
        for m in range(1, 257):
            expected = session.run(None, {"x": x, "y": points[:, :, :m]})[0]
            assert np.array_equal(made(torch.from_numpy(x), torch.from_numpy(points[:, :, :m])), expected), (n, m)


@pytest.mark.parametrize(
    ("steps", "is_usual"),
    [
        ("y = Concat <axis = 2> (x, x)", True),  # the double
        ("y = Concat <axis = 2> (x, x, x)", True),
        ("y = MaxPool <kernel_shape = [2], strides = [2]> (x)", True),  # the half, rounded down
        ("y = MaxPool <kernel_shape = [3], strides = [2], pads = [1, 1]> (x)", True),  # or up
        ("y = MaxPool <kernel_shape = [3], strides = [3]> (x)", False),  # 74 to 24 is one of those that differ
        ("t = Constant <value = float {0.67}> () i = Shape <start = 2> (x) f = Cast <to = 1> (i) k = Mul (f, t) "
         "j = Cast <to = 7> (k) l = Concat <axis = 0> (one, j) y = ConstantOfShape (l)", False),
    ],
)  # fmt: skip
def test_nearest_of_related_sizes(steps: str, is_usual: bool, tmp_path: Path) -> None:
    """`F.interpolate` stays where it picks the same points for every size."""
    onnx.save(to_size_of("", steps), path := tmp_path / "m.onnx")
    onnxgen.generate(path, tmp_path / "model.py")
    assert ("F.interpolate(" in (tmp_path / "model.py").read_text()) is is_usual
    session, made = onnxruntime.InferenceSession(path), onnxgen.load(path)
    for n in range(3, 600):
        x = np.arange(n, dtype=np.float32).reshape(1, 1, -1)
        assert np.array_equal(made(torch.from_numpy(x)), session.run(None, {"x": x})[0]), n


# From and to these sizes, points lie at halves, or a rounding error beside them.
HALVES = [(23, 14), (10, 24), (6, 10), (229, 115), (7, 135), (253, 172), (209, 144), (243, 129), (216, 75), (94, 101)]
HALVES += [(122, 177), (107, 67), (256, 3), (1, 5), (5, 1), (200, 250)]


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_nearest_beside_halves(coordinates: str, rounding: str) -> None:
    """Sizes of the run, and stored ones. onnxruntime takes up to 1e-6 beside a half for a half."""
    attributes = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    first = np.arange(23, dtype=np.float32).reshape(1, 1, -1)
    proto = node_model("Resize", [first, None, None, np.array([1, 1, 14])], attributes, opset=19, dynamic={2})
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    made, (x_name, size_name) = instantiate(generate(proto)), [i.name for i in proto.graph.input]
    for before, after in HALVES:
        x, size = np.arange(before, dtype=np.float32).reshape(1, 1, -1), np.array([1, 1, after])
        expected = session.run(None, {x_name: x, size_name: size})[0]
        assert np.array_equal(made(torch.from_numpy(x), torch.from_numpy(size)), expected), (before, after)
        stored = node_model("Resize", [x, None, None, size], attributes, opset=19, initializers={3})
        assert np.array_equal(instantiate(generate(stored))(torch.from_numpy(x)), expected), (before, after)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize(("mode", "scale"), [("nearest", 1.25), ("linear", 1.25), ("cubic", 1.25), ("linear", 1.1)])
def test_scales_that_keep_the_sizes_of_the_run(mode: str, scale: float, coordinates: str) -> None:
    """onnxruntime copies the input if no size changes: (3, 3) by 1.25, but not (3, 8)."""
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attributes["nearest_mode"] = "floor"
    scales = vector([1, 1, scale, scale])
    for stored in (set(), {2}):
        inputs = [floats(1, 1, 3, 3), None, scales]
        proto = node_model(
            "Resize", inputs, attributes, opset=19, initializers=stored, dynamic={2, 3}, producer="pytorch"
        )
        session = onnxruntime.InferenceSession(proto.SerializeToString())
        made = instantiate(generate(proto))
        for sizes in ((3, 3), (1, 2), (3, 8), (40, 40)):
            x = floats(1, 1, *sizes)
            arguments = [x] if stored else [x, scales]
            expected = session.run(None, {i.name: a for i, a in zip(session.get_inputs(), arguments)})[0]
            np.testing.assert_allclose(
                made(*map(torch.from_numpy, arguments)), expected, 1e-4, 1e-5, err_msg=str(sizes)
            )


@pytest.mark.parametrize("op", ["Resize", "Upsample"])
def test_every_schema_name_is_bound(op: str) -> None:
    assert unbound_names(op) == []
