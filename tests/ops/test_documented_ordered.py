"""Operators on bytes in cublasLt's orders, against what NVIDIA's and onnxruntime's documentation says, in numpy.

None of these was run against onnxruntime, whose kernels are for CUDA. The numbers of LayerNormalization are those of
its own test.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxgen.errors import OnnxgenError
from tests.ops.fuzz import floats
from tests.ops.harness import Ran, generate, refusal, run_model, run_node

F = np.float32
MICROSOFT = "com.microsoft"
COL, ROW, COL32, TILES8, TILES32 = range(5)
SHAPES = {COL: (3, 5, 6), ROW: (3, 5, 6), COL32: (3, 5, 64), TILES8: (2, 24, 64), TILES32: (2, 64, 96)}


def run(op: str, inputs: list[Any], attrs: dict[str, Any], expected: Any, **kwargs: Any) -> Ran:
    return run_node(op, inputs, attrs, domain=MICROSOFT, expected=[expected], **kwargs)


def refused(op: str, inputs: list[Any], attrs: dict[str, Any]) -> str:
    text = refusal(op, inputs, attrs, domain=MICROSOFT)
    assert f"node node (com.microsoft.{op}" in text
    return text


def number(value: float) -> Any:
    return np.array(value, F)


def int8(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).integers(-128, 128, shape).astype(np.int8)


def byte(x: Any) -> Any:
    return np.clip(np.rint(x), -128, 127).astype(np.int8)


def offset(order: int, r: int, c: int, rows: int, columns: int) -> int:
    """Where an element of a matrix lies."""
    if order == ROW:
        return r * columns + c
    if order == COL:
        return c * rows + r
    panel = c // 32 * 32 * rows
    if order == COL32:
        return panel + r * 32 + c % 32
    if order == TILES8:  # inner tiles of 4 columns by 4 even or 4 odd rows
        return panel + r // 8 * 256 + r % 2 * 128 + c % 32 // 4 * 16 + r % 8 // 2 * 4 + c % 4
    within, c = r % 32, c % 32
    return panel + r // 32 * 1024 + ((within % 8 // 2 * 4 + within // 8) * 2 + within % 2) * 32 + c


def laid_out(x: Any, order: int) -> Any:
    """Matrices in an order, under the same shape."""
    rows, columns = x.shape[-2:]
    found = np.zeros((math.prod(x.shape[:-2]), rows * columns), x.dtype)
    for matrix, given in zip(found, x.reshape(-1, rows, columns)):
        for r in range(rows):
            for c in range(columns):
                matrix[offset(order, r, c, rows, columns)] = given[r, c]
    return found.reshape(x.shape)


# ---- into an order, and back -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_quantized(order: int, dtype: Any, dynamic: bool) -> None:
    """Half of all numbers lie between two; some are too large."""
    scale = number(0.0625)
    x = (np.random.default_rng(0).integers(-300, 300, SHAPES[order]) / 32).astype(dtype)
    expected = laid_out(byte(x.astype(F) / scale), order)
    attrs = {"order_input": ROW, "order_output": order}
    run("QuantizeWithOrder", [x, scale], attrs, expected, initializers={1}, dynamic=dynamic)
    if order != TILES8 and order != TILES32:
        run("QuantizeWithOrder", [x[0, 0], scale], attrs, byte(x[0, 0].astype(F) / scale))


def test_quantized_by_the_inverse() -> None:
    """In float32; in float16 where numbers of it come to lie in columns of 32."""
    x, scale = floats(4, 64).astype(np.float16), number(0.0137)
    half = byte(x * (1 / scale).astype(np.float16))
    single = byte(x.astype(F) * (1 / scale))
    assert (half != single).any()
    run("QuantizeWithOrder", [x, scale], {"order_input": 1, "order_output": 2}, laid_out(half, COL32))
    run("QuantizeWithOrder", [x, scale], {"order_input": 1, "order_output": 1}, single)


@pytest.mark.parametrize("order", [ROW, COL32])
@pytest.mark.parametrize("to, dtype", [(1, np.float32), (10, np.float16)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_dequantized(order: int, to: int, dtype: Any, dynamic: bool) -> None:
    q, scale = int8(2, 5, 64), number(0.0137)
    wide = scale.astype(np.float16) * q.astype(np.float16) if order == COL32 and to == 10 else q * scale
    attrs = {"order_input": order, "order_output": ROW, "to": to}
    expected = wide.astype(dtype)
    run("DequantizeWithOrder", [laid_out(q, order), scale], attrs, expected, rtol=0, atol=0, dynamic=dynamic)


def test_refused_orders() -> None:
    x, scale = floats(4, 40), number(1)
    assert "do not divide into tiles of 32" in refused(
        "QuantizeWithOrder", [x, scale], {"order_input": 1, "order_output": 2}
    )
    assert "orders 2, 1" in refused("QuantizeWithOrder", [x, scale], {"order_input": 2, "order_output": 1})
    assert "orders 1, 5" in refused("QuantizeWithOrder", [x, scale], {"order_input": 1, "order_output": 5})
    attrs = {"order_input": 0, "order_output": 1, "to": 1}
    assert "CUDA kernels take" in refused("DequantizeWithOrder", [int8(4, 40), scale], attrs)


# ---- between bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scales", [(0.03125, 0.015625), (0.05, 0.02)])
def test_gelu(scales: tuple[float, float]) -> None:
    """Of every number there is."""
    x = np.arange(-128, 128).astype(np.int8).reshape(4, 64)
    given, made = map(number, scales)
    wide = x * given
    gelu = wide * F(0.5) * (1 + np.vectorize(math.erf)(wide / F(math.sqrt(2))).astype(F))
    expected = byte(gelu * (1 / made))
    run("QOrderedGelu", [x, given, made], {}, expected)
    run("QOrderedGelu", [x, given, made], {"order_X": 2, "order_Y": 2}, expected, initializers={1, 2}, dynamic=True)
    assert "order_Y 1 must be order_X 2" in refused("QOrderedGelu", [x, given, made], {"order_X": 2, "order_Y": 1})


X = """-103 -24 -11 125 103 -117 44 -109 27 122 113 0 -7 26 110 -34
    28 -61 -107 -35 -54 69 -3 -58 -119 61 -19 -115 35 76 16 54"""
GAMMA = """0.9536133 0.9160156 1.3310547 1.0068359 0.8095703 1.0126953 0.8876953 1.4316406 1.0947266 1.0498047 0.7373047
    1.0615234 1.015625 1.0751953 1.0068359 1.0908203 1.2011719 1.1962891 0.91796875 1.0947266 1.3183594 1.0185547
    1.0791016 1.0273438 0.8364258 0.94873047 1.0292969 1.09375 1.0371094 1.1240234 1.4384766 1.0068359"""
BETA = """
    0.01411438 0.18273926 -0.12414551 0.09887695 -0.1114502 -0.08227539 -0.04598999 -0.11322021 0.12731934 -0.06591797
    -0.00662994 0.04962158 -0.04281616 0.07476807 0.23010254 0.1036377 0.10852051 0.10919189 -0.02905273 -0.0512085
    -0.1194458 0.02661133 0.05789185 -0.05239868 0.17907715 -0.01765442 -0.12255859 -0.09729004 0.06591797 0.02258301
    -0.01844788 -0.11999512"""
Y = """-84 -8 -22 114 64 -108 30 -128 33 105 71 2 -10 28 109 -26
    35 -57 -87 -37 -70 61 0 -56 -75 48 -26 -115 35 74 17 38"""


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("stored", [False, True])
def test_layer_norm(dtype: Any, stored: bool) -> None:
    """The numbers of onnxruntime's own test."""
    x, y = (np.array(row.split(), np.int8).reshape(1, 1, 32).repeat(2, 1).copy() for row in (X, Y))
    gamma, beta = (np.array(row.split(), dtype) for row in (GAMMA, BETA))
    inputs = [x, number(1), gamma, beta, number(1 / 64)]
    attrs = {"axis": -1, "epsilon": 1e-5}
    ran = run("QOrderedLayerNormalization", inputs, attrs, y, initializers={1, 2, 3, 4} if stored else set())
    if stored and dtype == np.float32:
        assert "nn.LayerNorm(32" in ran.source


def test_layer_norm_without_a_bias() -> None:
    x, gamma, given, made = int8(2, 3, 8), floats(8), number(0.1), number(0.02)
    wide = x * given
    centred = wide - wide.mean(-1, keepdims=True)
    expected = byte(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + F(1e-3)) * gamma * (1 / made))
    inputs = [x, given, gamma, None, made]
    run("QOrderedLayerNormalization", inputs, {"epsilon": 1e-3}, expected, dynamic=True)
    assert "orders 2, 2" in refused("QOrderedLayerNormalization", inputs, {"order_X": 2, "order_Y": 2})


# ---- products --------------------------------------------------------------------------------------------------------


def product(a: Any, b: Any, factor: Any) -> Any:
    return (a.astype(np.int64) @ b.astype(np.int64)).astype(F) * factor


def turned(x: Any, order: int = ROW) -> Any:
    """A right operand as it is stored: transposed, in an order, under its own shape."""
    return laid_out(x.swapaxes(-1, -2), order).reshape(x.shape)


@pytest.mark.parametrize("a_shape, b_shape", [((5, 32), (32, 7)), ((3, 5, 32), (1, 32, 7)), ((3, 5, 32), (3, 32, 7)),
                                              ((5, 32), (1, 32, 7)), ((3, 5, 32), (32, 7))])  # fmt: skip
@pytest.mark.parametrize("added", ["", "bias", "both"])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_matmul(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], added: str, per_column: bool, dynamic: bool
) -> None:
    a, b = int8(*a_shape), int8(*b_shape, seed=1)
    a_scale, y_scale, c_scale = number(1 / 32), number(1.7), number(2.3)
    b_scale = np.random.default_rng(0).uniform(0.01, 0.05, 7).astype(F) if per_column else number(1 / 32)
    factor = b_scale * (a_scale / y_scale) if per_column else a_scale * b_scale / y_scale
    made = product(a, b, factor).reshape(*a_shape[:-1], 7)
    bias = floats(7) * 9 if added else None
    c = int8(1, 5, 7, seed=2) if added == "both" else None
    made = made if bias is None else made + bias * (1 / y_scale)
    made = made if c is None else made + c.reshape(1, 5, 7)[(0,) * (len(a_shape) == 2)] * (c_scale / y_scale)
    inputs = [a, a_scale, turned(b), b_scale, y_scale, bias, c, None if c is None else c_scale]
    attrs = {"order_A": ROW, "order_B": COL, "order_Y": ROW}
    stored = {i for i in (1, 2, 3, 4, 5, 7) if inputs[i] is not None}
    run("QOrderedMatMul", inputs, attrs, byte(made), initializers=stored, dynamic=dynamic)


@pytest.mark.parametrize("order", [TILES8, TILES32])
@pytest.mark.parametrize("dynamic", [False, True])
def test_matmul_of_tiles(order: int, dynamic: bool) -> None:
    a, b, c = int8(2, 5, 64), int8(64, 32, seed=1), int8(2, 5, 32, seed=2)
    scales = number(1 / 32), number(1 / 32), number(2), number(4)
    expected = byte(product(a, b, scales[0] * scales[1] / scales[2]) + c * (scales[3] / scales[2]))
    inputs = [
        laid_out(a, COL32),
        scales[0],
        turned(b, order),
        scales[1],
        scales[2],
        None,
        laid_out(c, COL32),
        scales[3],
    ]
    attrs = {"order_A": COL32, "order_B": order, "order_Y": COL32}
    run("QOrderedMatMul", inputs, attrs, laid_out(expected, COL32), dynamic=dynamic)
    run("QOrderedMatMul", inputs, attrs, laid_out(expected, COL32), initializers={1, 2, 3, 4, 7})


def test_refused_products() -> None:
    scales = number(1), number(1)
    inputs = [int8(4, 32), scales[0], int8(32, 32), scales[1], scales[0]]
    assert "orders 2, 0, 2" in refused("QOrderedMatMul", inputs, {"order_A": 2, "order_B": 0, "order_Y": 2})
    tiled = {"order_A": 2, "order_B": 3, "order_Y": 2}
    assert "a bias is not defined for a tiled product" in refused("QOrderedMatMul", [*inputs, floats(32)], tiled)
    narrow = [int8(4, 32), scales[0], int8(32, 12), scales[1], scales[0]]
    assert "do not divide into tiles of 8" in refused("QOrderedMatMul", narrow, tiled)
    narrow[2] = int8(32, 8)
    assert "do not divide into tiles of 32" in refused("QOrderedMatMul", narrow, tiled)


# ---- attention -------------------------------------------------------------------------------------------------------


def attention_inputs(mask: Any) -> tuple[list[Any], dict[str, Any]]:
    """Of 2 sequences of 5 tokens of 6 numbers, to 2 heads of 4."""
    weights = [int8(6, 8, seed=s) for s in (1, 2, 3)]
    scales = [number(0.004), np.random.default_rng(0).uniform(0.002, 0.006, 8).astype(F), number(0.005)]
    biases = [floats(8, seed=s) for s in (4, 5, 6)]
    gemms = [number(s) for s in (0.021, 0.019, 0.017)]
    sides = [number(0.031), number(1 / 127), number(0.012)]
    inputs = [int8(2, 5, 6), number(0.02), *gemms, *map(turned, weights), *scales, *biases, *sides, mask]
    return inputs, {"num_heads": 2, "order_input": ROW, "order_weight": COL, "order_output": ROW}


def attended(inputs: list[Any]) -> Any:
    x, x_scale = inputs[:2]
    made = []
    for i in range(3):
        to, weight, scale, bias = (inputs[start + i] for start in (2, 5, 8, 11))
        weight = weight.reshape(8, 6).T
        rounded = byte(product(x, weight, scale * (x_scale / to)) + bias * (1 / to))
        made.append(rounded.reshape(2, 5, 2, 4).transpose(0, 2, 1, 3))
    (q, k, v), (score, probability, out), mask = made, inputs[14:17], inputs[17]
    factor = F(np.float64(inputs[2]) * inputs[3] / score)
    scores = byte(product(q, k.swapaxes(-1, -2), factor)).astype(np.float64)
    powers = np.exp((scores - scores.max(-1, keepdims=True)) * (score.astype(np.float64) / 2)).astype(F)
    powers = powers if mask is None else powers * (mask != 0)[:, None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = powers * F(1 / (powers.sum(-1, keepdims=True).astype(np.float64) * probability))
    probabilities = byte(np.where(np.isnan(parts), 127, parts))
    factor = F(np.float64(probability) * inputs[4] / out)
    return byte(product(probabilities, v, factor)).transpose(0, 2, 1, 3).reshape(2, 5, 8)


@pytest.mark.parametrize("mask", [None, [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], [[0, 0, 0, 0, 0], [0, 1, 1, 0, 1]]])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_attention(mask: list[list[int]] | None, stored: bool, dynamic: bool) -> None:
    inputs, attrs = attention_inputs(None if mask is None else np.array(mask, np.int32))
    kept = set(range(1, 17)) if stored else set()
    run("QOrderedAttention", inputs, attrs, attended(inputs), initializers=kept, dynamic=dynamic)
    run("QOrderedAttention", inputs, attrs | {"qkv_hidden_sizes": [8, 8, 8]}, attended(inputs), initializers=kept)


def test_refused_attention() -> None:
    inputs, attrs = attention_inputs(None)
    assert "causal mask" in refused("QOrderedAttention", inputs, attrs | {"unidirectional": 1})
    assert "heads of different sizes" in refused("QOrderedAttention", inputs, attrs | {"qkv_hidden_sizes": [8, 8, 4]})
    assert "orders 1, 1, 1" in refused("QOrderedAttention", inputs, attrs | {"order_weight": ROW})
    ends = [*inputs[:17], np.array([3, 5], np.int32)]
    assert "[batch, sequence]" in refused("QOrderedAttention", ends, attrs)
    inputs[14] = None
    assert "scale_QKT_gemm or scale_QKT_softmax is missing" in refused("QOrderedAttention", inputs, attrs)


@pytest.mark.parametrize("window, flagged", [(2, [0]), (1, [0, 5]), (2, []), (4, [3])])
@pytest.mark.parametrize("stored", [False, True])
def test_longformer(window: int, flagged: list[int], stored: bool) -> None:
    """In float16, where a sum may be rounded to either side; the projections are exact."""
    heads, size = 2, 3
    x, scales = int8(2, 8, 6), [np.array([s], F) for s in (0.01, 0.02, 0.021, 0.017, 0.025)]
    weights, biases = [int8(6, 18, seed=s) for s in (1, 2)], [floats(18, seed=s) * 20 for s in (3, 4)]
    mask, flags = np.zeros((2, 8), np.float16), np.zeros((2, 8), np.int32)
    mask[1, 6:], flags[0, flagged] = -10000, 1
    sides = []
    for weight, bias, to in zip(weights, biases, scales[2:4]):
        made = byte(product(x, weight, scales[0] * scales[1] / to) + bias)
        wide = (made * to).astype(np.float16).astype(F).reshape(2, 8, 3, heads, size)
        sides.append(wide.transpose(2, 0, 3, 1, 4))
    expected = np.zeros((2, heads, 8, size), F)
    for b in range(2):
        for t in np.flatnonzero(mask[b] == 0):
            seen = [j for j in range(8) if mask[b, j] == 0 and (flags[b, t] or abs(t - j) <= window or flags[b, j])]
            q, k, v = (part[b] for part in sides[flags[b, t]])
            scores = np.exp((k[:, seen] @ q[:, t, :, None]) / math.sqrt(size))
            expected[b, :, t] = (scores / scores.sum(1, keepdims=True) * v[:, seen]).sum(1)
    whole = expected.transpose(0, 2, 1, 3).reshape(x.shape) / scales[4]
    inputs = [x, scales[0], turned(weights[0]), scales[1], biases[0], scales[0], scales[2], mask]
    inputs += [turned(weights[1]), scales[1], biases[1], scales[3], flags, scales[4]]
    orders = {"order_input": ROW, "order_weight": COL, "order_global_weight": COL, "order_output": ROW}
    attrs = {"num_heads": heads, "window": window, **orders}
    ran = run_node(
        "QOrderedLongformerAttention", inputs, attrs, domain=MICROSOFT, compare=False,
        initializers={1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 13} if stored else set(),
    )  # fmt: skip
    made = ran.outputs[0]
    assert made.dtype == np.int8 and made.shape == whole.shape and len(np.unique(made)) > 30
    assert np.abs(made - np.clip(whole, -128, 127)).max() < 0.5 + 128 * 2**-9
    assert (made != byte(whole)).mean() < 0.05
    text = refused("QOrderedLongformerAttention", inputs, attrs | {"order_weight": ROW})
    assert "orders 1, 1, 0, 1" in text


# ---- one after the other ---------------------------------------------------------------------------------------------


def chain(shape: list[Any] | None) -> onnx.ModelProto:
    """Floats to columns of 32, their product by tiles, and floats again."""
    b, scale = turned(int8(64, 32, seed=1), TILES32), number(1 / 32)
    names = ["x", "s"], ["q", "s", "B", "s", "y"], ["z", "y"]
    orders: list[dict[str, int]] = [
        {"order_input": ROW, "order_output": COL32}, {"order_A": COL32, "order_B": TILES32, "order_Y": COL32},
        {"order_input": COL32, "order_output": ROW, "to": 1},
    ]  # fmt: skip
    ops = ["QuantizeWithOrder", "QOrderedMatMul", "DequantizeWithOrder"]
    nodes = [
        helper.make_node(op, given, [made], op, domain=MICROSOFT, **attrs)
        for op, given, made, attrs in zip(ops, names, "qzo", orders)
    ]
    stored = [numpy_helper.from_array(v, n) for n, v in {"B": b, "s": scale, "y": number(2)}.items()]
    given = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "graph", given, [onnx.ValueInfoProto(name="o")], stored)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.parametrize("shape", [[3, 5, 64], ["b", "rows", 64], ["b", "rows", "columns"]])
def test_chain(shape: list[Any]) -> None:
    x = floats(3, 5, 64)
    expected = byte(product(byte(x * 32), int8(64, 32, seed=1), F(1 / 2048))) * F(2)
    ran = run_model(chain(shape), {"x": x})
    np.testing.assert_array_equal(ran.outputs[0], expected)


def test_a_chain_of_unknown_rank() -> None:
    with pytest.raises(OnnxgenError, match="QuantizeWithOrder.*the rank of input x is unknown"):
        generate(chain(None))


# ---- bytes that no schema describes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["QuantizeBFP", "DequantizeBFP"])
def test_unknown_bytes(op: str) -> None:
    text = refused(op, [int8(32).view(np.uint8)], {"bfp_type": 1})
    assert "the layout of the blocks is not documented" in text
    assert "-> generate from the file before" in text and "docs/EXTENDING.md" in text
