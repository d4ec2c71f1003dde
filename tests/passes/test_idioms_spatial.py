"""Global pooling, padding and resizing in every spelling that exporters write, and what nearly is one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support.idioms import hold, spelled, text_of

IMAGE = "2, 3, 4, 4"
RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((2, 3, 3, 3)).astype("float32")
CONV = "float[2, 3, 3, 3] w = {" + ", ".join(map(str, WEIGHT.ravel())) + "}"
DRAWN = RNG.standard_normal((2, 3, 4, 4)).astype("float32")
ODD = RNG.standard_normal((2, 3, 3, 3)).astype("float32")


def pooled(x: torch.Tensor) -> torch.Tensor:
    return F.adaptive_avg_pool2d(x, 1)


POOLS = {
    "torch's legacy exporter": "p = GlobalAveragePool(x)",
    "torch's dynamo exporter": "p = ReduceMean<axes = [-1, -2], keepdims = 1>(x)",
    "keras": "p = ReduceMean<axes = [2, 3]>(x)",
}
FLATTENED = {
    "Flatten": "y = Flatten<axis = 1>(p)",
    "Reshape": "y = Reshape(p, flat)",
    "Squeeze": "y = Squeeze(p, axes)",
    "two Squeezes": "s = Squeeze(p, last) y = Squeeze(s, last)",
    "Reshape by Shape and Gather": "s = Shape(x) b = Gather(s, zero) u = Unsqueeze(b, zeros) "
    "v = Concat<axis = 0>(u, minus) y = Reshape(p, v)",
}
SHAPES = (
    "int64[2] flat = {0, -1}, int64[2] axes = {2, 3}, int64[1] last = {-1}, int64 zero = {0}, int64[1] zeros = {0}, "
    "int64[1] minus = {-1}"
)


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("shape", [IMAGE, "N, 3, H, W"])
def test_global_average_pool(pool: str, shape: str) -> None:
    """One text, whoever wrote the file."""
    hold(spelled(pool.replace("p =", "y ="), shape=shape), "return F.adaptive_avg_pool2d(x, 1)", pooled)
    for after in FLATTENED.values():
        model = spelled(f"{pool} {after}", SHAPES, shape=shape)
        hold(model, "return F.adaptive_avg_pool2d(x, 1).flatten(1)", lambda x: pooled(x).flatten(1))


def test_means_that_are_no_pooling() -> None:
    assert "return x.mean(dim=(2, 3))" in text_of(
        spelled("y = ReduceMean<axes = [2, 3], keepdims = 0>(x)", shape=IMAGE)
    )
    assert "return x.mean(" in text_of(spelled("y = ReduceMean<axes = [1, 2]>(x)", shape=IMAGE))
    assert "return x.mean(" in text_of(spelled("y = ReduceMean<axes = [3]>(x)", shape=IMAGE))
    assert "return x.mean(" in text_of(spelled("y = ReduceMean<axes = [2]>(x)", shape="2, 3, 4"))
    volume = spelled("y = ReduceMean<axes = [2, 3, 4]>(x)", shape="2, 3, 2, 2, 2")
    assert "return F.adaptive_avg_pool3d(x, 1)" in text_of(volume)


PADS = "int64[8] ring = {0, 0, 1, 1, 0, 0, 1, 1}, int64[8] wide = {0, 0, 1, 2, 0, 0, 1, 2}, "
PADS += "int64[8] corner = {0, 0, 1, 1, 0, 0, 0, 0}, int64[8] other = {0, 0, 0, 0, 0, 0, 1, 1}, "
PADS += "int64[8] crop = {0, 0, -1, 0, 0, 0, 0, -1}, int64[8] channel = {0, 1, 0, 0, 0, 0, 0, 0}, "
PADS += (
    "int64[4] ring4 = {1, 1, 1, 1}, int64[2] spatial = {2, 3}, float low = {-inf}, float zero = {0}, float one = {1}, "
)


def conv(x: torch.Tensor, padding: int | tuple[int, int]) -> torch.Tensor:
    return F.conv2d(x, torch.from_numpy(WEIGHT), padding=padding)


@pytest.mark.parametrize(
    "text, padding",
    [
        ("p = Pad(x, ring) y = Conv(p, w)", 1),
        ("p = Pad(x, ring, zero) y = Conv<pads = [1, 1, 1, 1]>(p, w)", 2),
        ("p = Pad(x, wide) y = Conv<auto_pad = 'VALID'>(p, w)", (1, 2)),
        ("p = Pad(x, corner) y = Conv<pads = [0, 0, 1, 1]>(p, w)", 1),
    ],
)
def test_padding_of_convolutions(text: str, padding: int | tuple[int, int]) -> None:
    model = spelled(text.replace("'", '"'), PADS + CONV, shape=IMAGE)
    ran = hold(model, "return self.conv(x)", lambda x: conv(x, padding), DRAWN, atol=1e-4)
    assert f"padding={padding}" in ran.source


def test_padding_over_some_axes() -> None:
    model = spelled("p = Pad(x, ring4, zero, spatial) y = Conv(p, w)", PADS + CONV, shape=IMAGE, opset=18)
    hold(model, "return self.conv(x)", lambda x: conv(x, 1), DRAWN, atol=1e-4)


@pytest.mark.parametrize(
    "text",
    [
        "p = Pad(x, corner) y = Conv(p, w)",
        "p = Pad(x, ring, one) y = Conv(p, w)",
        "p = Pad<mode = 'reflect'>(x, ring) y = Conv(p, w)",
        "p = Pad(x, crop) y = Conv(p, w)",
        "p = Pad(x, ring) y = Conv<auto_pad = 'SAME_UPPER'>(p, w)",
        "p = Pad(x, ring) c = Conv(p, w) d = Conv(p, w) e = Tanh(d) y = Add(c, e)",
        "p = Pad(x, ring) y = MaxPool<kernel_shape = [2, 2]>(p)",
        "p = Pad(x, ring) y = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(p)",
        "p = Pad(x, ring) y = AveragePool<kernel_shape = [3, 3], ceil_mode = 1, strides = [2, 2]>(p)",
        "p = Pad(x, wide) y = AveragePool<kernel_shape = [3, 3]>(p)",
    ],
)
def test_padding_that_stays(text: str) -> None:
    model = spelled(text.replace("'", '"'), PADS + CONV, shape=IMAGE)
    assert "F.pad(x" in " ".join(hold(model, "", None, DRAWN, atol=1e-4).forward.split())


def test_padding_of_pools() -> None:
    text = "p = Pad(x, ring) y = AveragePool<kernel_shape = [3, 3], strides = [2, 2]>(p)"
    hold(
        spelled(text, PADS.rstrip(", "), shape=IMAGE),
        "return F.avg_pool2d(x, kernel_size=3, stride=2, padding=1)",
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        DRAWN,
    )
    text = "p = Pad(x, ring, low) y = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(p)"
    hold(
        spelled(text, PADS.rstrip(", "), shape=IMAGE),
        "return F.max_pool2d(x, kernel_size=3, stride=2, padding=1)",
        lambda x: F.max_pool2d(x, 3, 2, 1),
        DRAWN,
    )


NEAREST = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
LINEAR = 'mode = "linear", coordinate_transformation_mode = "half_pixel"'
SIZES = "s = Shape(x) h = Slice(s, two, three) w = Slice(s, three, four) a = Mul(h, {0}) b = Mul(w, {0}) "
SIZES += "r = Slice(s, none, two) t = Concat<axis = 0>(r, a, b) "
SCALES = (
    "float[4] twice = {1, 1, 2, 2}, int64[1] none = {0}, int64[1] two = {2}, int64[1] three = {3}, "
    "int64[1] four = {4}, "
    "int64[4] eight = {2, 3, 8, 8}, int64[4] six = {2, 3, 6, 6}, int64[4] uneven = {2, 3, 8, 12}"
)
SPELLINGS = {
    "Upsample-9": ("y = Upsample<mode = 'nearest'>(x, twice)", 9),
    "Resize-10": ("y = Resize<mode = 'nearest'>(x, twice)", 10),
    "Resize by scales": (f"y = Resize<{NEAREST}>(x, , twice)", 17),
    "Resize by computed sizes": (SIZES.format("two") + f"y = Resize<{NEAREST}>(x, , , t)", 17),
}


@pytest.mark.parametrize("text, opset", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("shape", [IMAGE, "N, 3, H, W"])
def test_twice_as_large(text: str, opset: int, shape: str) -> None:
    model = spelled(text.replace("'", '"'), SCALES, shape=shape, opset=opset)
    hold(model, "return F.interpolate(x, scale_factor=2)", lambda x: F.interpolate(x, scale_factor=2))


def test_larger_by_sizes() -> None:
    static = spelled(f"y = Resize<{NEAREST}>(x, , , eight)", SCALES, shape=IMAGE)
    hold(static, "return F.interpolate(x, scale_factor=2)", lambda x: F.interpolate(x, size=(8, 8)), DRAWN)
    uneven = spelled(f"y = Resize<{NEAREST}>(x, , , uneven)", SCALES, shape=IMAGE)
    hold(uneven, "return F.interpolate(x, size=(8, 12))", lambda x: F.interpolate(x, size=(8, 12)), DRAWN)
    broken = spelled(f"y = Resize<{NEAREST}>(x, , , six)", SCALES, shape=IMAGE)
    hold(broken, "return F.interpolate(x, size=6)", lambda x: F.interpolate(x, size=6), DRAWN)
    bilinear = spelled(SIZES.format("three") + f"y = Resize<{LINEAR}>(x, , , t)", SCALES, shape="N, 3, H, W")
    hold(
        bilinear,
        'return F.interpolate(x, scale_factor=3, mode="bilinear")'.replace('"', "'"),
        lambda x: F.interpolate(x, scale_factor=3, mode="bilinear"),
        ODD,
        atol=1e-4,
    )


def test_as_large_as_another() -> None:
    text = "c = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w) s = Shape(x) f = Slice(s, two, four) "
    text += f"d = Shape(c) e = Slice(d, none, two) t = Concat<axis = 0>(e, f) y = Resize<{NEAREST}>(c, , , t)"
    model = spelled(text, SCALES + ", " + CONV, shape="N, 3, H, W")
    hold(model, "size=x.shape[2:])", None, DRAWN, atol=1e-4)
