"""Attention with its projections, as Longformer and BART's decoder have it.

onnxruntime has kernels of these for GPUs only: what is written here follows their documentation.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.errors import WRITER
from onnxgen.passes.contrib.attention import heads_of, projected
from onnxgen.passes.contrib.gated import flag_of, size_of
from onnxgen.passes.contrib.writer import Refused, Writer, body
from onnxgen.shapes.info import info

Results = list[ir.Value | None]


@body("LongformerAttention")
def longformer_attention(
    g: Writer, input: ir.Value, weight: ir.Value, bias: ir.Value, mask: ir.Value, global_weight: ir.Value,
    global_bias: ir.Value, global_: ir.Value, *, num_heads: int, window: int,
) -> ir.Value:  # fmt: skip
    """Tokens see those near them and the global ones; global tokens see all, by projections of their own.

    Beltagy, Peters, Cohan 2020. A token that is masked itself gives zeros, as in Hugging Face's model: onnxruntime's
    kernel says so (contrib_ops/cuda/bert/longformer_attention_softmax.cu), and its documentation does not.
    """
    local, wide = (g("Add", g("MatMul", input, w), b) for w, b in ((weight, bias), (global_weight, global_bias)))
    return windowed(g, (local, wide), mask, global_, num_heads, window)


def windowed(
    g: Writer, operands: tuple[ir.Value, ir.Value], mask: ir.Value, global_: ir.Value, heads: int, window: int
) -> ir.Value:  # fmt: skip
    """Attention of q, k and v side by side: those of tokens, and those of global tokens, in the type of the mask."""
    zero = g.number(0, mask)
    added = g("Unsqueeze", mask, g.ints(1, 2))  # [batch, 1, 1, keys]
    is_global = g("Cast", global_, to=ir.DataType.BOOL.value)
    places = g.range(None, g("Shape", mask, start=1, end=2))
    distance = g("Abs", g("Sub", g("Unsqueeze", places, g.ints(1)), places))
    near = g("LessOrEqual", distance, g.constant(np.asarray(window, np.int64)))
    shown = g("Or", near, g("Unsqueeze", is_global, g.ints(1, 2)))
    local = g("Where", shown, added, g.number(_lowest(mask), mask))
    made = [
        g("Attention", *(heads_of(g, x, heads) for x in projected(g, qkv, None)), m)
        for qkv, m in zip(operands, (local, added))
    ]
    rows = [g("Unsqueeze", x, g.ints(1, 3)) for x in (is_global, g("Less", mask, zero))]
    y = g("Where", rows[1], zero, g("Where", rows[0], made[1], made[0]))
    return g("Reshape", g("Transpose", y, perm=[0, 2, 1, 3]), g.ints(0, 0, -1))


def _lowest(like: ir.Value) -> float:
    """The least number of the type of an input."""
    return float(np.finfo((info(like).dtype or ir.DataType.FLOAT).numpy()).min)


@body("DecoderAttention")
def decoder_attention(
    g: Writer, query: ir.Value, key: ir.Value, q_weight: ir.Value, kv_weight: ir.Value, bias: ir.Value,
    key_padding_mask: ir.Value | None, key_cache: ir.Value | None, value_cache: ir.Value | None, static_kv: ir.Value,
    use_past: ir.Value, has_layer_state: ir.Value, has_key_padding_mask: ir.Value, *,
    num_heads: int, mask_filter_value: float = -10000.0,
) -> Results:  # fmt: skip
    """Attention to the tokens themselves, or (`static_kv`) to those of an encoder; [length, batch, size].

    What its documentation leaves open, onnxruntime's kernel says (contrib_ops/cuda/bert/decoder_attention*): a cache
    counts if there is a layer state, too, is all that there is of an encoder's keys, and stands before the others; and
    keys of which `key_padding_mask` is true are hidden.
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
