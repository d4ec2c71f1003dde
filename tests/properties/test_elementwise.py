"""Arithmetic by element where the corners are: Mod, Div, Pow, BitShift, Clip, Range, comparisons, rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.properties.judge import EPS, Case, agreement
from tests.properties.strategies import INTEGERS, Array, Draw, opsets, placed, shapes, whole
from tests.properties.test_gather import broadcast

SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, 1.0, -1.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40, 0.1, 7.3]
NUMERIC = ["float32", "float32", "float64", "int32", "int64"]


@st.composite
def special(draw: Draw, shape: Any, dtype: str) -> Array:
    """Numbers with signed zeros, ties of rounding, infinities and NaN; or the ends of an integer type."""
    if np.dtype(dtype).kind in "iu":
        ends = np.iinfo(dtype)
        few = [0, 1, 2, 3, 7, ends.max, ends.max - 1, ends.min, ends.min + 1] + ([-1, -2, -7] if ends.min else [])
        return np.asarray(_pick(draw, np.array(few, dtype), shape))
    return np.asarray(_pick(draw, np.array(SPECIAL), shape)).astype(dtype)


def _pick(draw: Draw, values: Array, shape: Any) -> Any:
    return np.random.default_rng(draw(st.integers(0, 2**16))).choice(values, shape)


@st.composite
def division(draw: Draw) -> Case:
    """Whole numbers are divided towards zero; Mod has the divisor's sign, with `fmod` the dividend's."""
    op, opset = draw(st.sampled_from(["Div", "Mod", "Mod"])), draw(opsets(10))
    a, b = draw(broadcast(2))
    dtype = draw(st.sampled_from([*INTEGERS, "float32", "float64"]))
    x, y = draw(whole(a, dtype, -9, 9)), draw(whole(b, dtype, -4, 4))
    y = np.where(y == 0, np.ones_like(y) * 3, y)
    attrs: dict[str, Any] = {}
    if op == "Mod" and (dtype.startswith("f") or draw(st.booleans())):
        attrs["fmod"] = 1 if dtype.startswith("f") else draw(st.integers(0, 1))
    return draw(placed(op, [x, y], attrs, opset))


@st.composite
def arithmetic(draw: Draw) -> Case:
    """Integers wrap around."""
    op, opset = draw(st.sampled_from(["Add", "Sub", "Mul"])), draw(opsets())
    a, b = draw(broadcast(2))
    dtype = draw(st.sampled_from(["float32", "float64", "int32", "int64", "int8", "uint8", "uint32", "uint64"]))
    return draw(placed(op, [draw(special(a, dtype)), draw(special(b, dtype))], {}, opset))


@st.composite
def power(draw: Draw) -> Case:
    """Bases and exponents of different types; the result has the base's."""
    opset, (a, b) = draw(opsets()), draw(broadcast(2))
    first = draw(st.sampled_from(NUMERIC))
    second = draw(st.sampled_from(NUMERIC)) if opset >= 12 else first
    low = 0 if first.startswith("int") else -3
    x = draw(whole(a, first, 1 if second.startswith("f") or not low else -3, 4))
    y = draw(whole(b, second, low, 3))
    return draw(placed("Pow", [x, y], {}, opset, rtol=8 * EPS if first == "float32" or second == "float32" else 1e-13))


@st.composite
def shift(draw: Draw) -> Case:
    a, b = draw(broadcast(2))
    dtype = draw(st.sampled_from(["uint8", "uint32", "uint64"]))
    x = draw(special(a, dtype))
    bits = np.dtype(dtype).itemsize * 8
    y = draw(whole(b, dtype, 0, draw(st.sampled_from([3, bits - 1]))))
    return draw(placed("BitShift", [x, y], {"direction": draw(st.sampled_from(["LEFT", "RIGHT"]))}, draw(opsets(11))))


@st.composite
def bitwise(draw: Draw) -> Case:
    op, (a, b) = draw(st.sampled_from(["BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"])), draw(broadcast(2))
    dtype = draw(st.sampled_from(INTEGERS))
    inputs = [draw(special(a, dtype))] + ([] if op == "BitwiseNot" else [draw(special(b, dtype))])
    return draw(placed(op, inputs, {}, draw(opsets(18))))


@st.composite
def clip(draw: Draw) -> Case:
    """Bounds as attributes, as inputs, one, none, and the lower one above the upper one."""
    opset = draw(opsets())
    kinds = ["float32", "float32"] + (["float64", "int8", "uint8", "int32", "int64", "uint64"] if opset >= 12 else [])
    dtype = draw(st.sampled_from(kinds))
    x = draw(special(draw(shapes(0, 3, (0, 4))), dtype))
    low, high = (draw(whole([], dtype)) if draw(st.booleans()) else None for _ in range(2))
    if (
        low is None or high is None
    ):  # unbounded: infinities stay (onnx.reference), or are the largest number (onnxruntime)
        x = np.where(np.isinf(x), np.ones_like(x), x)
    if opset < 11:
        attrs = {n: float(v) for n, v in (("min", low), ("max", high)) if v is not None}
        return draw(placed("Clip", [x], attrs, opset))
    return draw(placed("Clip", [x, low, high], {}, opset))


@st.composite
def a_range(draw: Draw) -> Case:
    dtype = draw(st.sampled_from(["int64", "int32", "int16", "float32", "float64"]))
    step = draw(st.integers(-3, 3).filter(bool))
    start, limit = draw(st.integers(-9, 9)), draw(st.integers(-9, 9))
    part = draw(st.sampled_from([1, 2, 4])) if dtype.startswith("f") else 1  # binary fractions: exact
    inputs = [np.array(v / part if part > 1 else v, dtype) for v in (start, limit, step)]
    return draw(placed("Range", inputs, {}, draw(opsets(11))))


@st.composite
def one_number(draw: Draw) -> Case:
    """What the standard fixes to the bit, at ties, zeros, infinities and NaN."""
    firsts = {
        "Round": 11, "Ceil": 7, "Floor": 7, "Sign": 9, "Abs": 7, "Neg": 7, "Relu": 7, "IsNaN": 9, "IsInf": 10,
        "Reciprocal": 7, "Sqrt": 7, "LeakyRelu": 7, "ThresholdedRelu": 10, "Shrink": 9, "Not": 7, "Identity": 7,
        "HardSigmoid": 7, "HardSwish": 14, "Softsign": 7,
    }  # fmt: skip
    op = draw(st.sampled_from(list(firsts)))
    kinds = ["float32"] * 3 + ["float64"] + (["int32", "int64", "int8", "uint8"] if op not in ("IsInf",) else [])
    if op == "Shrink":  # the standard's function body casts bias and lambd to integers, onnxruntime the result
        kinds = kinds[:4]
    dtype = "bool" if op == "Not" else draw(st.sampled_from(kinds))
    shape = draw(shapes(0, 3, (0, 4)))
    attrs: dict[str, Any] = {}
    if op == "IsInf":
        attrs = {n: draw(st.integers(0, 1)) for n in ("detect_negative", "detect_positive") if draw(st.booleans())}
    if op in ("LeakyRelu", "ThresholdedRelu", "HardSigmoid") and draw(st.booleans()):
        attrs = {"alpha": draw(st.sampled_from([0.5, 2.0, 0.125]))}
    if op == "Shrink":
        attrs = {n: draw(st.sampled_from([0.5, 1.0, 0.25])) for n in ("bias", "lambd") if draw(st.booleans())}
    x = draw(whole(shape, dtype) if op in ("Not", "Shrink") else special(shape, dtype))
    if op == "HardSwish":  # torch multiplies before it divides
        x = np.where(np.isfinite(x) & (abs(x.astype(np.float64)) > 1e30), np.ones_like(x), x)
    return draw(placed(op, [x], attrs, draw(opsets(firsts[op])), rtol=2 * EPS, atol=EPS))


@st.composite
def compared(draw: Draw) -> Case:
    op = draw(st.sampled_from(["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Xor"]))
    opset, (a, b) = draw(opsets(12)), draw(broadcast(2))
    if op in ("And", "Or", "Xor"):
        return draw(placed(op, [draw(whole(a, "bool", 0, 1)), draw(whole(b, "bool", 0, 1))], {}, opset))
    dtype = draw(st.sampled_from(["float32", "float64", "int32", "int64", "uint64", "uint8", "int8"]))
    return draw(placed(op, [draw(special(a, dtype)), draw(special(b, dtype))], {}, opset))


@st.composite
def of_several(draw: Draw) -> Case:
    op, count = draw(st.sampled_from(["Max", "Min", "Sum", "Mean"])), draw(st.integers(1, 4))
    opset = draw(opsets(8))
    kinds = ["float32", "float32", "float64"]
    if op in ("Max", "Min") and opset >= 12:
        kinds += ["int32", "int64", "uint32", "uint64", "int8", "uint8"]
    dtype = draw(st.sampled_from(kinds))
    few = special if op in ("Max", "Min") else whole
    inputs = [draw(few(s, dtype)) for s in draw(broadcast(count))]
    return draw(placed(op, inputs, {}, opset, rtol=2 * EPS))


test_division = agreement(division(), 80)
test_arithmetic = agreement(arithmetic(), 40)
test_pow = agreement(power(), 48)
test_bit_shift = agreement(shift(), 40)
test_bitwise = agreement(bitwise(), 24)
test_clip = agreement(clip(), 64)
test_range = agreement(a_range(), 48)
test_one_number = agreement(one_number(), 80)
test_compared = agreement(compared(), 48)
test_of_several = agreement(of_several(), 40)
