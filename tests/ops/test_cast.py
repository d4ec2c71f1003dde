"""Conversions against onnxruntime and against ONNX's stated outputs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxgen.helpers.casting import float4
from tests.ops.harness import (
    assert_same,
    generate,
    instantiate,
    node_model,
    refusal,
    run_model,
    run_node,
    run_onnxruntime,
    to_numpy,
    unbound_names,
)
from tests.support.tiers import drawn

T = ir.DataType
PLAIN = [
    "float32",
    "float64",
    "float16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
]


@pytest.mark.parametrize("name", ["Cast", "CastLike", "BitCast"])
def test_every_schema_version_binds(name: str) -> None:
    assert unbound_names(name) == []


@pytest.mark.parametrize("source", PLAIN)
@pytest.mark.parametrize("target", PLAIN)
def test_between_plain_types(source: str, target: str) -> None:
    x = np.array([[0, 1, 2.75, 100]]).astype(source)
    to = T.from_numpy(np.dtype(target)).value
    run_node("Cast", [x], {"to": to}, dynamic=True)
    run_node("CastLike", [x, np.zeros(1, target)], expected=[x.astype(target)])


def test_what_does_not_fit() -> None:
    """Undefined in ONNX; torch and onnxruntime agree where the processor says what happens."""
    x = np.array([np.nan, np.inf, -1.5, 3e9, 300, -2], np.float32)
    for to in (T.INT32, T.INT64, T.INT8, T.UINT8, T.BOOL, T.FLOAT16):
        run_node("Cast", [x], {"to": to.value})
    y = np.array([300, -1, 2**40 + 5], np.int64)
    for to in (T.INT32, T.INT8, T.UINT8, T.UINT32, T.UINT64, T.FLOAT):
        run_node("Cast", [y], {"to": to.value})


def test_bfloat16() -> None:
    x = np.array([1.0, 3.14159, 1e30, np.nan], np.float32)
    run_node("Cast", [x], {"to": T.BFLOAT16.value}, expected=[x.astype(ml_dtypes.bfloat16)])
    y = x.astype(ml_dtypes.bfloat16)
    run_node("Cast", [y], {"to": T.FLOAT.value}, expected=[y.astype(np.float32)])


def test_type_as_text_of_opset_1() -> None:
    run_node("Cast", [np.array([1.5, 2], np.float32)], {"to": "INT64"}, opset=1, expected=[np.array([1, 2])])


def test_same_type_is_no_code() -> None:
    assert ".float()" not in run_node("Cast", [np.zeros(2, np.float32)], {"to": 1}).forward


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_float8(name: str, saturate: int) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    top = float(ml_dtypes.finfo(dtype).max)
    x = np.array([0, -0.0, 0.1, 1, top, -top, top * 1.01, top * 2, -top * 8, np.inf, np.nan, 1e-9], np.float32)
    expected = (np.clip(x, -top, top) if saturate else x).astype(dtype)
    attrs = {"to": T.from_numpy(dtype).value, "saturate": saturate}
    run_node("Cast", [x], attrs, expected=[expected])
    run_node("Cast", [expected], {"to": T.FLOAT16.value}, expected=[expected.astype(np.float16)])


@given(st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=20))
@settings(max_examples=drawn(60), deadline=None)
def test_float4(values: list[float]) -> None:
    x = np.array(values, np.float32)
    expected = x.astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert np.array_equal(float4(torch.from_numpy(x)).numpy(), expected)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("round_mode", ["up", "down", "nearest"])
def test_float8_e8m0(saturate: int, round_mode: str) -> None:
    """Against onnxruntime, which hands such tensors out only by way of another Cast."""
    powers = [2.0**e for e in (-149, -128, -127, -126, 0, 5, 127)]
    numbers = [f * p for p in powers for f in (1, 1.2, 1.5, 1.75) if f * p < 3.4e38]
    x = np.array([*numbers, 0, -0.0, -3, 3.4e38, np.inf, -np.inf, np.nan], np.float32)
    for source in (x, x.astype(np.float16), x.astype(np.float64)):
        attrs = {"to": T.FLOAT8E8M0.value, "saturate": saturate, "round_mode": round_mode}
        model = node_model("Cast", [source], attrs, opset=24)
        model.graph.node[0].output[0] = "between"
        model.graph.node.append(onnx.helper.make_node("Cast", ["between"], ["o0"], to=T.FLOAT.value))
        model.graph.output[0].type.tensor_type.elem_type = T.FLOAT.value
        (expected,) = run_onnxruntime(model, {"i0": source})
        assert_same(run_model(model, {"i0": source}).outputs[0], expected)


@pytest.mark.parametrize("name", ["float8_e8m0fnu", "float4_e2m1fn", "float8_e4m3fnuz", "bfloat16"])
@pytest.mark.parametrize("count", [6, 100])
def test_constants_of_narrow_floats(name: str, count: int) -> None:
    """In the source and in the sidecar."""
    x = np.tile([0.5, 1, 2, 4, 2, 0.5], 20)[:count].astype(getattr(ml_dtypes, name))
    run_node("Cast", [x], {"to": 1}, opset=24, initializers={0}, expected=[x.astype(np.float32)])


def test_small_integers_keep_the_lowest_bits() -> None:
    x = np.array([-9, -8, -1, 0, 7, 8, 15, 16, 100], np.int32)
    wrapped = ((x & 15) ^ 8) - 8
    run_node("Cast", [x], {"to": T.INT4.value}, expected=[wrapped.astype(np.int8)])
    run_node("Cast", [x], {"to": T.UINT4.value}, expected=[(x & 15).astype(np.uint8)])


def test_refusals() -> None:
    assert "between strings and numbers of this type" in refusal(
        "Cast", [np.zeros(2, np.complex64)], {"to": T.STRING.value}
    )
    assert "float8e8m0" in refusal("BitCast", [np.zeros(2, np.uint8)], {"to": T.FLOAT8E8M0.value}, 26)


@pytest.mark.parametrize("name", PLAIN)
def test_numbers_as_text(name: str) -> None:
    x = np.array([[0, 1, 100, 77]]).astype(name)
    if np.dtype(name).kind == "f":
        more = [-0.0, 0.1, 1 / 3, 1e10, 1e-5, 123456789, 1.5e-45, 3.4e38, np.inf, -np.inf, np.nan, 1e20, 1e16]
        with np.errstate(over="ignore"):
            x = np.concatenate([x[0], np.array(more).astype(name)])
    run_node("Cast", [x], {"to": T.STRING.value}, dynamic=True)


READ = [
    "1",
    "1.5",
    "-2",
    " 3",
    "4 ",
    "1e3",
    "INF",
    "inf",
    "-INF",
    "+inf",
    "NaN",
    "Infinity",
    "0x10",
    "0x1.8p3",
    "1e-46",
]
READ += [
    "99999999999",
    "300",
    "-1",
    "1.9999999999",
    "+5",
    "1_0",
    "5x",
    "0.1",
    "16777217",
    ".5",
    "5.",
    "1e",
    "-0",
    "\t7",
]
READ += ["18446744073709551615", "9223372036854775807", "-9223372036854775808", "1.00000017881393432617187499"]
UNREAD = ["", "abc", "True", "-", ".", "1e400", "99999999999999999999999"]


@pytest.mark.parametrize("name", PLAIN)
def test_numbers_from_text(name: str) -> None:
    """One at a time: of several, onnxruntime refuses all where it refuses one, and so do we."""
    attrs = {"to": T.from_numpy(np.dtype(name)).value}
    model = node_model("Cast", [np.array([["1"]], object)], attrs)
    network = instantiate(generate(model))
    for text in READ + UNREAD:
        x = np.array([[text]], object)
        try:
            (expected,) = run_onnxruntime(model, {"i0": x})
        except Exception as error:
            assert "sto" in str(error), error  # C++'s stod, stoll, stoull
            with pytest.raises(ValueError, match="number|integer"):
                network(x)
            continue
        assert_same(to_numpy(network(x)), expected)


def test_text_like_text() -> None:
    x, numbers = np.array(["1", "2.5"], object), np.array([1.0, 2.5], np.float32)
    run_node("CastLike", [numbers, np.array(["x"], object)], expected=[x])
    run_node("CastLike", [x, numbers], expected=[numbers])
