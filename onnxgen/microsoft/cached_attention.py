"""Attention of onnxruntime with a cache of keys and values, by rows or by pages.

For pages, and for keys that another operator selected, onnxruntime has kernels for GPUs only, so
the code here follows their documentation.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxgen.code.module_def import Assign
from onnxgen.code.quote import OMIT, Ref, unless
from onnxgen.errors import WRITER
from onnxgen.graph.operators import INTEGERS, op
from onnxgen.lowering.builder import Arg, Builder, Unpack
from onnxgen.microsoft import infer
from onnxgen.microsoft.domain import MICROSOFT
from onnxgen.shapes import equal, ranges

QUANTISED = ("PER_TENSOR", "PER_CHANNEL")


@op(
    "GroupQueryAttention", domain=MICROSOFT, infer=infer.group_query_attention,
    still="seqlens_k total_sequence_length cos_cache sin_cache position_ids query_seqlens",
    axes="b l q; b l d; b l d; b n p h; b n p h; s; ; ; ; ; ; ; ; ; ; ; b", equal=equal.cached(6),
    ranges=ranges.group_query_attention,
)  # fmt: skip
def group_query_attention(
    b: Builder, query: Arg, key: Arg | None, value: Arg | None, past_key: Arg | None, past_value: Arg | None,
    seqlens_k: Arg, total_sequence_length: Arg, cos_cache: Arg | None = None, sin_cache: Arg | None = None,
    position_ids: Arg | None = None, attention_bias: Arg | None = None, head_sink: Arg | None = None,
    k_scale: Arg | None = None, v_scale: Arg | None = None, q_norm_weight: Arg | None = None,
    k_norm_weight: Arg | None = None, query_seqlens: Arg | None = None, *,
    num_heads: int, kv_num_heads: int, do_rotary: int = 0, rotary_interleaved: int = 0, scale: float = 0.0,
    local_window_size: int = -1, softcap: float = 0.0, smooth_softmax: int = -1, causal: int = 1,
    qk_output: int = 0, kv_cache_bit_width: int = 0, k_quant_type: str = "NONE", v_quant_type: str = "NONE",
    qk_norm_epsilon: float = 1e-6, q_norm_epsilon: float | None = None, k_norm_epsilon: float | None = None,
    sliding_window_cache: int = 0,
) -> list[ast.expr | None]:  # fmt: skip
    """New keys and values are appended to each row of the cache, which then has `seqlens_k + 1` of them."""
    if kv_num_heads < 1 or num_heads % kv_num_heads:
        raise b.error(f"num_heads {num_heads} is not a multiple of kv_num_heads {kv_num_heads}", WRITER)
    if local_window_size == 0 or qk_output not in (0, 1, 2) or (b.wants(3) and not qk_output):
        raise b.error(f"local_window_size is {local_window_size}, or qk_output {qk_output} gives no output 3", WRITER)
    pasts = past_key, past_value
    q, k, v = split(b, query, key, value, num_heads, kv_num_heads)
    epsilons = [qk_norm_epsilon if e is None else e for e in (q_norm_epsilon, k_norm_epsilon)]
    q, k = normalized(b, (q, k), (q_norm_weight, k_norm_weight), epsilons)
    lengths: Any = b.let(b("n.flatten().long() + 1", n=seqlens_k), "lengths")
    before = _before(b, (query, key, value), pasts, lengths, query_seqlens, causal)
    if do_rotary:
        stated = [position_ids, total_sequence_length][: 0 if position_ids is None else 1 + (before is OMIT)]
        places = b.let(b.call("row_places", lengths, b("q.shape[2]", q=q), *stated, before=before), "positions")
        q, k = rotated(b, (q, k), places, cos_cache, sin_cache, bool(rotary_interleaved))
    types = [(s, t, kv_cache_bit_width) for s, t in ((k_scale, k_quant_type), (v_scale, v_quant_type))]
    k, v = stored(b, (k, v), types)
    bias: Any = unless(attention_bias, None)
    if sliding_window_cache:
        k, v, lengths, before, bias, *present = _slid(b, q, (k, v), pasts, (lengths, before), bias, local_window_size)
    else:
        k, v = present = appended(b, (k, v), pasts, lengths, total_sequence_length, before)
    options = {"scale": scale or OMIT, "window": unless(local_window_size, -1), "softcap": softcap or OMIT}
    options |= {"bias": bias, "is_causal": unless(bool(causal), True), "before": before}
    sink = unless(_sink(b, head_sink, smooth_softmax > 0, q, num_heads), None)
    outputs = _attended(b, (q, *read(b, (k, v), types)), lengths, options, sink, total_sequence_length, qk_output)
    return [outputs[0], *present, *outputs[1:]]


def _sink(b: Builder, sink: Arg | None, is_smooth: bool, q: ast.expr, heads: int) -> Any:
    """Return the score beside those of the keys, for each head: 0 with a smooth softmax."""
    return b("q.new_zeros(n)", q=q, n=heads) if sink is None and is_smooth else sink


def _before(
    b: Builder, inputs: Sequence[Arg | None], pasts: Sequence[Arg | None], lengths: ast.expr, counts: Arg | None,
    causal: int,
) -> Any:  # fmt: skip
    """Return how many keys each row had before, if `query_seqlens` says how many of its queries are not padding."""
    if counts is None:
        return OMIT
    sizes = {x.shape[1] for x in inputs if x is not None and x.shape is not None}
    if not causal or None in pasts or len({size for size in sizes if isinstance(size, int)}) > 1:
        raise b.error("query_seqlens needs causal=1, a cache, and as many new keys as queries", WRITER)
    return b.let(b("n - c.flatten()", n=lengths, c=counts), "before")


@op(
    "SparseAttention", domain=MICROSOFT, infer=infer.sparse_attention,
    still="block_row_indices block_col_indices total_sequence_length key_total_sequence_lengths cos_cache sin_cache",
    axes="b l q; b l d; b l d; b n p h; b n p h; ; ; ; s", equal=equal.cached(7),
)  # fmt: skip
def sparse_attention(
    b: Builder, query: Arg, key: Arg | None, value: Arg | None, past_key: Arg, past_value: Arg,
    block_row_indices: Arg, block_col_indices: Arg, total_sequence_length: Arg, key_total_sequence_lengths: Arg,
    cos_cache: Arg | None = None, sin_cache: Arg | None = None, *,
    num_heads: int, kv_num_heads: int, sparse_block_size: int, scale: float = 0.0, do_rotary: int = 0,
    rotary_interleaved: int = 0,
) -> list[ast.expr | None]:  # fmt: skip
    """Causal attention with a cache of fixed size, of which each query sees some blocks of keys."""
    if kv_num_heads < 1 or num_heads % kv_num_heads or sparse_block_size < 1:
        raise b.error(
            f"num_heads {num_heads} is not a multiple of kv_num_heads {kv_num_heads}, or sparse_block_size is below 1",
            WRITER,
        )
    q, k, v = split(b, query, key, value, num_heads, kv_num_heads)
    lengths: Any = b.let(b("n.flatten().long()", n=key_total_sequence_lengths), "lengths")
    if do_rotary:
        places = b.let(b.call("row_places", lengths, b("q.shape[2]", q=q)), "positions")
        q, k = rotated(b, (q, k), places, cos_cache, sin_cache, bool(rotary_interleaved))
    k, v = present = appended(b, (k, v), (past_key, past_value), lengths, total_sequence_length)
    sizes = [b("q.shape[2]", q=q), b("k.shape[2]", k=k), num_heads, sparse_block_size]
    bias = b.let(b.call("block_bias", block_row_indices, block_col_indices, lengths, *sizes), "bias")
    context = b.call("group_query_attention", q, k, v, lengths, scale=scale or OMIT, bias=bias)
    return [b("y.transpose(1, 2).flatten(2)", y=context), *present]


def _attended(
    b: Builder, operands: tuple[ast.expr, ...], lengths: ast.expr, options: dict[str, Any], sink: Any, total: Arg,
    qk_output: int,
) -> list[ast.expr]:  # fmt: skip
    """Return the result and, if output 3 is used, the scores before (`qk_output` 1) or after (2) the softmax."""
    q, k, v = operands
    if not b.wants(3):
        context = b.call("group_query_attention", q, k, v, lengths, **options, sink=sink)
        return [b("y.transpose(1, 2).flatten(2)", y=context)]
    scores = b.let(b.call("grouped_scores", q, k, lengths, **options), "scores")
    weights = b.let(b.call("sink_softmax", scores, sink), "weights")
    context = b("grouped_values(w, v).transpose(1, 2).flatten(2)", w=weights, v=v)
    shown = weights if qk_output == 2 else b("s.masked_fill(s == -math.inf, 0.0)", s=scores)
    return [context, b("s[..., :n].to(q.dtype)", s=shown, n=total.as_int(), q=q)]


def split(
    b: Builder, query: Arg | ast.expr, key: Arg | ast.expr | None, value: Arg | ast.expr | None, heads: int, shared: int
) -> list[ast.expr]:
    """Return q, k and v as [batch, heads, length, size]. Without key and value, `query` has all three side by side."""
    split = "x.unflatten(-1, (n, -1)).transpose(1, 2)"
    if key is None or value is None:
        parts = b(f"{split}.split(s, dim=1)", x=query, n=heads + 2 * shared, s=(heads, shared, shared))
        names = tuple(b.local(name) for name in "qkv")
        b.emit(Assign(names, parts, b.scope, b.nodes))
        return [Ref(name) for name in names]
    pairs = ((query, heads, "q"), (key, shared, "k"), (value, shared, "v"))
    return [b.let(b(split, x=x, n=n), name) for x, n, name in pairs]


def normalized(
    b: Builder, operands: tuple[ast.expr, ast.expr], weights: tuple[Arg | None, Arg | None], epsilons: Sequence[float]
) -> list[ast.expr]:
    """Divide q and k by the root mean square of each head, if there are weights for it."""
    normed = []
    for x, weight, epsilon, name in zip(operands, weights, epsilons, "qk"):
        if weight is not None and not 0 <= epsilon < math.inf:
            raise b.error(
                f"the epsilon for the norm of {name} must be finite and not negative, but is {epsilon}", WRITER
            )
        form = "F.rms_norm(x, x.shape[-1:], w, e)"
        normed.append(x if weight is None else b.let(b(form, x=x, w=weight, e=epsilon), name))
    return normed


def rotated(
    b: Builder, operands: tuple[ast.expr, ast.expr], places: ast.expr, cos: Arg | None, sin: Arg | None,
    interleaved: bool, start: int = 0,
) -> list[ast.expr]:  # fmt: skip
    """Apply the rotary embedding of `places` to q and k; in each head, the elements before `start` are kept."""
    if cos is None or sin is None:
        raise b.error("do_rotary needs the inputs cos_cache and sin_cache", WRITER)
    turn = "rotate_positions(x, cos, sin, p, i)"
    if start:
        turn = "torch.cat([x[..., :n], rotate_positions(x[..., n:], cos, sin, p, i)], -1)"
    operators = {"cos": cos, "sin": sin, "p": places, "i": interleaved} | ({"n": start} if start else {})
    return [b.let(b(turn, x=x, **operators), name) for x, name in zip(operands, "qk")]


def appended(
    b: Builder, new: Sequence[ast.expr], pasts: tuple[Arg | None, Arg | None], lengths: ast.expr, total: Arg,
    before: Any = OMIT,
) -> list[ast.expr]:  # fmt: skip
    """Write new keys and values into the caches, which grow if there are more keys than entries."""
    length: Any = b("k.shape[2]", k=new[0])
    if pasts[0] is not None:
        length = b.let(b("max(p.shape[2], n)", p=pasts[0], n=total.as_int()), "length")
    return [b.let(b.call("append_cache", p, x, lengths, length, before), name) for p, x, name in zip(pasts, new, "kv")]


def _slid(
    b: Builder, q: ast.expr, new: tuple[ast.expr, ast.expr], pasts: tuple[Arg | None, Arg | None],
    counts: tuple[ast.expr, Any], bias: Any, window: int,
) -> list[Any]:  # fmt: skip
    """Return what queries see of caches that keep only the last keys, the numbers of keys, and the new caches.

    `counts`: how many keys each row has, and had before. Keys and columns of the bias are counted from the oldest key
    in the cache.
    """
    lengths, before = counts
    if pasts[0] is None or pasts[1] is None or window < 1:
        raise b.error("sliding_window_cache needs past_key, past_value and a positive local_window_size", WRITER)
    count, room = b("q.shape[2]", q=q), b("p.shape[2]", p=pasts[0])
    had: Any = OMIT
    if before is OMIT:
        inside = b.let(b("window_lengths(n, s, c, w)", n=lengths, s=count, c=room, w=window), "inside")
    else:
        had = b.let(b("resident_keys(p, c, w)", p=before, c=room, w=window), "had")
        inside = b.let(b("h + n - p", h=had, n=lengths, p=before), "inside")
    kept = b.let(b("resident_keys(n, c, w)", n=lengths, c=room, w=window), "kept")
    both = b("c + s", c=room, s=count)
    joined = [b.let(b.call("append_cache", p, x, inside, both, had), name) for p, x, name in zip(pasts, new, "kv")]
    form = "slide_cache(x, n, kept, c)"
    present = [b.let(b(form, x=x, n=inside, kept=kept, c=room), "cache") for x in joined]
    if bias is not OMIT:
        bias = b("slide_bias(x, n, m)", x=bias, n=b("n - m", n=lengths, m=inside), m=b("k.shape[2]", k=joined[0]))
    return [*joined, inside, had, bias, *present]


Quantised = tuple[Arg | ast.expr | None, str, int]


def stored(b: Builder, operands: Sequence[ast.expr], types: Sequence[Quantised]) -> list[ast.expr]:
    """Quantise new keys and values if the caches have integers of 8 or 4 bits."""
    return [
        x if kind == "NONE" else b.let(b("quantize_cache(x, s, n)", x=x, s=_scale(b, scale, kind), n=bits), "stored")
        for x, (scale, kind, bits) in zip(operands, types)
    ]


def read(b: Builder, caches: Sequence[ast.expr], types: Sequence[Quantised]) -> list[ast.expr]:
    return [
        x if kind == "NONE" else b.let(b("dequantize_cache(x, s, n)", x=x, s=_scale(b, scale, kind), n=bits), name)
        for x, (scale, kind, bits), name in zip(caches, types, "kv")
    ]


def _scale(b: Builder, scale: Arg | ast.expr | None, kind: str) -> Arg | ast.expr:
    if kind not in QUANTISED:
        raise b.error(f"the quantisation of a cache must be {' or '.join(QUANTISED)}, not {kind}", WRITER)
    if scale is None:
        raise b.error(f"a cache quantised as {kind} has no scale", WRITER)
    return scale


CACHE_DTYPES = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.INT8}
FLAT = "y.squeeze(0).transpose(0, 1).flatten(1)"  # [1, heads, tokens, size] as [tokens, heads * size]
MODES = {(mode, source) for mode in ("selected_only", "local_plus_selected") for source in ("main", "auxiliary")}


@op(
    "PagedAttention", domain=MICROSOFT,
    still="cumulative_sequence_length past_seqlens block_table cos_cache sin_cache slot_mapping attention_metadata",
    infer=infer.paged_attention,
)  # fmt: skip
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
    """Attention of packed tokens. Their keys and values are first written into pages, which are outputs, too.

    Pages are of floats or int8. Values may be the first elements of the keys (LATENT, multi-head latent attention:
    DeepSeek-AI 2024). A window includes a query's own key, as in onnxruntime's test
    (test/python/transformers/test_paged_attention_cuda.py).
    """
    is_latent, size = value_cache is None, (key_cache.shape or (None,))[-1]
    is_narrow = v_head_size not in (0, size) and not (is_latent and scale)
    if (kv_cache_layout == "LATENT") != is_latent or is_narrow or is_latent and (key is None or value is not None):
        raise b.error(
            f"kv_cache_layout {kv_cache_layout} contradicts the inputs or v_head_size, or needs a scale", WRITER
        )
    _check(b, num_heads, kv_num_heads, local_window_size)
    q, *new = _of_tokens(b, query, key, value, num_heads, kv_num_heads)
    q, new[0] = normalized(b, (q, new[0]), (q_norm_weight, k_norm_weight), [qk_norm_epsilon] * 2)
    at = _places(b, q, key_cache, cumulative_sequence_length, past_seqlens, block_table)
    if do_rotary:
        q, new[0] = at.rotated(b, (q, new[0]), cos_cache, sin_cache, rotary_interleaved, rotary_offset)
    types = [(k_scale, k_quant_type, 8), (v_scale, v_quant_type, 8)]
    (k, *more), pages = at.written(b, new, (key_cache, value_cache), types, slot_mapping)
    v = more[0] if more else b("k[..., :n]", k=k, n=v_head_size) if v_head_size else k
    y = _shown(b, (q, k, v), at.mask(b, local_window_size, is_causal), scale, softcap, head_sink)
    return [b(FLAT, y=y), *pages]


@op(
    "SparsePagedAttention", domain=MICROSOFT,
    still="cumulative_sequence_length past_seqlens block_table slot_mapping selected_indices selected_counts "
    "auxiliary_lengths cos_cache sin_cache attention_metadata",
    infer=infer.paged_attention,
)  # fmt: skip
def sparse_paged_attention(
    b: Builder, query: Arg, key: Arg | None, value: Arg | None, key_cache: Arg, value_cache: Arg,
    cumulative_sequence_length: Arg, past_seqlens: Arg, block_table: Arg, slot_mapping: Arg | None,
    selected_indices: Arg, selected_counts: Arg, auxiliary_key: Arg | None = None, auxiliary_value: Arg | None = None,
    auxiliary_lengths: Arg | None = None, cos_cache: Arg | None = None, sin_cache: Arg | None = None,
    head_sink: Arg | None = None, q_norm_weight: Arg | None = None, k_norm_weight: Arg | None = None,
    k_scale: Arg | None = None, v_scale: Arg | None = None, attention_metadata: Arg | None = None, *,
    num_heads: int, kv_num_heads: int, attention_mode: str = "selected_only",
    auxiliary_cache_layout: str = "contiguous", auxiliary_kv_shared: int = 0, do_rotary: int = 0, is_causal: int = 1,
    k_quant_type: str = "NONE", local_window_size: int = -1, qk_norm_epsilon: float = 1e-6,
    rotary_interleaved: int = 0, rotary_offset: int = 0, scale: float = 0.0, selected_kv_source: str = "main",
    softcap: float = 0.0, v_quant_type: str = "NONE",
) -> list[ast.expr | None]:  # fmt: skip
    """PagedAttention to selected keys, which may be of a second cache, and optionally to the last keys.

    A key that is both counts once, as in onnxruntime's kernel (contrib_ops/cuda/bert/sparse_paged_attention_impl.cu).
    """
    _check(b, num_heads, kv_num_heads, local_window_size)
    others = auxiliary_key, auxiliary_key if auxiliary_kv_shared else auxiliary_value, auxiliary_lengths
    is_main, is_local = selected_kv_source == "main", attention_mode == "local_plus_selected"
    if (attention_mode, selected_kv_source) not in MODES or auxiliary_cache_layout != "contiguous":
        raise b.error(
            f"attention_mode {attention_mode} with selected_kv_source {selected_kv_source} is not defined"
            f", or auxiliary_cache_layout {auxiliary_cache_layout} is not contiguous",
            WRITER,
        )
    if not is_main and None in others:
        raise b.error("the auxiliary key, value or lengths are missing", WRITER)
    q, k, v = _of_tokens(b, query, key, value, num_heads, kv_num_heads)
    q, k = normalized(b, (q, k), (q_norm_weight, k_norm_weight), [qk_norm_epsilon] * 2)
    at = _places(b, q, key_cache, cumulative_sequence_length, past_seqlens, block_table)
    if do_rotary:
        q, k = at.rotated(b, (q, k), cos_cache, sin_cache, rotary_interleaved, rotary_offset)
    types = [(k_scale, k_quant_type, 8), (v_scale, v_quant_type, 8)]
    kv, pages = at.written(b, [k, v], (key_cache, value_cache), types, slot_mapping)
    seen, k, v = _selection(b, at, kv, None if is_main else others, (selected_indices, selected_counts), is_causal)
    if is_local:
        near = b.let(at.mask(b, local_window_size, is_causal), "near")
        seen = b("x | y", x=near, y=seen) if is_main else b("torch.cat([x, y], -1)", x=near, y=seen)
        k, v = (k, v) if is_main else [b("torch.cat([x, y], 2)", x=x, y=y) for x, y in zip(kv, (k, v))]
    y = _shown(b, (q, k, v), seen, scale, softcap, head_sink)
    return [b(FLAT, y=y), *pages]


@dataclass
class _Places:
    """The sequence (row) and position of each packed token, and the table of the rows' pages of `entries` entries."""

    starts: Arg
    past: Arg
    table: ast.expr
    rows: ast.expr
    places: ast.expr
    entries: ast.expr

    def rotated(
        self, b: Builder, operands: tuple[ast.expr, ast.expr], cos: Arg | None, sin: Arg | None, interleaved: int,
        start: int,
    ) -> list[ast.expr]:  # fmt: skip
        return rotated(b, operands, b("p[None]", p=self.places), cos, sin, bool(interleaved), start)

    def written(
        self, b: Builder, new: list[ast.expr], caches: Sequence[Arg | None], types: Sequence[Quantised], slots: Any
    ) -> tuple[list[ast.expr], list[ast.expr]]:
        """Write new keys and values into the pages; return the contents of the pages of all rows, and the pages."""
        pages: list[ast.expr] = []
        if slots is None:
            slots = b.let(b.call("page_slots", self.table, self.rows, self.places, self.entries), "slots")
        for cache, x, kind in zip(caches, stored(b, new, types), types):
            if (
                cache is None
                or cache.dtype not in CACHE_DTYPES
                or (cache.dtype == ir.DataType.INT8) != (kind[1] != "NONE")
            ):
                raise b.error(
                    "a cache of 4 bits or of float8 is not handled", "export the model with a cache of float16 or int8"
                )
            pages.append(b.let(b.call("write_slots", cache, slots, x), "cache"))
        kept = [b.let(b.call("read_pages", p, self.table), name) for p, name in zip(pages, "kv")]
        return read(b, kept, types), pages

    def mask(self, b: Builder, window: int = -1, is_causal: int = 1) -> ast.expr:
        at = self.starts, self.past, self.table, self.rows, self.places, self.entries
        options = {"window": unless(window, -1), "is_causal": unless(bool(is_causal), True)}
        return b.call("page_mask", *at, **options)


def _places(b: Builder, q: ast.expr, cache: Arg, starts: Arg, past: Arg, table: Arg) -> _Places:
    rows = b.let(b("token_rows(s, q.shape[2])", s=starts, q=q), "rows")
    places = b.let(b.call("token_places", starts, past, rows), "positions")
    pages = b.let(b("t.masked_fill(t >= c.shape[0], -1)", t=table, c=cache), "pages")
    return _Places(starts, past, pages, rows, places, b("c.shape[1]", c=cache))


def _selection(
    b: Builder, at: _Places, kv: list[ast.expr], others: Sequence[Arg | None] | None, chosen: tuple[Arg, Arg],
    is_causal: int,
) -> list[ast.expr]:  # fmt: skip
    """Return the mask of each token's selected keys, and these keys and values, of the pages or of a second cache."""
    rows, batch = at.rows, b("t.shape[0]", t=at.table)
    keys = b("k.shape[2] // n", k=kv[0], n=batch) if others is None else b("k.shape[1]", k=others[0])
    seen = b.let(b.call("selected_mask", *chosen, rows, keys), "seen")
    if others is None:
        mask = b.call("row_mask", seen, rows, batch)
        return [b("x & y", x=mask, y=at.mask(b, is_causal=is_causal)), *kv]
    inside = b("x & window_mask(m[r, None] - 1, n).squeeze(1)", x=seen, m=others[2], r=rows, n=keys)
    wide = "x.flatten(0, 1).transpose(0, 1).expand(k.shape[1], -1, -1).unsqueeze(0)"
    more = [b.let(b(wide, x=x, k=kv[0]), name) for x, name in zip(others, "kv")]
    return [b.call("row_mask", inside, rows, batch), *more]


def _check(b: Builder, heads: int, shared: int, window: int) -> None:
    if shared < 1 or heads % shared or window == 0:
        raise b.error(
            f"num_heads {heads} is not a multiple of kv_num_heads {shared}, or local_window_size is 0", WRITER
        )


def _of_tokens(
    b: Builder, query: Arg, key: Arg | None, value: Arg | None, heads: int, shared: int
) -> list[ast.expr]:  # fmt: skip
    """Reshape q, k and v from [tokens, heads * size] to [1, heads, tokens, size]; v is left out if there is none."""
    if key is not None and value is None:
        form = "x.unflatten(-1, (n, -1)).transpose(0, 1).unsqueeze(0)"
        return [b.let(b(form, x=x, n=n), name) for x, n, name in ((query, heads, "q"), (key, shared, "k"))]
    rows = [None if x is None else b("x.unsqueeze(0)", x=x) for x in (query, key, value)]
    return split(b, rows[0] or query, rows[1], rows[2], heads, shared)


def _shown(
    b: Builder, operands: tuple[ast.expr, ...], shown: ast.expr, scale: float, softcap: float, sink: Any
) -> ast.expr:  # fmt: skip
    options = {"scale": scale or OMIT, "softcap": softcap or OMIT, "sink": unless(sink, None)}
    return b.call("shown_attention", *operands, b.let(shown, "mask"), **options)


@op(
    "DynamicSparseAttention", domain=MICROSOFT,
    still="selected_indices selected_counts seqlens_k total_sequence_length cos_cache sin_cache position_ids "
    "committed_length",
    infer=infer.dynamic_sparse_attention,
)  # fmt: skip
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
    """Attention to selected keys; or to the last keys of the cache and to selected keys of a second cache."""
    _check(b, num_heads, kv_num_heads, local_window_size)
    others = auxiliary_key, auxiliary_key if auxiliary_value is None and auxiliary_kv_shared else auxiliary_value
    is_local = (attention_mode, selected_kv_source) == ("local_plus_selected", "auxiliary")
    if not is_causal or not is_local and (attention_mode, selected_kv_source) != ("selected_only", "main"):
        what = f"{attention_mode} with {selected_kv_source}"
        raise b.error(f"attention_mode {what} as selected_kv_source is not defined, or is_causal is 0", WRITER)
    if is_local and (local_window_size < 0 or None in others):
        raise b.error("local_window_size or the auxiliary key and value are missing", WRITER)
    if b.wants(3):
        raise b.error("output validation_status (CUDA's checks) is not handled", "leave validation_status out")
    q, k, v = split(b, query, key, value, num_heads, kv_num_heads)
    q, k = normalized(b, (q, k), (q_norm_weight, k_norm_weight), [qk_norm_epsilon] * 2)
    lengths: Any = b.let(b("n.flatten().long() + 1", n=seqlens_k), "lengths")
    places = b.let(b.call("row_places", lengths, b("q.shape[2]", q=q)), "positions")
    if do_rotary:
        at: Any = places if position_ids is None else position_ids
        q, k = rotated(b, (q, k), at, cos_cache, sin_cache, bool(rotary_interleaved), rotary_offset)
    (k, v), types = _as_cached(b, (k, v), query, past_key, (key_scale, value_scale), kv_num_heads)
    present = appended(b, stored(b, [k, v], types), (past_key, past_value), lengths, total_sequence_length)
    chosen, second = (selected_indices, selected_counts), others if is_local else None
    k, v, shown = _joined(b, read(b, present, types), second, chosen, places, local_window_size)
    sink = _sink(b, head_sink, bool(smooth_softmax), q, num_heads)
    context = b("y.transpose(1, 2).flatten(2)", y=_shown(b, (q, k, v), shown, scale, 0.0, sink))
    return [b("y.bfloat16()", y=context) if output_bf16 else context, *present]


def _as_cached(
    b: Builder, new: tuple[ast.expr, ast.expr], query: Arg, past: Arg | None, scales: Sequence[Arg | None], shared: int
) -> tuple[Sequence[ast.expr], list[Quantised]]:
    """Convert new keys and values to the type of the cache, and return how to quantise them (one scale per channel)."""
    if past is not None and past.dtype == ir.DataType.INT8:
        rows = [None if s is None else b("s.view(n, 1, -1)", s=s, n=shared) for s in scales]
        return new, [(scale, "PER_CHANNEL", 8) for scale in rows]
    plain: list[Quantised] = [(None, "NONE", 8)] * 2
    if past is None or past.dtype == query.dtype:
        return new, plain
    return [b("x.to(p.dtype)", x=x, p=past) for x in new], plain


def _joined(
    b: Builder, caches: list[ast.expr], others: Sequence[Arg | None] | None, chosen: tuple[Arg, Arg], places: ast.expr,
    window: int,
) -> list[ast.expr]:  # fmt: skip
    """Return keys, values and the mask of what each query sees: selected keys, which may be of a second cache."""
    k, v = caches
    mask = "selected_mask(i, n, p, x.shape[2])"
    seen = b(mask, i=chosen[0], n=chosen[1], p=places, x=k if others is None else others[0])
    if others is None:
        return [k, v, b("m & window_mask(p, k.shape[2])", m=seen, p=places, k=k)]
    shown = b("torch.cat([window_mask(p, k.shape[2], w), m], -1)", p=places, k=k, w=window, m=seen)
    return [*(b.let(b("torch.cat([x, y], 2)", x=x, y=y), n) for x, y, n in zip(caches, others, "kv")), shown]


@op("PackedSparseAttentionIndexerMerge", domain=MICROSOFT, infer=infer.merged_selections, flat=INTEGERS)
def packed_sparse_attention_indexer_merge(
    b: Builder, base_indices: Arg, base_counts: Arg, base_row_indices: Arg, range_starts: Arg | None = None,
    range_ends: Arg | None = None, additional_indices: Arg | None = None, additional_counts: Arg | None = None, *,
    max_output_entries: int, policy_mode: str,
) -> Unpack:  # fmt: skip
    """Merge the indices selected for a query with a range of indices or with further ones, without repetition."""
    is_range = policy_mode == "append_range"
    more = (range_starts, range_ends) if is_range else (additional_indices, additional_counts)
    if max_output_entries < 1 or policy_mode not in ("append_range", "append_indices") or None in more:
        raise b.error(f"policy_mode {policy_mode!r} is unknown, or the inputs that it appends are missing", WRITER)
    form = "merge_selections(x, n, r, *index_ranges(s, e, m), m)" if is_range else "merge_selections(x, n, r, s, e, m)"
    operands: tuple[Any, ...] = (base_indices, base_counts, base_row_indices, *more, max_output_entries)
    return b.unpack(b(form, **dict(zip("xnrsem", operands))))
