"""Rules that compute quantised operators as dequantise, float operator, quantise (see `stands`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.paranoid.claims import Broken, Untold
from onnxgen.paranoid.picture import Made
from onnxgen.paranoid.stands import LIKE, Kind, Stands, roots, rule

INT32 = ir.DataType.INT32


def _like(step: Made, op: str, version: int, without: str = "", **attributes: Any) -> Made:
    """Return a standard node with the attributes of another node, except those that only that one has."""
    kept = {k: a for k, a in step.attributes.items() if k not in without.split()}
    kept |= {k: ir.convenience.convert_attribute(k, v) for k, v in attributes.items()}
    return replace(step, domain="", op=op, version=version, attributes=kept, outputs=step.outputs[:1])


def _run(side: Stands, step: Made, *inputs: Any) -> Any:
    return side.plain(step, list(inputs))[0]


def _at(inputs: list[Any], index: int) -> Any:
    return inputs[index] if index < len(inputs) else None


def _close(side: Stands, step: Made, inputs: list[Any], x: Any, at: tuple[int, int, int], op: str) -> list[Any]:
    """Quantise a node's result. `at`: positions of its scale, its zero point, and an input of the same type."""
    s, z, like = at
    zero = _at(inputs, z)
    like = like if zero is None else z
    dtype = side.dtype(step.inputs[like], inputs[like])
    scales = side.scales(x, inputs[s], zero, dtype)
    stored = side.is_stored(step.input(s)) and side.is_stored(step.input(z))
    return [side.quantised(step.outputs[0], x, scales, dtype, None, op, stored)]


# ---- quantisers ------------------------------------------------------------------------------------------------------


@rule("QuantizeLinear")
def quantize(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    x, zero = inputs[0].astype(np.float64), _at(inputs, 2)
    dtype = side.dtype(None if zero is None else step.inputs[2], zero)
    if zero is None and step.attribute("output_dtype", 0):
        dtype = ir.DataType(int(step.attributes["output_dtype"].value))
    axis, block = int(step.attribute("axis", 1)), int(step.attribute("block_size", 0))
    if dtype == ir.DataType.DOUBLE:
        raise Broken("a zero point of floats")
    scales = side.scales(x, inputs[1], zero, dtype, axis, block)
    kind = side.kinds.get(step.inputs[0])
    stored = all(map(side.is_stored, step.inputs[1:]))
    output = step.outputs[0]
    steps = side.quantised(output, x, scales, dtype, kind.grid if kind else None, side.maker(step.inputs[0]), stored)
    if dtype.is_floating_point() and not step.attribute("saturate", 1):  # numbers that are too large become NaN
        side.kinds[output] = Kind(dtype)
        return [x / scales.scale]
    return [steps]


@rule("DequantizeLinear")
def dequantize(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    axis, block = int(step.attribute("axis", 1)), int(step.attribute("block_size", 0))
    source, zero = step.inputs[0], _at(inputs, 2)
    kind = side.kinds.get(source)
    if (kind is None or kind.dtype is None) and inputs[0].dtype == np.float64:
        raise Broken("floats are dequantised")
    if "output_dtype" in step.attributes:
        scales = side.scales(inputs[0], inputs[1], zero, LIKE, axis, block)
        return [(inputs[0].astype(np.float64) - scales.zero) * scales.scale]
    floats = side.dequantised(step, inputs, (0, 1, 2), axis, block)
    grid = side.scales(floats, inputs[1], zero, side.dtype(source, inputs[0]), axis, block).grid
    if kind is None and source not in (None, step.inputs[1]) and all(map(side.is_stored, step.inputs[1:])):
        ends = [source] if side.is_stored(source) or not grid.is_single else roots(side.picture, source)
        if all(map(side.is_stored, ends)):  # the elements may have been moved since
            side.needless.append(step.name)
    if kind is not None and kind.grid == grid:
        side.needless.append(step.name)
        side.kinds[step.outputs[0]] = Kind(None, kind.grid)
    return [floats]


def _range(x: Any) -> tuple[Any, Any]:
    """Return the scale and zero point of 255 steps over all numbers and 0."""
    low, high = min(x.min(initial=0), 0.0), max(x.max(initial=0), 0.0)
    scale = np.float64((high - low) / 255 or 1.0)
    return scale, np.float64(-low / scale)


@rule("DynamicQuantizeLinear")
def dynamic(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    x = inputs[0].astype(np.float64)
    scale, zero = _range(x)
    scales = side.scales(x, scale, zero, LIKE)
    outputs = [side.quantised(step.outputs[0], x, scales, LIKE, None, "", False), scale, zero]
    if len(step.outputs) > 2:
        side.kinds[step.outputs[2]] = Kind(LIKE)
    return outputs[: len(step.outputs)]


@rule("FakeQuantizeDynamic")
def fake_dynamic(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    scale, zero = _range(inputs[0])
    scales = side.scales(inputs[0], scale, zero, LIKE)
    side.kinds[step.outputs[0]] = Kind(None, scales.grid)
    return [(side.stepped(inputs[0], scales, False) - zero) * scale]


@rule("FakeQuantize")
def fake(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    x, zero, to = inputs[0], _at(inputs, 2), int(step.attribute("to", 0))
    axis, block = int(step.attribute("axis", 1)), int(step.attribute("block", 0))
    if to and not ir.DataType(to).is_floating_point():
        raise Broken("attribute 'to' is not a float type")
    scales = side.scales(x, inputs[1], zero, ir.DataType(to) if to else LIKE, axis, block)
    if not to:
        limits = float(step.attribute("low", -128)), float(step.attribute("high", 127))
        scales = replace(scales, grid=replace(scales.grid, low=limits[0], high=limits[1]))
    kind = side.kinds.get(step.inputs[0])
    side.kinds[step.outputs[0]] = Kind(None, scales.grid)
    steps = side.stepped(x, scales, bool(to) or kind is not None and kind.grid == scales.grid)
    return [(steps - scales.zero) * scales.scale]


# ---- products --------------------------------------------------------------------------------------------------------


def _wide(inputs: list[Any]) -> tuple[Any, Any, Any, Any]:
    """Return two operands and their zero points."""
    a, b, *zeros = (None if v is None else v.astype(np.float64) for v in [*inputs, None, None][:4])
    return a, b, zeros[0], zeros[1]


def _columns(side: Stands, step: Made, inputs: list[Any], at: tuple[int, int, int]) -> Any:
    return side.dequantised(step, inputs, at, inputs[at[0]].ndim - 1)


def _bias(side: Stands, step: Made, inputs: list[Any], at: int, scales: tuple[int, int]) -> Any:
    """Return a bias in the scale of a product."""
    if step.input(at) is None:
        return None
    first, second = (inputs[i].astype(np.float64).reshape(-1) for i in scales)
    return side.note(step.input(at), inputs[at].astype(np.float64) * (first * second), [step.input(i) for i in scales])


@rule("MatMulInteger")
def matmul_integer(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    a, b, a_zero, b_zero = _wide(inputs)
    a_zero = a_zero.reshape(-1, 1) if a_zero is not None and a_zero.ndim == 1 and a_zero.size > 1 else a_zero
    side.kinds[step.outputs[0]] = Kind(INT32)
    return [np.matmul(a - (0 if a_zero is None else a_zero), b - (0 if b_zero is None else b_zero))]


@rule("ConvInteger")
def conv_integer(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    x, w, x_zero, w_zero = _wide(inputs)
    if w_zero is not None:
        w = w - (w_zero.reshape(-1, *[1] * (w.ndim - 1)) if w_zero.size > 1 else w_zero.reshape(()))
    side.kinds[step.outputs[0]] = Kind(INT32)
    return [_run(side, _like(step, "Conv", 11), x - (0 if x_zero is None else x_zero.reshape(())), w)]


@rule("QLinearConv")
def qlinear_conv(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    x, w = side.dequantised(step, inputs, (0, 1, 2)), side.dequantised(step, inputs, (3, 4, 5))
    bias, last = _bias(side, step, inputs, 8, (1, 4)), bool(step.attribute("channels_last", 0))
    convolved = _run(side, _like(step, "Conv", 11, "channels_last"), np.moveaxis(x, -1, 1) if last else x, w, bias)
    return _close(side, step, inputs, np.moveaxis(convolved, 1, -1) if last else convolved, (6, 7, 0), "Conv")


@rule("QLinearMatMul")
def qlinear_matmul(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    product = np.matmul(side.dequantised(step, inputs, (0, 1, 2)), _columns(side, step, inputs, (3, 4, 5)))
    return _close(side, step, inputs, product, (6, 7, 0), "MatMul")


@rule("QGemm")
def qgemm(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    turned = [bool(step.attribute(name, 0)) for name in ("transA", "transB")]
    a, b = side.dequantised(step, inputs, (0, 1, 2)), side.dequantised(step, inputs, (3, 4, 5), 0 if turned[1] else 1)
    bias = _bias(side, step, inputs, 6, (1, 4))
    product = (a.T if turned[0] else a) @ (b.T if turned[1] else b) * float(step.attribute("alpha", 1.0))
    product = product if bias is None else product + bias
    return [product] if _at(inputs, 7) is None else _close(side, step, inputs, product, (7, 8, 0), "Gemm")


@rule("MatMulIntegerToFloat")
def matmul_integer_to_float(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    product = np.matmul(side.dequantised(step, inputs, (0, 2, 4)), _columns(side, step, inputs, (1, 3, 5)))
    return [product if _at(inputs, 6) is None else product + inputs[6].astype(np.float64)]


@rule("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    x = inputs[0].astype(np.float64)
    scale, zero = _range(x)
    if side.rounds:
        x = (side.stepped(x, side.scales(x, scale, zero, LIKE), False) - zero) * scale
    product = np.matmul(x, _columns(side, step, inputs, (1, 2, 3)))
    return [product if _at(inputs, 4) is None else product + inputs[4].astype(np.float64)]


@rule("QAttention")
def qattention(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    x, w = side.dequantised(step, inputs, (0, 3, 6)), _columns(side, step, inputs, (1, 4, 7))
    plain = replace(step, op="Attention")
    return list(side.plain(plain, [x, w, inputs[2], _at(inputs, 5), _at(inputs, 8)]))


@rule("MatMulNBits")
def matmul_nbits(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    """Compute MatMulNBits in floats. The weight is what onnxruntime makes of the identity matrix."""
    kept = {name: a for name, a in step.attributes.items() if name != "accuracy_level"}
    _note_product(side, step, inputs, kept)
    return list(side.plain(replace(step, attributes=kept), inputs))


@rule("MatMulBnb4")
def matmul_bnb4(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    _note_product(side, step, inputs, step.attributes)
    return list(side.plain(step, inputs))


def _note_product(side: Stands, step: Made, inputs: list[Any], attributes: dict[str, ir.Attr]) -> None:
    if not side.floats.get(step.inputs[1]):  # type: ignore[arg-type]
        one = [np.eye(int(step.attributes["K"].value)), *inputs[1:4]]
        weight = side.plain(replace(step, attributes=attributes), one)[0].T
        side.note(step.inputs[1], weight, step.inputs[2:4])


# ---- one or two operands ---------------------------------------------------------------------------------------------


@rule("QLinearAdd", "QLinearMul")
def qlinear_two(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    a, b = side.dequantised(step, inputs, (0, 1, 2)), side.dequantised(step, inputs, (3, 4, 5))
    op = step.op.removeprefix("QLinear")
    return _close(side, step, inputs, a + b if op == "Add" else a * b, (6, 7, 0), op)


@rule("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax")
def qlinear_one(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    op = step.op.removeprefix("QLinear")
    standard = _like(step, op, 16 if op == "LeakyRelu" else 13, "opset")
    if op == "Softmax" and "axis" not in step.attributes:
        standard = _like(step, op, 13, "opset", axis=-1)
    return _close(side, step, inputs, _run(side, standard, side.dequantised(step, inputs, (0, 1, 2))), (3, 4, 0), op)


@rule("QLinearAveragePool", "QLinearGlobalAveragePool")
def qlinear_pool(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    op, last = step.op.removeprefix("QLinear"), bool(step.attribute("channels_last", 0))
    if step.attribute("ceil_mode", 0) and step.attribute("count_include_pad", 0):
        raise Untold(f"{step.op} that counts what lies behind its padding")
    x = side.dequantised(step, inputs, (0, 1, 2))
    pooled = _run(
        side, _like(step, op, 11 if op == "AveragePool" else 1, "channels_last"), np.moveaxis(x, -1, 1) if last else x
    )
    return _close(side, step, inputs, np.moveaxis(pooled, 1, -1) if last else pooled, (3, 4, 0), op)


@rule("QLinearConcat")
def qlinear_concat(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    parts = [side.dequantised(step, inputs, (i, i + 1, i + 2)) for i in range(2, len(inputs), 3)]
    return _close(side, step, inputs, np.concatenate(parts, int(step.attribute("axis", 0))), (0, 1, 2), "Concat")


@rule("QLinearWhere")
def qlinear_where(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    a, b = side.dequantised(step, inputs, (1, 2, 3)), side.dequantised(step, inputs, (4, 5, 6))
    return _close(side, step, inputs, np.where(inputs[0], a, b), (7, 8, 1), "Where")


@rule("QEmbedLayerNormalization")
def qembed(side: Stands, step: Made, inputs: list[Any]) -> list[Any]:
    """Compute quantised embeddings. Scales of the tables start at the ninth input, their zero points follow."""
    pairs = {2: (8, 13), 3: (9, 14), 4: (10, 15), 5: (11, 16), 6: (12, 17)}
    tables = {i: side.dequantised(step, inputs, (i, *at)) for i, at in pairs.items() if inputs[i] is not None}
    operands = [inputs[0], inputs[1], *(tables.get(i) for i in range(2, 7)), inputs[7]]
    return list(side.plain(replace(step, op="EmbedLayerNormalization"), operands))
