"""Cast between every pair of types, QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto

from tests.properties.judge import Case, agreement
from tests.properties.strategies import INTEGERS, SEEDS, Array, Draw, axis_of, numbers, opsets, placed, shapes

NARROW = {
    "bfloat16": TensorProto.BFLOAT16, "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8_e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ, "float8_e5m2": TensorProto.FLOAT8E5M2,
    "float8_e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ, "int4": TensorProto.INT4, "uint4": TensorProto.UINT4,
}  # fmt: skip
KINDS = {
    "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16,
    "bool": TensorProto.BOOL, **{n: getattr(TensorProto, n.upper()) for n in INTEGERS}, **NARROW,
}  # fmt: skip
FRACTIONS = [
    0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.0, 3.7, 100.0, 127.9, -128.9, 240.0, 255.5, 448.0, 449.0, 465.0, 6e4, 66000.0,
    1e9, 3e9, -3e9, 1e18, 1e19, 1e38, 1e39, 1e300, 1e-3, 2e-3, 1e-8, 1e-45, np.inf, -np.inf, np.nan, 0.1, 1 / 3,
    16777217.0,
]  # fmt: skip
WHOLE = [
    0,
    1,
    -1,
    2,
    7,
    8,
    15,
    16,
    100,
    127,
    128,
    255,
    256,
    -128,
    -129,
    2**15,
    2**16,
    2**24 + 1,
    2**31,
    2**32,
    2**53 + 1,
]


def is_float(kind: str) -> bool:
    return "float" in kind


def limits(kind: str) -> tuple[int, int]:
    """The smallest and the largest number of an integer type."""
    info = ml_dtypes.iinfo(kind) if kind in ("int4", "uint4") else np.iinfo(kind)
    return int(info.min), int(info.max)


def candidates(source: str, target: str) -> Array:
    """Numbers of one type, those left out that do not fit another of integers: C++ promises nothing of them."""
    if source == "bool":
        return np.array([False, True])
    if not is_float(source):
        low, high = limits(source)
        ends = [low, low + 1, high, high - 1]
        return np.array(
            [v for v in WHOLE + ends if low <= v <= high], {"int4": "int8", "uint4": "uint8"}.get(source, source)
        )
    with np.errstate(all="ignore"):
        values = np.array(FRACTIONS).astype(getattr(ml_dtypes, source, source))
    if target in ("int4", "uint4"):  # onnxruntime rounds; the text and onnx.reference cut off, as we do
        values = values[np.isfinite(values.astype(np.float32)) & (np.trunc(values) == values)]
    if target != "bool" and not is_float(target):
        low, high = limits(target)
        values = np.array([v for v in values if np.isfinite(float(v)) and low <= int(float(v)) <= high], values.dtype)
    return values


@st.composite
def cast(draw: Draw) -> Case:
    """Types that numpy lacks are made of float32, and handed out as it."""
    source, target = draw(st.sampled_from(list(KINDS))), draw(st.sampled_from(list(KINDS)))
    first = {"bool": 9}.get(source, 7)
    opset = draw(opsets(21 if "4" in (source[-1], target[-1]) and "int4" in source + target else first))
    if "float8" in source + target:
        opset = max(opset, 19)
    if "bfloat16" in source + target:
        opset = max(opset, 13)
    values = candidates(source, target)
    shape = draw(shapes(0, 3, (0, 4)))
    x = np.asarray(np.random.default_rng(draw(SEEDS)).choice(values, shape))
    attrs: dict[str, Any] = {"to": int(KINDS[target])}
    if target.startswith("float8") and draw(st.booleans()):
        attrs["saturate"] = draw(st.integers(0, 1))
    case = draw(placed("Cast", [x.astype(np.float32) if source in NARROW else x], attrs, opset))
    return replace(
        case,
        before=int(KINDS[source]) if source in NARROW else None,
        after=int(TensorProto.FLOAT) if target in NARROW else None,
    )


TEXTS = ["0", "1", "-1", "1.5", "-2.25", "1e3", "100", "inf", "-inf", "nan", "INF", "NaN", "3.14159", "1e-5"]


@st.composite
def text(draw: Draw) -> Case:
    opset, kind = draw(opsets(9)), draw(st.sampled_from(["float32", "float64", *INTEGERS, "bool", "float16"]))
    shape = draw(shapes(0, 3, (0, 4)))
    rng = np.random.default_rng(draw(SEEDS))
    if draw(st.booleans()):
        x = np.asarray(rng.choice(candidates(kind, kind), shape))
        return draw(placed("Cast", [x], {"to": int(TensorProto.STRING)}, opset))
    fitting = TEXTS if is_float(kind) else ["0", "1", "100"] + ([] if kind.startswith(("u", "b")) else ["-1"])
    x = np.asarray(rng.choice(np.array(fitting, object), shape), object)
    return draw(placed("Cast", [x], {"to": int(KINDS[kind])}, opset))


QUANTISED = {"int8": 10, "uint8": 10, "int16": 21, "uint16": 21, "int4": 21, "uint4": 21, "float8_e4m3fn": 19}


@st.composite
def scales(draw: Draw, shape: tuple[int, ...], opset: int) -> tuple[list[int], dict[str, Any]]:
    """The shape of a scale (of a tensor, along an axis, by blocks), and the attributes that say which."""
    kinds = [0] + ([1] if opset >= 13 and shape else []) + ([2] if opset >= 21 and shape else [])
    kind = draw(st.sampled_from(kinds))
    if kind == 0:
        return (draw(st.sampled_from([[], [1]])) if opset >= 13 else []), {}
    axis = draw(axis_of(len(shape)))
    if kind == 1:
        return [shape[axis]], {"axis": axis}
    block = draw(st.integers(1, shape[axis]))
    scaled = list(shape)
    scaled[axis] = -(-shape[axis] // block)
    return scaled, {"axis": axis, "block_size": block}


def halves(shape: Any, rng: np.random.Generator, powers: bool) -> Array:
    """Scales: powers of two, by which quotients are ties, or any."""
    return np.asarray(2.0 ** rng.integers(-3, 2, shape) if powers else rng.uniform(0.05, 2, shape)).astype(np.float32)


@st.composite
def quantize(draw: Draw) -> Case:
    kind = draw(st.sampled_from(list(QUANTISED)))
    opset, shape = draw(opsets(QUANTISED[kind])), draw(shapes(1, 3))
    scaled, attrs = draw(scales(shape, opset))
    rng = np.random.default_rng(draw(SEEDS))
    x = np.asarray(rng.integers(-600, 600, shape) / 4).astype(np.float32)
    zero: Any = np.zeros(scaled, kind if kind in INTEGERS else getattr(ml_dtypes, kind))
    if not is_float(kind):
        low, high = limits(kind)
        zero = np.asarray(rng.integers(low, high + 1, scaled)).astype(zero.dtype)
    if opset >= 19 and is_float(kind) and draw(st.booleans()):
        attrs["saturate"] = draw(st.integers(0, 1))
    if kind == "uint8" and draw(st.booleans()):
        zero = None
    narrow = kind in NARROW
    inputs = [x, halves(scaled, rng, draw(st.booleans())), zero]
    case = draw(placed("QuantizeLinear", inputs, attrs, opset, constant=[2] if narrow else []))
    return replace(case, after=int(TensorProto.FLOAT) if narrow else None)


@st.composite
def dequantize(draw: Draw) -> Case:
    kind = draw(st.sampled_from([*QUANTISED, "int32"]))
    opset, shape = draw(opsets(QUANTISED.get(kind, 10))), draw(shapes(1, 3))
    scaled, attrs = draw(scales(shape, opset))
    rng = np.random.default_rng(draw(SEEDS))
    narrow = kind in NARROW
    dtype = np.dtype(getattr(ml_dtypes, kind)) if narrow else np.dtype(kind)
    low, high = (-8, 8) if is_float(kind) else (-1000, 1000) if kind == "int32" else limits(kind)
    x = np.asarray(rng.integers(low, high + 1, shape)).astype(dtype)
    zero = np.asarray(rng.integers(low, high + 1, scaled)).astype(dtype)
    if kind == "int32" or is_float(kind):
        zero = np.zeros_like(zero)
    inputs = [x.astype(np.float32) if narrow else x, halves(scaled, rng, draw(st.booleans()))]
    inputs += [zero] if draw(st.booleans()) else []
    case = draw(placed("DequantizeLinear", inputs, attrs, opset, constant=[2] if narrow else []))
    return replace(case, before=int(KINDS[kind]) if narrow else None)


@st.composite
def dynamic(draw: Draw) -> Case:
    x = draw(numbers(draw(shapes(1, 3)), low=-3, high=draw(st.sampled_from([-1, 0.1, 5]))))
    return draw(placed("DynamicQuantizeLinear", [x], {}, draw(opsets(11)), 3, rtol=1e-6))


test_cast = agreement(cast(), 200)
test_cast_of_text = agreement(text(), 48)
test_quantize = agreement(quantize(), 80)
test_dequantize = agreement(dequantize(), 80)
test_dynamic_quantize = agreement(dynamic(), 24)
