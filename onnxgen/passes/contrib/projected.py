"""Attention with its projections: Longformer, and BART's decoder.

onnxruntime has GPU kernels only. The bodies follow its documentation.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.errors import WRITER
from onnxgen.passes.contrib.attention import heads_of, merged_heads, projected
from onnxgen.passes.contrib.writer import Maybe, Refused, Results, Value, Writer, body, flag_of, size_of
from onnxgen.shapes.infer_elementwise import same
from onnxgen.shapes.info import info


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
    made = [
        g("Attention", *(heads_of(g, x, heads) for x in projected(g, qkv, None)), m)
        for qkv, m in zip(operands, (local, added))
    ]
    rows = [g("Unsqueeze", x, g.ints(1, 3)) for x in (is_global, g("Less", mask, zero))]
    return merged_heads(g, g("Where", rows[1], zero, g("Where", rows[0], made[1], made[0])))


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
    if None in past or is_masked and key_padding_mask is None or not keeps and (g.wants(1) or g.wants(2)):
        raise Refused("the cache or the mask that the flags ask for is missing", WRITER)
    size, perm = size_of(q_weight, 1), [1, 2, 0, 3]
    parts = [g("Slice", bias, *(g.ints(n) for n in place), g.ints(0)) for place in ((0, size), (size, 3 * size))]
    split = g.ints(0, 0, num_heads, -1)
    q = g("Transpose", g("Reshape", g("Add", g("MatMul", query, q_weight), parts[0]), split), perm=perm)
    caches = past
    if not past or not is_static:
        made = g("Add", g("MatMul", key if is_static else query, kv_weight), parts[1])
        halves = g.several(2, "Split", made, axis=-1, num_outputs=2)
        caches = [g("Transpose", g("Reshape", half, split), perm=perm) for half in halves]
        caches = [g("Concat", old, new, axis=2) for old, new in zip(past, caches)] or caches
    mask = None
    if is_masked and key_padding_mask is not None:
        hidden = g("Unsqueeze", key_padding_mask, g.ints(1, 2))
        mask = g("Where", hidden, g.number(mask_filter_value, query), g.number(0, query))
    y = g("Attention", q, *caches, mask)
    return [g("Reshape", g("Transpose", y, perm=[2, 0, 1, 3]), g.ints(0, 0, -1)), *(caches if keeps else [])]
