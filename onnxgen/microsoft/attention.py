"""Attention fused with projections, heads and masks, as the standard's Attention between standard
layers.

In rotary embeddings, pairs of elements are rotated by angles that grow with the position.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnx_ir as ir

from onnxgen.errors import FIX_SHAPE, FOR_CPU, WRITER
from onnxgen.graph.operators import REFUSED
from onnxgen.microsoft import drawn, infer
from onnxgen.microsoft.domain import body
from onnxgen.passes.contrib.parts import embedded, heads_of, merged_heads, rotated
from onnxgen.passes.contrib.writer import (
    FLOAT,
    INT32,
    Maybe,
    Refused,
    Results,
    Value,
    Writer,
    flag_of,
    size_of,
    widened,
)
from onnxgen.shapes import ranges
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.infer_math import same
from onnxgen.shapes.info import Info, info, set_info

BFLOAT16 = ir.DataType.BFLOAT16


@body(
    "RotaryEmbedding",
    infer=same,
    axes="b l h; b l; r d; r d",
    ranges=ranges.microsoft_rotary_embedding,
    drawn={1: drawn.rows(2)},
)
def rotary_embedding(
    g: Writer, input: Value, position_ids: Value, cos_cache: Value, sin_cache: Value, *,
    interleaved: int = 0, is_packed_batching: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Value:  # fmt: skip
    """Rotate pairs of elements by the angles of their position. Pairs are halves of a head, or neighbours.

    onnxruntime 1.31 accepts `scale` and `is_packed_batching` and ignores them.
    """
    places = _positions(g, position_ids, input, 1 if g.rank(input) == 3 else 2)
    tables = [g.detached(g("Gather", cache, places)) for cache in (cos_cache, sin_cache)]
    return embedded(g, input, tables, cos_cache, interleaved, num_heads, rotary_embedding_dim)


@body("MRotaryEmbedding", infer=same, axes="b l h; 3 b l; r d; r d", drawn={1: drawn.rows(2)})
def mrotary_embedding(
    g: Writer, input: Value, position_ids: Value, cos_cache: Value, sin_cache: Value, *,
    mrope_section: list[int], interleaved: int = 0, is_packed_batching: int = 0, mrope_layout: int = 0,
    num_heads: int = 0, rotary_embedding_dim: int = 0, scale: float = 1.0,
) -> Value:  # fmt: skip
    """RotaryEmbedding in which each angle belongs to one of three positions: time, height or width."""
    if len(mrope_section) != 3 or min(mrope_section) < 0:
        raise Refused(f"attribute 'mrope_section' must be 3 sizes, not {mrope_section}", WRITER)
    if mrope_layout:
        chosen = np.zeros(sum(mrope_section), np.int64)
        for which in (1, 2):
            chosen[which : 3 * mrope_section[which] : 3] = which
    else:
        chosen = np.repeat(np.arange(3), mrope_section)
    tables = []
    for cache in (cos_cache, sin_cache):
        every = g("Gather", cache, position_ids)  # [3, batch, length, half]
        time, height, width = (g("Gather", every, g.int64(i), axis=0) for i in range(3))
        other = g("Where", g.constant(chosen == 1), height, width)
        tables.append(g.detached(g("Where", g.constant(chosen == 0), time, other)))
    return embedded(g, input, tables, cos_cache, interleaved, num_heads, rotary_embedding_dim)


@body("RMSNormRotary")
def rms_norm_rotary(
    g: Writer, X: Value, scale: Value, position_ids: Value, cosine: Value, sine: Value, prefill_numerics: Maybe = None,
    *, rotary_embedding_dim: int, epsilon: float = 1e-6, flatten_batch: int = 0, input_start: int = 0,
    input_width: int = 0, output_fp16: int = 0, use_fp32_arithmetic: int = 1,
) -> Results:  # fmt: skip
    """RMSNormalization of heads (or of a slice of each), then rotation of their first elements.

    onnxruntime has a GPU kernel only. With only bfloat16 inputs and outputs, it computes in bfloat16 too. The
    documentation does not say which elements are rotated: the first are, as in RotaryEmbedding. Nor does it say what
    holds without `prefill_numerics`: the same as with 0.
    """
    heads, width = size_of(X, 2), size_of(scale, 0)
    x = _part(g, X, input_start, width, input_width)
    normed = g("RMSNormalization", x, scale, axis=-1, epsilon=epsilon)
    set_info(normed, Info(FLOAT))
    is_coarse = is_narrow = not output_fp16 and all(info(v).dtype == BFLOAT16 for v in (X, cosine))
    if is_narrow:
        normed = g.like(g("Cast", normed, to=BFLOAT16), X)
        is_coarse = not use_fp32_arithmetic
        is_prompt = "whether the node computes as for a prompt"
        is_coarse |= prefill_numerics is not None and flag_of(prefill_numerics, is_prompt)
    x, *caches = (v if is_coarse else widened(g, v) for v in (normed, cosine, sine))
    if info(position_ids).shape == (1, 1):
        position_ids = g("Reshape", position_ids, g.ints(1))
        set_info(position_ids, Info(ir.DataType.INT64, (1,)))
    places = _positions(g, position_ids, X, 1)
    tables = [g.detached(g("Gather", cache, places)) for cache in caches]
    turned = rotated(g, x, tables, 2, 0, rotary_embedding_dim)
    if not is_coarse:
        turned = g("Cast", turned, to=ir.DataType.FLOAT16 if output_fp16 else BFLOAT16)
    turned = g("Reshape", turned, g.ints(0, 0, -1))
    return [g("Reshape", turned, g.ints(1, -1, heads * width)) if flatten_batch else turned, widened(g, normed)]


def _part(g: Writer, X: Value, start: int, width: int, stated: int) -> Value:
    """Return the elements of each head that are normalised, in float32. `stated`: their number, 0 for all."""
    stride = size_of(X, 3)
    if start < 0 or (stated or stride) != width or start + width > stride:
        raise Refused(f"scale has {width} elements, but the slice of the input has another size", WRITER)
    x = widened(g, X)
    return x if width == stride else g("Slice", x, g.ints(start), g.ints(start + width), g.ints(3))


def _positions(g: Writer, position_ids: Value, input: Value, axis: int) -> Value:
    """Return the position of each token: as given, or counted from an offset."""
    if g.rank(position_ids) == 2:
        return position_ids
    length = g("Shape", input, start=axis, end=axis + 1)
    return g("Unsqueeze", g("Add", g.range(None, length), position_ids), g.ints(0))


@body(
    "Attention",
    infer=infer.attention,
    axes="b l h; h c; c; mask; 2 b n p s",
    ranges=ranges.attention,
    drawn={3: drawn.lengths(4, own_keys=True)},
)
def attention(
    g: Writer, input: Value, weights: Value, bias: Maybe = None, mask_index: Maybe = None, past: Maybe = None,
    attention_bias: Maybe = None, past_sequence_length: Maybe = None, *,
    num_heads: int, do_rotary: int = 0, mask_filter_value: float = -10000.0, past_present_share_buffer: int = 0,
    qkv_hidden_sizes: list[int] | None = None, rotary_embedding_dim: int = 0, scale: float = 0.0,
    unidirectional: int = 0,
) -> Results:  # fmt: skip
    """Self-attention. `weights` holds the projections to q, k and v side by side."""
    if do_rotary or past_present_share_buffer or past_sequence_length is not None:
        raise Refused("rotary attention with a shared cache runs on GPUs only", FOR_CPU)
    qkv = g("MatMul", input, weights)
    qkv = qkv if bias is None else g("Add", qkv, bias)
    if qkv_hidden_sizes:
        if len(qkv_hidden_sizes) != 3:
            raise Refused(f"attribute 'qkv_hidden_sizes' must have 3 elements, not {len(qkv_hidden_sizes)}", WRITER)
        if g.wants(1) and qkv_hidden_sizes[1] != qkv_hidden_sizes[2]:
            raise Refused("keys and values differ in size, but share one cache", WRITER)
    operands = projected(g, qkv, qkv_hidden_sizes)
    return attended(
        g, operands, num_heads, (mask_index, attention_bias), past, like=input, batch=input,
        scale=scale, is_causal=bool(unidirectional), filtered=mask_filter_value,
    )  # fmt: skip


def projected(g: Writer, qkv: Value, sizes: list[int] | None) -> list[Value]:
    """Split q, k and v, which lie side by side."""
    if sizes:
        return list(g.several(3, "Split", qkv, g.ints(*sizes), axis=-1))
    return list(g.several(3, "Split", qkv, axis=-1, num_outputs=3))


def attended(
    g: Writer, operands: list[Value], heads: int, masks: tuple[Maybe, Maybe], past: Maybe, *,
    like: Value, batch: Value, scale: float, is_causal: bool, filtered: float,
) -> Results:  # fmt: skip
    """Attention of projected q, k and v with a cache of [k, v]. Returns the result, and the new cache if it is used.

    `masks`: the padding mask (see `_padding`), and the bias that is added to the scores. `like`: an input with the
    type of q. `batch`: an input whose first axis is the batch.
    """
    q, k, v = (heads_of(g, x, heads) for x in operands)
    length: Maybe = None
    if past is not None:
        caches = [g("Gather", past, g.int64(i), axis=0) for i in (0, 1)]
        length = g("Shape", caches[0], start=2, end=3)
        k, v = (g("Concat", cache, x, axis=2) for cache, x in zip(caches, (k, v)))
    mask = _padding(g, masks[0], batch, k, filtered, like)
    (context,) = _attend(g, (q, k, v), (mask, masks[1]), scale, like, is_causal=is_causal, past=length)
    present = None
    if g.wants(1):
        present = g("Concat", *(g("Unsqueeze", x, g.ints(0)) for x in (k, v)), axis=0)
    return [merged_heads(g, context), present]


@body(
    "MultiHeadAttention", infer=infer.multi_head_attention,
    axes="b l h; b k h; b k v; w; mask; ; b n p s; b n p u", ranges=ranges.multi_head_attention,
    drawn={4: drawn.lengths(6), 8: drawn.used(4, 6)},
)  # fmt: skip
def multi_head_attention(
    g: Writer, query: Value, key: Maybe = None, value: Maybe = None, bias: Maybe = None, key_padding_mask: Maybe = None,
    attention_bias: Maybe = None, past_key: Maybe = None, past_value: Maybe = None, past_sequence_length: Maybe = None,
    cache_indirection: Maybe = None, *, num_heads: int, mask_filter_value: float = -10000.0, scale: float = 0.0,
    unidirectional: int = 0,
) -> Results:  # fmt: skip
    """Attention of projected q, k and v. `bias` holds their biases side by side."""
    if cache_indirection is not None:
        what = "beam search over the cache (cache_indirection) is not handled"
        raise Refused(what, "export the model without the search")
    operands = _with_biases(g, _unpacked(g, query, key, value), bias)
    q, k, v = (x if is_split else heads_of(g, x, num_heads) for x, is_split in operands)
    length = None
    present = k, v
    if past_key is not None and past_value is not None and past_sequence_length is not None:
        length = g("Cast", g("Reshape", past_sequence_length, g.ints(1)), to=ir.DataType.INT64)
        present = _written(g, past_key, k, length), _written(g, past_value, v, length)
        end = g("Add", length, g("Shape", k, start=2, end=3))
        k, v = (g("Slice", cache, g.ints(0), end, g.ints(2)) for cache in present)
    elif past_key is not None and past_value is not None:
        length = g("Shape", past_key, start=2, end=3)
        k, v = present = g("Concat", past_key, k, axis=2), g("Concat", past_value, v, axis=2)
    mask = _padding(g, key_padding_mask, query, k, mask_filter_value, query)
    is_square = key is None or _length(query) == _length(key) is not None
    context, *scores = _attend(
        g, (q, k, v), (mask, attention_bias), scale, query, is_causal=bool(unidirectional), past=length,
        is_square=is_square, scores=g.wants(3),
    )  # fmt: skip
    return [merged_heads(g, context), *present, *scores]


def _written(g: Writer, cache: Value, new: Value, length: Value) -> Value:
    """Write new entries behind the first `length` entries of a cache that has room for them."""
    return g("TensorScatter", cache, new, g("Expand", length, g("Shape", new, start=0, end=1)))


@body(
    "DecoderMaskedMultiHeadAttention", infer=infer.decoder_masked_attention,
    axes="b l h; b k h; b k v; mask; ; b n p s; b n p u", ranges=ranges.decoder_masked_attention,
    drawn={3: drawn.lengths(5), 7: drawn.used(3, 5)},
)  # fmt: skip
def decoder_masked_multi_head_attention(
    g: Writer, query: Value, key: Maybe = None, value: Maybe = None, mask_index: Maybe = None,
    attention_bias: Maybe = None, past_key: Maybe = None, past_value: Maybe = None, past_sequence_length: Maybe = None,
    beam_width: Maybe = None, cache_indirection: Maybe = None, bias: Maybe = None, *,
    num_heads: int, mask_filter_value: float = -10000.0, output_qk: int = 0, past_present_share_buffer: int = 0,
    scale: float = 0.0,
) -> Results:  # fmt: skip
    """MultiHeadAttention of one query. Keys are in the CPU kernel's layout; CUDA's kernel has another."""
    if key is None:
        raise Refused("packed q, k and v are not handled", "optimise the model without packing them")
    return multi_head_attention(
        g, query, key, value, bias, mask_index, attention_bias, past_key, past_value,
        past_sequence_length if past_present_share_buffer else None, cache_indirection,
        num_heads=num_heads, mask_filter_value=mask_filter_value, scale=scale,
    )  # fmt: skip


@body("DecoderMaskedSelfAttention", infer=infer.attention)
def decoder_masked_self_attention(
    g: Writer, input: Value, weights: Value, bias: Value, mask_index: Maybe, past: Value, attention_bias: Maybe = None,
    past_sequence_length: Maybe = None, beam_width: Maybe = None, cache_indirection: Maybe = None, *,
    num_heads: int, do_rotary: int = 0, mask_filter_value: float = -10000.0, past_present_share_buffer: int = 0,
    scale: float = 0.0,
) -> Results:  # fmt: skip
    """Attention of one query with a growing cache. onnxruntime has a GPU kernel only."""
    if past_present_share_buffer or cache_indirection is not None:
        what = "the cache holds its keys in the layout of CUDA's kernel"
        raise Refused(what, "export the model with a cache that grows")
    return attention(
        g, input, weights, bias, mask_index, past, attention_bias, num_heads=num_heads, do_rotary=do_rotary,
        mask_filter_value=mask_filter_value, scale=scale,
    )  # fmt: skip


def _length(x: Value) -> Dim | None:
    """Return the number of tokens of [batch, length, ...] or [batch, heads, length, size]."""
    shape = info(x).shape
    return None if shape is None else shape[2] if len(shape) == 4 else shape[1]


def _unpacked(g: Writer, query: Value, key: Maybe, value: Maybe) -> list[tuple[Value, bool, Dim | None]]:
    """Return q, k and v, each with: True if heads are an axis already, and the size of all heads together."""

    def part(packed: Value, index: int) -> tuple[Value, bool, Dim | None]:
        cut = g("Gather", packed, g.int64(index), axis=3)
        return g("Reshape", cut, g.ints(0, 0, -1)), False, _product(info(packed).shape, 2, 4)

    def whole(x: Value) -> tuple[Value, bool, Dim | None]:
        shape = info(x).shape
        return x, g.rank(x) == 4, shape[2] if shape is not None and len(shape) == 3 else None

    if key is None:
        return [part(query, i) for i in range(3)]
    if value is None:
        return [whole(query), part(key, 0), part(key, 1)]
    return [whole(query), whole(key), whole(value)]


def _product(shape: tuple[Dim, ...] | None, *axes: int) -> Dim | None:
    sizes = [d for a in axes if shape is not None and len(shape) > a and isinstance(d := shape[a], int)]
    return math.prod(sizes) if len(sizes) == len(axes) else None


def _with_biases(g: Writer, operands: list[tuple[Value, bool, Dim | None]], bias: Maybe) -> list[tuple[Value, bool]]:
    if bias is None:
        return [(x, split) for x, split, _ in operands]
    total, size = (info(bias).shape or (None,))[0], operands[0][2]
    if not isinstance(size, int) or not isinstance(total, int):
        raise Refused("the sizes of query and bias are unknown", FIX_SHAPE)
    biased = []
    for (x, split, _), (start, end) in zip(operands, itertools.pairwise((0, size, 2 * size, total))):
        biased.append((x if split else g("Add", x, g("Slice", bias, g.ints(start), g.ints(end), g.ints(0))), split))
    return biased


def _padding(g: Writer, mask: Maybe, x: Value, k: Value, filtered: float, like: Value) -> Maybe:
    """Return what to add to scores [batch, heads, queries, keys] for a padding mask: 0 or `filtered`."""
    if mask is None:
        return None
    rank = g.rank(mask)
    if rank == 2 and (info(mask).shape or (None,))[-1] == 1:  # the same for all keys, so onnxruntime applies none
        return None
    if rank == 1:
        keeps = _by_length(g, mask, x, k)
    elif rank in (2, 3):
        keeps = g("Greater", mask, g.constant(np.asarray(0, np.int32)))
        keeps = g("Unsqueeze", keeps, g.ints(*((1, 2) if rank == 2 else (1,))))
    else:
        raise Refused(f"a mask of rank {rank} runs on GPUs only", FOR_CPU)
    return g("Where", keeps, g.number(0, like), g.number(filtered, like))


def _by_length(g: Writer, mask: Value, x: Value, k: Value) -> Value:
    """Return a mask of the keys before each row's end, which the vector `mask` holds.

    The vector may also hold as many starts, and then keys before a row's start are hidden too. In a vector of
    3 * batch + 2 elements the others only describe a batch without padding.
    """
    places = g("Cast", g.range(None, g("Shape", k, start=2, end=3)), to=INT32)
    count, batch = (info(mask).shape or (None,))[0], (info(x).shape or (None,))[0]
    rows = g("Shape", x, start=0, end=1)
    ends = mask if count is not None and count == batch else g("Slice", mask, g.ints(0), rows)
    keeps = g("Less", places, g("Unsqueeze", ends, g.ints(1, 2, 3)))
    if count is not None and batch is not None and count in (batch, 3 * batch + 2):
        return keeps
    zeros = g("Expand", g.constant(np.zeros(1, np.int32)), rows)  # where no starts are given
    starts = g("Slice", g("Concat", mask, zeros, axis=0), rows, g("Add", rows, rows))
    if count is None or batch is None or count != 2 * batch:
        there = g("LessOrEqual", g("Shape", mask), g("Add", rows, rows))
        starts = g("Mul", starts, g("Cast", there, to=INT32))
    return g("And", keeps, g("GreaterOrEqual", places, g("Unsqueeze", starts, g.ints(1, 2, 3))))


def _attend(
    g: Writer, operands: tuple[Value, Value, Value], masks: tuple[Maybe, Maybe], scale: float, like: Value, *,
    is_causal: bool, past: Maybe = None, is_square: bool = True, scores: bool = False,
) -> list[Value]:  # fmt: skip
    """Compute softmax(q @ k^T * scale + masks) @ v of [batch, heads, length, size], and perhaps the softmax's input.

    With `is_causal`, `past` keys come before those of the queries. `is_square`: there are as many keys as queries. Else
    the last query sees all keys, as in onnxruntime.
    """
    mask, more = masks if masks[0] is not None else masks[::-1]
    mask = mask if mask is None or more is None else g("Add", mask, more)
    is_plain = mask is None and past is None and is_square and not scores
    if is_causal and not is_plain:
        mask = _causal(g, operands, mask, past, is_square, like)
    if not scores:
        return [g("Attention", *operands, mask, scale=scale or None, is_causal=1 if is_causal and is_plain else None)]
    outputs = g.several(4, "Attention", *operands, mask, scale=scale or None, qk_matmul_output_mode=2)
    return [outputs[0], outputs[3]]


def _causal(g: Writer, operands: tuple[Value, ...], mask: Maybe, past: Maybe, is_square: bool, like: Value) -> Value:
    """Extend a mask so that it also hides the keys after each query."""
    queries, keys = (g("Shape", x, start=2, end=3) for x in operands[:2])
    end = queries if past is None else g("Add", past, queries)
    if is_square:
        rows = g.range(past, end)
    else:
        rows = g("Concat", g.range(past, g("Sub", end, g.ints(1))), keys, axis=0)
    shown = g("GreaterOrEqual", g("Unsqueeze", rows, g.ints(1)), g.range(None, keys))
    dtype = info(like).dtype or ir.DataType.FLOAT
    lowest = g.number(float(np.finfo(np.float32 if dtype == ir.DataType.BFLOAT16 else dtype.numpy()).min), like)
    return g("Where", shown, g.number(0, like) if mask is None else mask, lowest)


@body(
    "PackedAttention",
    infer=infer.attention_without_padding,
    flat={"attention_bias": REFUSED},
    drawn={4: drawn.starts},
)
def packed_attention(
    g: Writer, input: Value, weights: Value, bias: Value, token_offset: Value, cumulative_sequence_length: Value,
    attention_bias: Maybe = None, *, num_heads: int, qkv_hidden_sizes: list[int] | None = None, scale: float = 0.0,
) -> Value:  # fmt: skip
    """PackedMultiHeadAttention with its projections."""
    qkv = g("Add", g("MatMul", input, weights), bias)
    q, k, v = projected(g, qkv, qkv_hidden_sizes)
    return packed_multi_head_attention(
        g, q, k, v, None, token_offset, cumulative_sequence_length, attention_bias, num_heads=num_heads, scale=scale
    )


@body(
    "PackedMultiHeadAttention",
    infer=infer.packed_attention,
    flat={"attention_bias": REFUSED},
    drawn={5: drawn.starts},
)
def packed_multi_head_attention(
    g: Writer, query: Value, key: Maybe, value: Maybe, bias: Maybe, token_offset: Value,
    cumulative_sequence_length: Value, attention_bias: Maybe = None, *,
    num_heads: int, mask_filter_value: float = -10000.0, scale: float = 0.0,
) -> Value:  # fmt: skip
    """Attention of sequences that are concatenated without padding. Tokens attend to their own sequence only."""
    if attention_bias is not None:
        raise Refused("attention_bias of padded sequences is not handled", "optimise the model without packing")
    if key is None:  # [tokens, heads, 3, size]
        shape = info(query).shape
        whole = g("Unsqueeze", query, g.ints(0))
        set_info(whole, Info(info(query).dtype, None if shape is None else (1, *shape)))
        operands = _unpacked(g, whole, None, None)
    else:
        operands = []
        for part in (query, key, value):
            if part is None:
                raise Refused("the input key or value is missing", WRITER)
            size = (info(part).shape or (None,))[-1]
            operands.append((g("Unsqueeze", part, g.ints(0)), False, size))
    q, k, v = (heads_of(g, x, num_heads) for x, _ in _with_biases(g, operands, bias))
    places = g("Cast", g.range(None, g("Shape", query, start=0, end=1)), to=INT32)
    begun = g("GreaterOrEqual", g("Unsqueeze", places, g.ints(1)), cumulative_sequence_length)
    number = g("ReduceSum", g("Cast", begun, to=INT32), g.ints(1))
    mask = g("Equal", number, g("Transpose", number, perm=[1, 0]))
    context = g("Attention", q, k, v, mask, scale=scale or None)
    return g("Squeeze", merged_heads(g, context), g.ints(0))
