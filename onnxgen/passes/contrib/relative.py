"""Biases of attention by how far a key is from a query.

onnxruntime has kernels of these for GPUs only: what is written here follows their documentation.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxgen.errors import WRITER
from onnxgen.passes.contrib.gated import size_of
from onnxgen.passes.contrib.padding import restore_padding
from onnxgen.passes.contrib.writer import Refused, Writer, body

INT64, FLOAT = ir.DataType.INT64.value, ir.DataType.FLOAT.value


@body("RelativePositionBias")
def relative_position_bias(
    g: Writer, bias_table: ir.Value, query_length: ir.Value, key_length: ir.Value, *,
    max_distance: int, is_bidirectional: int = 0,
) -> ir.Value:  # fmt: skip
    """The biases of T5 (Raffel et al. 2020): one for each bucket of distances and head.

    The table's shape is [buckets, heads], and in memory it has one head after the other.
    """
    buckets, heads = size_of(bias_table, 0), size_of(bias_table, 1)
    half = buckets // 2 if is_bidirectional else buckets
    exact = half // 2
    if exact < 1 or max_distance <= exact:
        raise Refused(f"{buckets} buckets do not reach max_distance {max_distance}", WRITER)
    rows, columns = (g.range(None, g("Reshape", x, g.ints(1))) for x in (query_length, key_length))
    behind = g("Sub", g("Unsqueeze", rows, g.ints(1)), columns)
    first, zero = None, g.constant(np.asarray(0, np.int64))
    if is_bidirectional:
        first = g("Mul", g("Cast", g("Less", behind, zero), to=INT64), g.constant(np.asarray(half, np.int64)))
        distance = g("Abs", behind)
    else:
        distance = g("Max", behind, zero)
    least = g.constant(np.asarray(exact, np.int64))
    far = g("Cast", g("Max", distance, least), to=FLOAT)
    ratio = g("Div", g("Log", g("Div", far, _float(g, exact))), _float(g, math.log(max_distance / exact)))
    steps = g("Cast", g("Mul", ratio, _float(g, half - exact)), to=INT64)
    large = g("Min", g("Add", least, steps), g.constant(np.asarray(half - 1, np.int64)))
    bucket = g("Where", g("Less", distance, least), distance, large)
    bucket = bucket if first is None else g("Add", bucket, first)
    table = g("Reshape", bias_table, g.ints(heads, buckets))
    return g("Unsqueeze", g("Gather", table, bucket, axis=1), g.ints(0))


def _float(g: Writer, number: float) -> ir.Value:
    return g.constant(np.asarray(number, np.float32))


@body("GatedRelativePositionBias")
def gated_relative_position_bias(
    g: Writer, query_layer: ir.Value, query_bias: ir.Value, rel_pos: ir.Value, weight: ir.Value, bias: ir.Value,
    eco_a: ir.Value, token_offset: ir.Value | None = None, *, num_heads: int,
) -> ir.Value:  # fmt: skip
    """A bias by distance, gated by the query (WavLM: Chen et al. 2022)."""
    if num_heads < 1:
        raise Refused(f"attribute 'num_heads' must be at least 1, not {num_heads}", WRITER)
    query = query_layer if token_offset is None else restore_padding(g, query_layer, token_offset)
    heads = g("Reshape", g("Add", query, query_bias), g.ints(0, 0, num_heads, -1))
    made = g("Add", g("MatMul", g("Transpose", heads, perm=[0, 2, 1, 3]), weight), bias)
    sums = g("ReduceSum", g("Reshape", made, g.ints(0, 0, 0, 2, -1)), g.ints(-1), keepdims=0)
    gates = g.several(2, "Split", g("Sigmoid", sums), axis=-1, num_outputs=2)
    one, two = g.number(1.0, bias), g.number(2.0, bias)
    factor = g("Add", g("Mul", gates[0], g("Sub", g("Mul", gates[1], eco_a), one)), two)
    return g("Mul", factor, rel_pos)
