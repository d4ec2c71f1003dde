"""Convolutions against onnxruntime: weights that are stored and weights that are computed, every geometry."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ops.fuzz import agree, examples, floats, ints
from tests.ops.harness import run_node, unbound_names

OPS = ["Conv", "ConvTranspose", "DeformConv"]


@st.composite
def geometry(draw: Any, same: bool = True) -> tuple[int, list[int], list[int], dict[str, Any]]:
    """(group, kernel, size, attributes)."""
    n = draw(st.integers(1, 3))
    kernel = draw(ints(1, 3, n))
    attrs: dict[str, Any] = {"strides": draw(ints(1, 3, n)), "group": draw(st.sampled_from([1, 1, 2]))}
    if draw(st.booleans()):
        attrs["kernel_shape"] = kernel
    if draw(st.booleans()):
        attrs["dilations"] = draw(ints(1, 2, n))
    auto = draw(st.sampled_from(["NOTSET"] * 3 + ["VALID"] + ["SAME_UPPER", "SAME_LOWER"] * same))
    if auto != "NOTSET":
        attrs["auto_pad"] = auto
    elif draw(st.booleans()):
        half = draw(ints(0, 2, n))
        attrs["pads"] = half * 2 if draw(st.booleans()) else half + draw(ints(0, 2, n))
    return attrs["group"], kernel, draw(ints(5, 7, n)), attrs


@given(geometry(), st.booleans(), st.booleans(), st.booleans())
@examples(60)
def test_conv(case: Any, bias: bool, stored: bool, dynamic: bool) -> None:
    group, kernel, size, attrs = case
    inputs = [floats(2, 4, *size), floats(6, 4 // group, *kernel), floats(6) if bias else None]
    stored = stored or ("kernel_shape" not in attrs and dynamic)  # a kernel of unknown size is refused
    weights = {1, 2} if bias else {1}
    agree("Conv", inputs, attrs, dynamic=dynamic, initializers=weights if stored else set(), opset=17)


@given(geometry(), st.booleans(), st.booleans(), st.booleans(), st.data())
@examples(80)
def test_conv_transpose(case: Any, bias: bool, stored: bool, dynamic: bool, data: Any) -> None:
    group, kernel, size, attrs = case
    n = len(kernel)
    stride, dilation = attrs["strides"], attrs.get("dilations", [1] * n)
    if data.draw(st.booleans()):
        attrs["output_padding"] = [data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation)]
    if data.draw(st.integers(0, 3)) == 0:
        attrs.pop("pads", None)
        full = [(z - 1) * s + (k - 1) * d + 1 for z, s, k, d in zip(size, stride, kernel, dilation)]
        attrs["output_shape"] = [f - data.draw(st.integers(0, 3)) for f in full]
    inputs = [floats(2, 4, *size), floats(4, 6 // group, *kernel), floats(6) if bias else None]
    stored = stored or ("kernel_shape" not in attrs and dynamic)
    weights = {1, 2} if bias else {1}
    agree("ConvTranspose", inputs, attrs, dynamic=dynamic, initializers=weights if stored else set(), opset=17)


def test_stored_weights_make_a_module() -> None:
    attrs = {"pads": [1, 1, 1, 1], "strides": [2, 2]}
    inputs = [floats(1, 4, 8, 8), floats(6, 4, 3, 3), floats(6)]
    ran = run_node("Conv", inputs, attrs, initializers={1, 2})
    assert "nn.Conv2d(4, 6, kernel_size=3, stride=2, padding=1)" in ran.source
    ran = run_node("ConvTranspose", [inputs[0], floats(4, 6, 3, 3), inputs[2]], attrs, initializers={1, 2})
    assert "nn.ConvTranspose2d(4, 6, kernel_size=3, stride=2, padding=1)" in ran.source


@given(
    ints(1, 3, 2), ints(1, 2, 2), ints(0, 2, 4), ints(1, 2, 2), st.sampled_from([1, 2]), st.sampled_from([1, 2]),
    st.booleans(), st.booleans(), st.integers(0, 5),
)  # fmt: skip
@examples(25)
def test_deform_conv(
    kernel: list[int], stride: list[int], pads: list[int], dilation: list[int], group: int, offset_group: int,
    bias: bool, masked: bool, seed: int,
) -> None:  # fmt: skip
    size = [6, 7]
    out = [(size[i] + pads[i] + pads[2 + i] - (kernel[i] - 1) * dilation[i] - 1) // stride[i] + 1 for i in range(2)]
    taps = kernel[0] * kernel[1] * offset_group
    inputs = [
        floats(2, 4, *size), floats(6, 4 // group, *kernel), floats(2, 2 * taps, *out, seed=seed) * 2,
        floats(6) if bias else None, floats(2, taps, *out, seed=seed) if masked else None,
    ]  # fmt: skip
    attrs = {
        "strides": stride, "pads": pads, "dilations": dilation, "group": group, "offset_group": offset_group,
        "kernel_shape": kernel,
    }  # fmt: skip
    stored = {1, 3} if bias else {1}
    agree("DeformConv", inputs, attrs, opset=19, initializers=stored)


@pytest.mark.parametrize("op", OPS)
def test_every_schema_name_is_bound(op: str) -> None:
    assert unbound_names(op) == []
