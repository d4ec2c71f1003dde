"""Conv and ConvTranspose: every attribute, one to three dims, and batches of none."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.properties.judge import Case, agreement
from tests.properties.strategies import Draw, ints, opsets, placed, whole

AUTO = ["NOTSET"] * 4 + ["SAME_UPPER", "SAME_LOWER", "VALID"]


@st.composite
def window(draw: Draw, n: int) -> dict[str, Any]:
    """Attributes of a convolution; each may be left out."""
    attrs: dict[str, Any] = {"auto_pad": draw(st.sampled_from(AUTO))}
    if draw(st.booleans()):
        attrs["strides"] = draw(ints(1, 3, n))
    if draw(st.booleans()):
        attrs["dilations"] = draw(ints(1, 3, n))
    if attrs["auto_pad"] == "NOTSET":
        if draw(st.booleans()):
            del attrs["auto_pad"]
        if draw(st.booleans()):
            attrs["pads"] = draw(ints(0, 2, n)) * 2 if draw(st.booleans()) else draw(ints(0, 2, 2 * n))
    return attrs


@st.composite
def conv(draw: Draw) -> Case:
    n = draw(st.sampled_from([1, 2, 2, 3]))
    groups, attrs = draw(st.integers(1, 3)), draw(window(n))
    kernel = draw(ints(1, 3, n))
    into, out = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    x = draw(whole([draw(st.sampled_from([1, 2, 2, 0])), into, *draw(ints(1, 8, n))]))
    bias = draw(whole([out])) if draw(st.booleans()) else None
    if groups > 1:
        attrs["group"] = groups
    if draw(st.booleans()):
        attrs["kernel_shape"] = kernel
    weight = draw(whole([out, into // groups, *kernel]))
    return draw(placed("Conv", [x, weight, bias], attrs, draw(opsets())))


@st.composite
def transposed(draw: Draw) -> Case:
    n = draw(st.sampled_from([1, 2, 2, 3]))
    groups, attrs = draw(st.integers(1, 3)), draw(window(n))
    kernel = draw(ints(1, 3, n))
    into, out = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    size = draw(ints(1, 5, n))
    x = draw(whole([draw(st.sampled_from([1, 2, 2, 0])), into, *size]))
    bias = draw(whole([out])) if draw(st.booleans()) else None
    if groups > 1:
        attrs["group"] = groups
    if draw(st.booleans()):
        attrs["kernel_shape"] = kernel
    strides, dilations = attrs.get("strides", [1] * n), attrs.get("dilations", [1] * n)
    if draw(st.booleans()):
        attrs["output_padding"] = [
            draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations, strict=True)
        ]  # fmt: skip
    if draw(st.sampled_from([False, False, True])):
        whole_size = [s * (d - 1) + (k - 1) * f + 1 for d, s, k, f in zip(size, strides, kernel, dilations)]
        attrs["output_shape"] = [max(1, w + draw(st.integers(-2, 1))) for w in whole_size]
        attrs.pop("pads", None)
    weight = draw(whole([into, out // groups, *kernel]))
    return draw(placed("ConvTranspose", [x, weight, bias], attrs, draw(opsets())))


test_conv = agreement(conv(), 96)
test_conv_transpose = agreement(transposed(), 96)
