"""Attention of onnxruntime to a cache of pages, or to keys that another operator selected.

onnxruntime has kernels of these for GPUs only: what is written here follows their documentation.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxgen.code.quote import OMIT, unless
from onnxgen.ops.arg import Arg
from onnxgen.ops.cached_attention import MICROSOFT, Quantised, appended, normalized, read, rotated, split, stored
from onnxgen.ops.registry import op

if TYPE_CHECKING:
    from onnxgen.ops.builder import Builder

CACHES = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.INT8}


@op("PagedAttention", domain=MICROSOFT)
def paged_attention(
    b: Builder, query: Arg, key: Arg | None, value: Arg | None, key_cache: Arg, value_cache: Arg | None,
    cumulative_sequence_length: Arg, past_seqlens: Arg, block_table: Arg, cos_cache: Arg | None = None,
    sin_cache: Arg | None = None, slot_mapping: Arg | None = None, head_sink: Arg | None = None,
    q_norm_weight: Arg | None = None, k_norm_weight: Arg | None = None, k_scale: Arg | None = None,
    v_scale: Arg | None = None, attention_metadata: Arg | None = None, *,
    num_heads: int, kv_num_heads: int, do_rotary: int = 0, is_causal: int = 1, k_cache_dtype: str = "",
    k_quant_type: str = "NONE", kv_cache_layout: str = "SEPARATE", local_window_size: int = -1,
    qk_norm_epsilon: float = 1e-6, rotary_interleaved: int = 0, rotary_offset: int = 0, scale: float = 0.0,
    softcap: float = 0.0, v_cache_dtype: str = "", v_head_size: int = 0, v_quant_type: str = "NONE",
) -> list[ast.expr | None]:  # fmt: skip
    """Of packed tokens, whose keys and values are written into pages first; the new pages are handed out, too.

    Values may be the first elements of the keys (LATENT, multi-head latent attention: DeepSeek-AI 2024).
    """
    _check(b, num_heads, kv_num_heads, local_window_size)
    if (kv_cache_layout == "LATENT") != (value_cache is None) or value_cache is None and (key is None or not scale):
        raise b.error("its kv_cache_layout contradicts its inputs, or its scale is missing", "fix the file")
    types = [(k_scale, k_quant_type, 8), (v_scale, v_quant_type, 8)][: 1 if value_cache is None else 2]
    caches = [cache for cache in (key_cache, value_cache) if cache is not None]
    for cache, (_, kind, _) in zip(caches, types):
        if cache.dtype not in CACHES or (cache.dtype == ir.DataType.INT8) != (kind != "NONE"):
            raise b.error("its cache is of 4 bits or of float8", "export it with a cache of float16 or int8")
    q, k, *more = _of_tokens(b, query, key, None if value_cache is None else value, num_heads, kv_num_heads)
    q, k = normalized(b, (q, k), (q_norm_weight, k_norm_weight), qk_norm_epsilon)
    starts, past = cumulative_sequence_length, past_seqlens
    table = b.let(b("t.masked_fill(t >= c.shape[0], -1)", t=block_table, c=key_cache), "pages")
    rows = b.let(b("token_rows(s, q.shape[2])", s=starts, q=q), "rows")
    places = b.let(b.call("token_places", starts, past, rows), "positions")
    if do_rotary:
        at = b("p[None]", p=places)
        q, k = rotated(b, (q, k), at, cos_cache, sin_cache, bool(rotary_interleaved), rotary_offset)
    entries = b("c.shape[1]", c=key_cache)
    slots = b.let(b.call("page_slots", table, rows, places, entries), "slots") if slot_mapping is None else slot_mapping
    new = stored(b, [k, *more], types)
    pages = [b.let(b.call("write_slots", cache, slots, x), "cache") for cache, x in zip(caches, new)]
    kv = read(b, [b.let(b.call("read_pages", p, table), name) for p, name in zip(pages, "kv")], types)
    window, is_causal_ = unless(local_window_size, -1), unless(bool(is_causal), True)
    shown = b.call("page_mask", starts, past, table, rows, places, entries, window=window, is_causal=is_causal_)
    v = kv[1] if len(kv) > 1 else b("k[..., :n]", k=kv[0], n=v_head_size) if v_head_size else kv[0]
    y = _shown(b, (q, kv[0], v), shown, scale, softcap, head_sink)
    return [b("y.squeeze(0).transpose(0, 1).flatten(1)", y=y), *pages]


def _check(b: Builder, heads: int, shared: int, window: int) -> None:
    if shared < 1 or heads % shared or window == 0:
        raise b.error(f"it has {heads} heads that share {shared}, or an empty window", "fix the file")


def _of_tokens(
    b: Builder, query: Arg, key: Arg | None, value: Arg | None, heads: int, shared: int
) -> list[ast.expr]:  # fmt: skip
    """q, k and v of [tokens, heads * size] as [1, heads, tokens, size]; without v where only q and k are given."""
    if key is not None and value is None:
        form = "x.unflatten(-1, (n, -1)).transpose(0, 1).unsqueeze(0)"
        return [b.let(b(form, x=x, n=n), name) for x, n, name in ((query, heads, "q"), (key, shared, "k"))]
    rows = [None if x is None else b("x.unsqueeze(0)", x=x) for x in (query, key, value)]
    return split(b, rows[0] or query, rows[1], rows[2], heads, shared)


def _shown(
    b: Builder, operands: tuple[ast.expr, ...], shown: ast.expr, scale: float, softcap: float, sink: Any
) -> ast.expr:  # fmt: skip
    options = {"scale": scale or OMIT, "softcap": softcap or OMIT, "sink": OMIT if sink is None else sink}
    return b.call("shown_attention", *operands, b.let(shown, "mask"), **options)


@op("DynamicSparseAttention", domain=MICROSOFT)
def dynamic_sparse_attention(
    b: Builder, query: Arg, key: Arg | None, value: Arg | None, past_key: Arg | None, past_value: Arg | None,
    auxiliary_key: Arg | None, auxiliary_value: Arg | None, selected_indices: Arg, selected_counts: Arg,
    seqlens_k: Arg, total_sequence_length: Arg, cos_cache: Arg | None = None, sin_cache: Arg | None = None,
    position_ids: Arg | None = None, q_norm_weight: Arg | None = None, k_norm_weight: Arg | None = None,
    head_sink: Arg | None = None, committed_length: Arg | None = None, key_scale: Arg | None = None,
    value_scale: Arg | None = None, *,
    num_heads: int, kv_num_heads: int, attention_mode: str = "selected_only", auxiliary_kv_shared: int = 0,
    do_rotary: int = 0, is_causal: int = 1, local_window_size: int = -1, output_bf16: int = 0,
    qk_norm_epsilon: float = 1e-6, rotary_interleaved: int = 0, rotary_offset: int = 0, scale: float = 0.0,
    selected_kv_source: str = "main", smooth_softmax: int = 0,
) -> list[ast.expr | None]:  # fmt: skip
    """Attention to the keys that were selected; or to the last ones of the cache, and selected ones of a second."""
    _check(b, num_heads, kv_num_heads, local_window_size)
    others = auxiliary_key, auxiliary_key if auxiliary_value is None and auxiliary_kv_shared else auxiliary_value
    is_local = (attention_mode, selected_kv_source) == ("local_plus_selected", "auxiliary")
    if not is_causal or not is_local and (attention_mode, selected_kv_source) != ("selected_only", "main"):
        raise b.error("its attention_mode, selected_kv_source or is_causal are none that it can have", "fix the file")
    if is_local and (local_window_size < 0 or None in others):
        raise b.error("its window or its second cache is missing", "fix the file")
    if b.wants(3):
        raise b.error("it hands out what CUDA finds wrong with its inputs", "leave validation_status out")
    q, k, v = split(b, query, key, value, num_heads, kv_num_heads)
    q, k = normalized(b, (q, k), (q_norm_weight, k_norm_weight), qk_norm_epsilon)
    lengths: Any = b.let(b("n.flatten().long() + 1", n=seqlens_k), "lengths")
    places = b.let(b.call("row_places", lengths, b("q.shape[2]", q=q)), "positions")
    if do_rotary:
        at: Any = places if position_ids is None else position_ids
        q, k = rotated(b, (q, k), at, cos_cache, sin_cache, bool(rotary_interleaved), rotary_offset)
    (k, v), types = _as_cached(b, (k, v), query, past_key, (key_scale, value_scale), kv_num_heads)
    present = appended(b, stored(b, [k, v], types), (past_key, past_value), lengths, total_sequence_length)
    chosen, second = (selected_indices, selected_counts), others if is_local else None
    k, v, shown = _joined(b, read(b, present, types), second, chosen, places, local_window_size)
    sink: Any = head_sink
    if head_sink is None and smooth_softmax:
        sink = b("q.new_zeros(n)", q=q, n=num_heads)
    made = b("y.transpose(1, 2).flatten(2)", y=_shown(b, (q, k, v), shown, scale, 0.0, sink))
    return [b("y.bfloat16()", y=made) if output_bf16 else made, *present]


def _as_cached(
    b: Builder, new: tuple[ast.expr, ast.expr], query: Arg, past: Arg | None, scales: Sequence[Arg | None], shared: int
) -> tuple[Sequence[ast.expr], list[Quantised]]:
    """New keys and values in the type of the cache; or how they are made integers, one scale for each channel."""
    if past is not None and past.dtype == ir.DataType.INT8:
        found = [None if s is None else b("s.view(n, 1, -1)", s=s, n=shared) for s in scales]
        return new, [(scale, "PER_CHANNEL", 8) for scale in found]
    plain: list[Quantised] = [(None, "NONE", 8)] * 2
    if past is None or past.dtype == query.dtype:
        return new, plain
    return [b("x.to(p.dtype)", x=x, p=past) for x in new], plain


def _joined(
    b: Builder, caches: list[ast.expr], others: Sequence[Arg | None] | None, chosen: tuple[Arg, Arg], places: ast.expr,
    window: int,
) -> list[ast.expr]:  # fmt: skip
    """All keys and values, and which of them each query sees: selected ones, perhaps of a second cache."""
    k, v = caches
    mask = "selected_mask(i, n, p, x.shape[2])"
    seen = b(mask, i=chosen[0], n=chosen[1], p=places, x=k if others is None else others[0])
    if others is None:
        return [k, v, b("m & window_mask(p, k.shape[2])", m=seen, p=places, k=k)]
    shown = b("torch.cat([window_mask(p, k.shape[2], w), m], -1)", p=places, k=k, w=window, m=seen)
    return [*(b.let(b("torch.cat([x, y], 2)", x=x, y=y), n) for x, y, n in zip(caches, others, "kv")), shown]
