"""Layers of onnxruntime on drawn shapes, types and attributes, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ops.drawn import SEEDS, Draw, Drawn, check

ACTIVATIONS = ["Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid"]
PARAMETERS = {"LeakyRelu": [0.2], "Clip": [-0.5, 0.7], "HardSigmoid": [0.3, 0.4]}


def _window(d: Draw, last: bool = False) -> tuple[list[int], int, int, dict[str, Any]]:
    """The shape of images, the number of groups, the channels of each, and what a convolution needs."""
    groups, each, rank = d.choice([1, 1, 2, 3]), d.randint(1, 3), d.choice([1, 2, 2])
    kernel = [d.randint(1, 3) for _ in range(rank)]
    sizes = [d.randint(4, 7) for _ in range(rank)]
    shape = [d.randint(1, 2), *([] if last else [groups * each]), *sizes, *([groups * each] if last else [])]
    attrs = {"kernel_shape": kernel, "strides": [d.randint(1, 2) for _ in range(rank)], "group": groups}
    attrs |= {"pads": [d.randint(0, k - 1) for k in kernel * 2]}
    return shape, groups, each, attrs


def _quantised_convolution(d: Draw) -> Drawn:
    last = d.random() < 0.4
    shape, groups, each, attrs = _window(d, last)
    dtype, filters = d.byte(), groups * d.randint(1, 3)
    weight = d.below(64, filters, each, *attrs["kernel_shape"], dtype=np.int8, least=-64)  # products fit in 16 bits
    scale = d.choice([d.scale(), np.array([d.scale() for _ in range(filters)])])
    bias = d.choice([None, d.below(999, filters, dtype=np.int32, least=-999)])
    inputs = [*d.quantised(dtype, *shape), weight, scale, np.array(0, np.int8), *d.measure(dtype)]
    attrs |= {"channels_last": 1} if last else {}
    stored = frozenset(range(1, 8 if bias is None else 9))
    return Drawn([*inputs, *([] if bias is None else [bias])], attrs, stored=stored, close=None)


def _joined(d: Draw) -> Drawn:
    dtype, shape = d.byte(), d.shape()
    axis = d.randrange(len(shape))
    inputs = d.measure(dtype)
    for _ in range(d.randint(1, 3)):
        shape[axis] = d.randint(1, 4)
        inputs += d.quantised(dtype, *shape)
    return Drawn(inputs, {"axis": axis}, close=None)


def _quantised_attention(d: Draw) -> Drawn:
    batch, length, width = d.shape(3)
    heads, size = d.randint(1, 3), d.randint(1, 4)
    weight = d.below(64, width, 3 * heads * size, dtype=np.int8, least=-64)
    past = d.choice([0, 2])
    mask = d.choice([None, np.ones((batch, past + length), np.int32)])
    inputs = [
        d.integers(np.uint8, batch, length, width), weight, d.floats(3 * heads * size), d.scale(), d.scale(), mask,
        np.array(d.randint(0, 255), np.uint8), np.array(0, np.int8),
        *([d.floats(2, batch, heads, past, size)] if past else []),
    ]  # fmt: skip
    attrs = {"num_heads": heads, "unidirectional": d.randint(0, 1)}
    return Drawn(inputs, attrs, 2 if past else 1, frozenset({1, 2, 3, 4, 6, 7}), 1e-3)


def _ids(d: Draw) -> tuple[list[Any], list[list[int]], Any]:
    """Ids and segments, the shapes of the tables and of the norm, and a mask."""
    batch, length, width = d.shape(3)
    words, places = d.randint(2, 9), length + d.randint(0, 3)
    segments = d.choice([None, d.below(2, batch, length, dtype=np.int32)])
    shapes = [[words, width], [places, width], [2, width], [width], [width]]
    mask = d.choice([None, d.below(2, batch, length, dtype=np.int32)])
    return [d.below(words, batch, length, dtype=np.int32), segments], shapes, mask


def _embedding(d: Draw) -> Drawn:
    ids, shapes, mask = _ids(d)
    tables = [d.floats(*shape) for shape in shapes]
    if ids[1] is None:
        tables[2] = None
    stored = frozenset(i for i in range(2, 7) if tables[i - 2] is not None)
    return Drawn([*ids, *tables, mask], {"epsilon": d.choice([1e-5, 1e-12])}, 2, stored)


def _quantised_embedding(d: Draw) -> Drawn:
    ids, shapes, mask = _ids(d)
    tables = [d.integers(np.uint8, *shape) for shape in shapes]
    scales = [d.scale() for _ in tables]
    zeros = [np.array(d.randint(90, 160), np.uint8) for _ in tables]
    given: list[Any] = [[*v[:2], None if ids[1] is None else v[2], *v[3:]] for v in (tables, scales, zeros)]
    stored = frozenset(i for i in range(2, 7) if given[0][i - 2] is not None)
    mask = np.ones(ids[0].shape, np.int32) if mask is None else mask
    return Drawn([*ids, *given[0], mask, *given[1], *given[2]], {"epsilon": 1e-5}, 2, stored, 1e-3)


def _four_bits(d: Draw) -> Drawn:
    block, rows = d.choice([16, 32, 64]), d.randint(1, 6)
    columns = block * d.randint(1, 3)
    packed = d.integers(np.uint8, rows * columns // 2)
    scales = np.abs(d.floats(rows * columns // block)) + np.float32(0.1)
    attrs = {"K": columns, "N": rows, "block_size": block, "quant_type": d.randint(0, 1)}
    return Drawn([d.floats(*d.shape(d.randint(1, 2)), columns), packed, scales], attrs, 1, frozenset({1, 2}), 1e-3)


def _dynamic_pads(d: Draw) -> Drawn:
    shape, groups, each, attrs = _window(d)
    rank = len(attrs["kernel_shape"])
    outputs = d.randint(1, 3)
    inputs = [d.floats(*shape), d.floats(groups * each, outputs, *attrs["kernel_shape"])]
    pads = np.array(attrs.pop("pads"))
    attrs["output_padding"] = [d.randint(0, s - 1) for s in attrs["strides"]]
    bias = d.choice([None, d.floats(groups * outputs)])
    assert rank in (1, 2)
    return Drawn([*inputs, pads, *([] if bias is None else [bias])], attrs, 1, frozenset({1}))


def _one_token(d: Draw) -> Drawn:
    batch, heads, size, room = d.randint(1, 3), d.randint(1, 3), d.choice([4, 8]), d.randint(2, 6)
    width = heads * size
    operands = [d.floats(batch, 1, width) for _ in range(3)]
    length = d.randint(1, room - 1)
    mask = d.choice([None, np.ones((batch, length + 1), np.int32)])
    bias = d.choice([None, d.floats(3 * width)])
    past = [d.floats(batch, heads, room, size) for _ in range(2)]
    inputs = [*operands, mask, None, *past, np.array([length], np.int32), None, None, bias]
    attrs = {"num_heads": heads, "past_present_share_buffer": 1, "scale": d.uniform(0.2, 0.6)}
    return Drawn(inputs, attrs, 3, close=1e-3)


def _activated_convolution(d: Draw) -> Drawn:
    shape, groups, each, attrs = _window(d)
    filters, name = groups * d.randint(1, 3), d.choice(ACTIVATIONS)
    attrs |= {"activation": name} | ({"activation_params": PARAMETERS[name]} if name in PARAMETERS else {})
    bias = d.choice([None, d.floats(filters)])
    inputs = [d.floats(*shape), d.floats(filters, each, *attrs["kernel_shape"])]
    stored = frozenset({1} if bias is None else {1, 2})
    return Drawn([*inputs, *([] if bias is None else [bias])], attrs, 1, stored)


def _activated_product(d: Draw) -> Drawn:
    m, n, k = d.shape(3)
    name, a, b = d.choice(ACTIVATIONS[:4]), d.randint(0, 1), d.randint(0, 1)
    attrs: dict[str, Any] = {"activation": name, "transA": a, "transB": b, "alpha": d.uniform(0.5, 2)}
    attrs |= {"activation_alpha": 0.2} if name == "LeakyRelu" else {}
    c = d.choice([None, d.floats(n), d.floats(m, n), d.floats(1)])
    operands = [d.floats(*([k, m] if a else [m, k])), d.floats(*([n, k] if b else [k, n]))]
    return Drawn([*operands, *([] if c is None else [c])], attrs | {"beta": d.uniform(0.5, 2)})


def _skipped(simplified: bool) -> Callable[[Draw], Drawn]:
    def draw(d: Draw) -> Drawn:
        shape = d.shape(3)
        width = shape[-1]
        skip = d.choice([shape, [1, *shape[1:]], shape[1:]])
        beta = [] if simplified else [d.choice([None, d.floats(width)])]
        bias = d.choice([None, d.floats(width)])
        inputs = [d.floats(*shape), d.floats(*skip), d.floats(width), *beta, bias]
        return Drawn(inputs, {"epsilon": d.choice([1e-5, 1e-3])})

    return draw


def _integer_product(d: Draw) -> Drawn:
    m, n, k = d.shape(3)
    dtype, a, b = d.byte(), d.randint(0, 1), d.randint(0, 1)
    weight = d.below(64, *([n, k] if b else [k, n]), dtype=np.int8, least=-64)
    columns = d.random() < 0.5
    scale = np.array([d.scale() for _ in range(n)]) if columns else d.scale()
    zero = np.zeros(n, np.int8) if columns else np.array(0, np.int8)
    bias = d.choice([None, d.below(999, n, dtype=np.int32, least=-999)])
    inputs = [*d.quantised(dtype, *([k, m] if a else [m, k])), weight, scale, zero, bias]
    is_float = d.random() < 0.4
    attrs = {"transA": a, "transB": b, "alpha": d.choice([1.0, 0.7])}
    return Drawn([*inputs, *([] if is_float else d.measure(dtype))], attrs, close=1e-4 if is_float else None)


def _softmax(d: Draw) -> Drawn:
    dtype, shape, opset = d.byte(), d.shape(), d.choice([12, 13])
    out = [np.array(1 / 256, np.float32), np.array(0 if dtype == np.uint8 else -128, dtype)]
    attrs = {"opset": opset, "axis": d.randrange(len(shape))}
    return Drawn([*d.quantised(dtype, *shape), *out], attrs, 1, frozenset({1, 2, 3, 4}), None)


def _means(d: Draw) -> Drawn:
    dtype, shape = d.byte(), [d.randint(1, 3) for _ in range(2)] + [d.randint(1, 9) for _ in range(2)]
    attrs = {"channels_last": d.randint(0, 1)}
    return Drawn([*d.quantised(dtype, *shape), *d.measure(dtype)], attrs, 1, frozenset({1, 2, 3, 4}), None)


def _sampled(d: Draw) -> Drawn:
    n, c, h, w = d.shape(4)
    grid = d.floats(n, *d.shape(2), 2)
    attrs = {"mode": d.choice(["bilinear", "nearest", "bicubic"]), "align_corners": d.randint(0, 1)}
    return Drawn([d.floats(n, c, h, w), grid], attrs | {"padding_mode": d.choice(["zeros", "border", "reflection"])})


def _padded(d: Draw) -> Drawn:
    shape, mode = d.shape(), d.choice(["constant", "edge", "reflect"])
    most = [size - 1 if mode == "reflect" else 3 for size in shape]
    pads = np.array([d.randint(0, n) for n in most * 2])
    value = [np.array(d.uniform(-1, 1), np.float32)] if mode == "constant" else []
    return Drawn([d.floats(*shape), pads, *value], {"mode": mode}, 1, frozenset({1}))


def _largest(d: Draw) -> Drawn:
    shape, _, _, attrs = _window(d, last=True)
    del attrs["group"]
    attrs["ceil_mode"] = d.randint(0, 1)
    return Drawn([d.integers(d.byte(), *shape)], attrs, close=None)


def _gelu(d: Draw) -> Drawn:
    shape = d.shape()
    return Drawn([d.floats(*shape), *d.choice([[], [d.floats(shape[-1])]])])


def _turned(d: Draw) -> Drawn:
    batch, heads, length, size = d.randint(1, 2), d.randint(1, 3), d.randint(1, 4), d.choice([4, 8])
    packed, room = d.random() < 0.5, length + d.randint(0, 3)
    shape = [batch, length, heads * size] if packed else [batch, heads, length, size]
    partial = d.random() < 0.3 and size == 8
    places = d.choice([np.array([room - length]), d.below(room, batch, length)])
    tables = [d.floats(room, (4 if partial else size) // 2) for _ in range(2)]
    attrs = {"interleaved": d.randint(0, 1)}
    if packed or partial:
        attrs |= {"num_heads": heads} | ({"rotary_embedding_dim": 4} if partial else {})
    if packed and not partial:
        attrs = {"interleaved": attrs["interleaved"]}
    return Drawn([d.floats(*shape), places, *tables], attrs, 1, frozenset({2, 3}))


def _bits(d: Draw) -> Drawn:
    block, rows, bits = d.choice([16, 32]), d.randint(1, 5), d.choice([4, 4, 8])
    columns = d.randint(1, 70)
    blocks = -(-columns // block)
    packed = d.integers(np.uint8, rows, blocks, block * bits // 8)
    zeros = d.choice([None, d.integers(np.uint8, rows, -(-blocks * bits // 8))])
    scales = np.abs(d.floats(rows, blocks)) / np.float32(16)
    attrs = {"K": columns, "N": rows, "bits": bits, "block_size": block}
    inputs = [d.floats(*d.shape(d.randint(1, 2)), columns), packed, scales, *([] if zeros is None else [zeros])]
    return Drawn(inputs, attrs, 1, frozenset({1, 2} if zeros is None else {1, 2, 3}), 1e-3)


OPERATORS: dict[str, Callable[[Draw], Drawn]] = {
    "QLinearConv": _quantised_convolution, "QLinearConcat": _joined, "QAttention": _quantised_attention,
    "EmbedLayerNormalization": _embedding, "QEmbedLayerNormalization": _quantised_embedding, "MatMulBnb4": _four_bits,
    "ConvTransposeWithDynamicPads": _dynamic_pads, "DecoderMaskedMultiHeadAttention": _one_token,
    "FusedConv": _activated_convolution, "FusedGemm": _activated_product, "SkipLayerNormalization": _skipped(False),
    "SkipSimplifiedLayerNormalization": _skipped(True), "QGemm": _integer_product, "QLinearSoftmax": _softmax,
    "QLinearGlobalAveragePool": _means, "GridSample": _sampled, "Pad": _padded, "NhwcMaxPool": _largest,
    "FastGelu": _gelu, "RotaryEmbedding": _turned, "MatMulNBits": _bits,
}  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_drawn(operator: str, seed: int) -> None:
    check(operator, OPERATORS[operator], seed)
