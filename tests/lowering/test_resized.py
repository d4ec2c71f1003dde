"""Maps are resized to the size of what they are joined with, where that is the same for every run."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.support.exported import held_graph

HALF_PIXEL = 'mode="linear", coordinate_transformation_mode="half_pixel"'
CORNERS = 'mode="linear", coordinate_transformation_mode="align_corners"'
FLOOR = 'mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"'


def source(body: str, x: tuple[int, ...], y: tuple[int, ...], typed: str = "") -> str:
    """The source for two maps, after a comparison with onnxruntime."""
    given = typed or f"float[{','.join(map(str, x))}] x, float[{','.join(map(str, y))}] y"
    head = f'<ir_version: 8, opset_import: ["" : 17]>\ng ({given}) => (float z)'
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in (("x", x), ("y", y))}
    stored = "<float[4] f2 = {1,1,2,2}, float[4] f3 = {1,1,3,3}, float[4] f = {1,1,1.5,1.5}, int64[4] s = {1,3,9,11}>"
    return held_graph(onnx.parser.parse_model(f"{head} {stored}\n{{ {body} }}"), feeds).source


@pytest.mark.parametrize("kind", [HALF_PIXEL, CORNERS, FLOOR])
@pytest.mark.parametrize("join", ["Add(y, r)", "Concat<axis = 1>(y, r)"])
def test_a_size_in_pixels_is_that_of_the_value_beside_it(kind: str, join: str) -> None:
    made = source(f"r = Resize<{kind}>(x, , , s) z = {join}", (1, 3, 4, 5), (1, 3, 9, 11))
    assert "size=y.shape[2:]" in made and "(9, 11)" not in made


def test_a_steady_factor_stays() -> None:
    body = "r = Resize<{}>(x, , f2) a = Add(y, r) b = Resize<{}>(x, , f2) c = Add(b, y) z = Add(a, c)"
    made = source(body.format(HALF_PIXEL, HALF_PIXEL), (1, 3, 4, 5), (1, 3, 8, 10))
    assert made.count("scale_factor=2") == 2 and ".shape" not in made


@pytest.mark.parametrize("kind", [HALF_PIXEL, CORNERS, FLOOR])
def test_factors_that_differ_are_sizes(kind: str) -> None:
    """Of a whole factor only: torch divides by others as they are, and not by the ratio of the sizes."""
    body = """v = MaxPool<kernel_shape = [3, 3], strides = [3, 3]>(y)
        r = Resize<{}>(x, , f2) w = Resize<{}>(v, , f3) z = Concat<axis = 1>(y, r, w)"""
    made = source(body.format(kind, kind), (1, 3, 6, 9), (1, 3, 12, 18))
    assert made.count("size=y.shape[2:]") == 2
    body = f"r = Resize<{kind}>(x, , f) w = Resize<{kind}>(x, , f) a = Add(r, y) b = Add(w, y) z = Add(a, b)"
    assert ".shape" not in source(body, (1, 3, 8, 12), (1, 3, 12, 18))


def test_what_may_be_broadcast_says_no_size() -> None:
    typed = "float[1,3,4,5] x, float[1,3,h,w] y"
    made = source(f"r = Resize<{HALF_PIXEL}>(x, , , s) z = Add(y, r)", (1, 3, 4, 5), (1, 3, 1, 1), typed)
    assert "(9, 11)" in made


def test_what_is_concatenated_has_the_size_of_the_others() -> None:
    typed = "float[1,3,4,5] x, float[1,3,h,w] y"
    made = source(f"r = Resize<{HALF_PIXEL}>(x, , , s) z = Concat<axis = 1>(y, r)", (1, 3, 4, 5), (1, 3, 9, 11), typed)
    assert "size=y.shape[2:]" in made


@pytest.mark.parametrize(
    "body",
    [
        "r = Resize<{}>(x, , , s) a = Concat<axis = 1>(y, r) b = Relu(r) z = Add(b, a)",  # used elsewhere too
        "r = Resize<{}>(x, , , s) z = Concat<axis = 1>(r, r)",
        "r = Resize<{}>(x, , , s) a = Relu(r) b = Sigmoid(a) z = Concat<axis = 1>(a, b)",  # made of the result itself
    ],
)
def test_only_an_earlier_value_tells_a_size(body: str) -> None:
    pixels = "(9, 11)"
    given = ((1, 3, 4, 5), (1, 0, 9, 11)) if "b, a" in body else ((1, 3, 4, 5), (1, 3, 9, 11))
    assert pixels in source(body.format(HALF_PIXEL), *given)
