"""Attention in other forms: Longformer's, BART's decoder, relative position biases, and batches
without padding.

A relative position bias depends on the distance between key and query. Padding is removed from
batches whose rows have different lengths, and restored. onnxruntime has GPU kernels only. The
bodies follow its documentation.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxgen.errors import WRITER
from onnxgen.microsoft import infer
from onnxgen.microsoft.attention import projected
from onnxgen.microsoft.domain import body
from onnxgen.passes.contrib.parts import heads_of, merged_heads
from onnxgen.passes.contrib.writer import FLOAT, INT32, INT64, Maybe, Refused, Results, Value, Writer, flag_of, size_of
from onnxgen.shapes.infer_math import same
from onnxgen.shapes.info import info


@body("RemovePadding", infer=infer.unpadded)
def remove_padding(g: Writer, input: Value, sequence_token_count: Value) -> list[Value]:
    """The tokens of all rows in sequence; their places, and those of padding; where rows begin; the longest row."""
    lengths = g("Cast", sequence_token_count, to=INT64)
    places = g.range(None, g("Shape", input, start=1, end=2))
    keeps = g("Less", places, g("Unsqueeze", lengths, g.ints(1)))
    flat = g("Reshape", keeps, g.ints(-1))
    kept = g("Squeeze", g("NonZero", flat), g.ints(0))
    others = g("Squeeze", g("NonZero", g("Not", flat)), g.ints(0))
    tokens = g("Flatten", input, axis=2)
    offsets = g("Reshape", g("Concat", kept, others, axis=0), g("Shape", keeps))
    starts = g("Concat", g.ints(0), g("CumSum", lengths, g.int64(0)), axis=0)
    longest = g("ReduceMax", lengths, g.ints(0), keepdims=1)
    return [g("Gather", tokens, kept), *(g("Cast", x, to=INT32) for x in (offsets, starts, longest))]


@body("RestorePadding", infer=infer.restore_padding)
def restore_padding(g: Writer, input: Value, token_offset: Value) -> Value:
    """The tokens at their places, and zeros elsewhere."""
    offsets = g("Cast", g("Reshape", token_offset, g.ints(-1)), to=INT64)
    kept = g("Slice", offsets, g.ints(0), g("Shape", input, start=0, end=1))
    size = g("Shape", input, start=1, end=2)
    zeros = g("Expand", g.number(0, input), g("Concat", g("Shape", offsets), size, axis=0))
    filled = g("ScatterND", zeros, g("Unsqueeze", kept, g.ints(1)), input)
    return g("Reshape", filled, g("Concat", g("Shape", token_offset), size, axis=0))


@body("RelativePositionBias", infer=infer.position_bias)
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


@body("GatedRelativePositionBias", infer=infer.gated_bias)
def gated_relative_position_bias(
    g: Writer, query_layer: Value, query_bias: Value, rel_pos: Value, weight: Value, bias: Value, eco_a: Value,
    token_offset: Maybe = None, *, num_heads: int,
) -> Value:  # fmt: skip
    """A bias by distance, gated by the query (WavLM: Chen et al. 2022)."""
    query = query_layer if token_offset is None else restore_padding(g, query_layer, token_offset)
    heads = heads_of(g, g("Add", query, query_bias), num_heads)
    products = g("Add", g("MatMul", heads, weight), bias)
    sums = g("ReduceSum", g("Reshape", products, g.ints(0, 0, 0, 2, -1)), g.ints(-1), keepdims=0)
    gates = g.several(2, "Split", g("Sigmoid", sums), axis=-1, num_outputs=2)
    one, two = g.number(1.0, bias), g.number(2.0, bias)
    factor = g("Add", g("Mul", gates[0], g("Sub", g("Mul", gates[1], eco_a), one)), two)
    return g("Mul", factor, rel_pos)


@body("LongformerAttention", infer=same)
def longformer_attention(
    g: Writer, input: Value, weight: Value, bias: Value, mask: Value, global_weight: Value, global_bias: Value,
    global_: Value, *, num_heads: int, window: int,
) -> Value:  # fmt: skip
    """Tokens see their neighbours and the global tokens. Global tokens see all, through projections of their own.

    Beltagy, Peters, Cohan 2020. A masked token gives zeros, as in Hugging Face's model and in onnxruntime's kernel
    (contrib_ops/cuda/bert/longformer_attention_softmax.cu). The documentation does not say so.
    """
    local, wide = (g("Add", g("MatMul", input, w), b) for w, b in ((weight, bias), (global_weight, global_bias)))
    return windowed(g, (local, wide), mask, global_, num_heads, window)


def windowed(g: Writer, operands: tuple[Value, Value], mask: Value, global_: Value, heads: int, window: int) -> Value:
    """Attention of `operands`: q, k and v side by side, for tokens and for global tokens. It has the mask's type."""
    zero = g.number(0, mask)
    added = g("Unsqueeze", mask, g.ints(1, 2))  # [batch, 1, 1, keys]
    is_global = g("Cast", global_, to=ir.DataType.BOOL)
    places = g.range(None, g("Shape", mask, start=1, end=2))
    distance = g("Abs", g("Sub", g("Unsqueeze", places, g.ints(1)), places))
    near = g("LessOrEqual", distance, g.int64(window))
    shown = g("Or", near, g("Unsqueeze", is_global, g.ints(1, 2)))
    lowest = float(np.finfo((info(mask).dtype or ir.DataType.FLOAT).numpy()).min)
    local = g("Where", shown, added, g.number(lowest, mask))
    contexts = [
        g("Attention", *(heads_of(g, x, heads) for x in projected(g, qkv, None)), m)
        for qkv, m in zip(operands, (local, added))
    ]
    rows = [g("Unsqueeze", x, g.ints(1, 3)) for x in (is_global, g("Less", mask, zero))]
    return merged_heads(g, g("Where", rows[1], zero, g("Where", rows[0], contexts[1], contexts[0])))


@body("DecoderAttention", infer=same)
def decoder_attention(
    g: Writer, query: Value, key: Value, q_weight: Value, kv_weight: Value, bias: Value, key_padding_mask: Maybe,
    key_cache: Maybe, value_cache: Maybe, static_kv: Value, use_past: Value, has_layer_state: Value,
    has_key_padding_mask: Value, *, num_heads: int, mask_filter_value: float = -10000.0,
) -> Results:  # fmt: skip
    """Attention of [length, batch, size] to its own tokens, or to those of an encoder (`static_kv`).

    Where the documentation is silent, this follows onnxruntime's kernel (contrib_ops/cuda/bert/decoder_attention*). A
    cache is used only with a layer state. It holds all keys of an encoder, and otherwise precedes the new keys. Keys
    with a true `key_padding_mask` are hidden.
    """
    flags = static_kv, has_key_padding_mask, has_layer_state, use_past
    is_static, is_masked, keeps, is_later = (flag_of(x, "whether the node has a cache or a mask") for x in flags)
    past = [key_cache, value_cache] if keeps and is_later else []
    needed = [*past, key_padding_mask] if is_masked else past
    if None in needed or not keeps and (g.wants(1) or g.wants(2)):
        raise Refused("the cache or the mask that the flags ask for is missing", WRITER)
    size, perm = size_of(q_weight, 1), [1, 2, 0, 3]
    q_bias = g("Slice", bias, g.ints(0), g.ints(size), g.ints(0))
    kv_bias = g("Slice", bias, g.ints(size), g.ints(3 * size), g.ints(0))
    split = g.ints(0, 0, num_heads, -1)
    q = g("Transpose", g("Reshape", g("Add", g("MatMul", query, q_weight), q_bias), split), perm=perm)
    caches = past
    if not past or not is_static:
        key_value = g("Add", g("MatMul", key if is_static else query, kv_weight), kv_bias)
        k, v = (
            g("Transpose", g("Reshape", half, split), perm=perm)
            for half in g.several(2, "Split", key_value, axis=-1, num_outputs=2)
        )
        caches = _appended(g, past, [k, v])
    mask = _hidden(g, key_padding_mask if is_masked else None, mask_filter_value, query)
    y = g("Attention", q, *caches, mask)
    return [g("Reshape", g("Transpose", y, perm=[2, 0, 1, 3]), g.ints(0, 0, -1)), *(caches if keeps else [])]


def _appended(g: Writer, past: list[Maybe], new: list[Value]) -> list[Maybe]:
    return [g("Concat", old, each, axis=2) for old, each in zip(past, new)] if past else [*new]


def _hidden(g: Writer, mask: Maybe, filtered: float, like: Value) -> Maybe:
    """Return what to add to scores where a mask of the keys is true."""
    if mask is None:
        return None
    return g("Where", g("Unsqueeze", mask, g.ints(1, 2)), g.number(filtered, like), g.number(0, like))
