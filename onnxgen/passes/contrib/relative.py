"""Attention biases that depend on the distance between key and query.

onnxruntime has GPU kernels only. The bodies follow its documentation.
"""

from __future__ import annotations

import math

from onnxgen.errors import WRITER
from onnxgen.passes.contrib.attention import heads_of
from onnxgen.passes.contrib.padding import restore_padding
from onnxgen.passes.contrib.writer import FLOAT, INT64, Maybe, Refused, Value, Writer, body, size_of
from onnxgen.shapes import infer_microsoft


@body("RelativePositionBias", infer=infer_microsoft.position_bias)
def relative_position_bias(
    g: Writer, bias_table: Value, query_length: Value, key_length: Value, *,
    max_distance: int, is_bidirectional: int = 0,
) -> Value:  # fmt: skip
    """The biases of T5 (Raffel et al. 2020): one for each bucket of distances and each head.

    The table has shape [buckets, heads], but is stored with one head after the other.
    """
    buckets, heads = size_of(bias_table, 0), size_of(bias_table, 1)
    half = buckets // 2 if is_bidirectional else buckets
    exact = half // 2
    if exact < 1 or max_distance <= exact:
        raise Refused(f"{buckets} buckets do not reach max_distance {max_distance}", WRITER)
    rows, columns = (g.range(None, g("Reshape", x, g.ints(1))) for x in (query_length, key_length))
    behind = g("Sub", g("Unsqueeze", rows, g.ints(1)), columns)
    first, zero = None, g.int64(0)
    if is_bidirectional:
        first = g("Mul", g("Cast", g("Less", behind, zero), to=INT64), g.int64(half))
        distance = g("Abs", behind)
    else:
        distance = g("Max", behind, zero)
    least = g.int64(exact)
    far = g("Cast", g("Max", distance, least), to=FLOAT)
    ratio = g("Div", g("Log", g("Div", far, g.float32(exact))), g.float32(math.log(max_distance / exact)))
    steps = g("Cast", g("Mul", ratio, g.float32(half - exact)), to=INT64)
    large = g("Min", g("Add", least, steps), g.int64(half - 1))
    bucket = g("Where", g("Less", distance, least), distance, large)
    bucket = bucket if first is None else g("Add", bucket, first)
    table = g("Reshape", bias_table, g.ints(heads, buckets))
    return g("Unsqueeze", g("Gather", table, bucket, axis=1), g.ints(0))


@body("GatedRelativePositionBias", infer=infer_microsoft.gated_bias)
def gated_relative_position_bias(
    g: Writer, query_layer: Value, query_bias: Value, rel_pos: Value, weight: Value, bias: Value, eco_a: Value,
    token_offset: Maybe = None, *, num_heads: int,
) -> Value:  # fmt: skip
    """A bias by distance, gated by the query (WavLM: Chen et al. 2022)."""
    query = query_layer if token_offset is None else restore_padding(g, query_layer, token_offset)
    heads = heads_of(g, g("Add", query, query_bias), num_heads)
    made = g("Add", g("MatMul", heads, weight), bias)
    sums = g("ReduceSum", g("Reshape", made, g.ints(0, 0, 0, 2, -1)), g.ints(-1), keepdims=0)
    gates = g.several(2, "Split", g("Sigmoid", sums), axis=-1, num_outputs=2)
    one, two = g.number(1.0, bias), g.number(2.0, bias)
    factor = g("Add", g("Mul", gates[0], g("Sub", g("Mul", gates[1], eco_a), one)), two)
    return g("Mul", factor, rel_pos)
