"""Attention of onnxruntime with a cache of keys and values, whose rows may have different lengths."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import Any

from onnxgen.code.module_def import Assign
from onnxgen.code.quote import OMIT, Ref, unless
from onnxgen.errors import WRITER
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.microsoft import MICROSOFT
from onnxgen.shapes import equal, infer_attention, ranges

QUANTISED = ("PER_TENSOR", "PER_CHANNEL")


@op(
    "GroupQueryAttention", domain=MICROSOFT, infer=infer_attention.group_query_attention,
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
        given = [] if position_ids is None else [position_ids, *([total_sequence_length] if before is OMIT else [])]
        places = b.let(b.call("row_places", lengths, b("q.shape[2]", q=q), *given, before=before), "positions")
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
    sink: Any = unless(head_sink, None)
    if head_sink is None and smooth_softmax > 0:
        sink = b("q.new_zeros(n)", q=q, n=num_heads)
    made = _attended(b, (q, *read(b, (k, v), types)), lengths, options, sink, total_sequence_length, qk_output)
    return [made[0], *present, *made[1:]]


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
    "SparseAttention", domain=MICROSOFT, infer=infer_attention.sparse_attention,
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
    made = b.call("group_query_attention", q, k, v, lengths, scale=scale or OMIT, bias=bias)
    return [b("y.transpose(1, 2).flatten(2)", y=made), *present]


def _attended(
    b: Builder, operands: tuple[ast.expr, ...], lengths: ast.expr, options: dict[str, Any], sink: Any, total: Arg,
    qk_output: int,
) -> list[ast.expr]:  # fmt: skip
    """Return the result and, if output 3 is used, the scores before (`qk_output` 1) or after (2) the softmax."""
    q, k, v = operands
    if not b.wants(3):
        made = b.call("group_query_attention", q, k, v, lengths, **options, sink=sink)
        return [b("y.transpose(1, 2).flatten(2)", y=made)]
    scores = b.let(b.call("grouped_scores", q, k, lengths, **options), "scores")
    weights = b.let(b.call("sink_softmax", scores, sink), "weights")
    made = b("grouped_values(w, v).transpose(1, 2).flatten(2)", w=weights, v=v)
    shown = weights if qk_output == 2 else b("s.masked_fill(s == -math.inf, 0.0)", s=scores)
    return [made, b("s[..., :n].to(q.dtype)", s=shown, n=total.as_int(), q=q)]


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
    made = []
    for x, weight, epsilon, name in zip(operands, weights, epsilons, "qk"):
        if weight is not None and not 0 <= epsilon < math.inf:
            raise b.error(
                f"the epsilon for the norm of {name} must be finite and not negative, but is {epsilon}", WRITER
            )
        form = "F.rms_norm(x, x.shape[-1:], w, e)"
        made.append(x if weight is None else b.let(b(form, x=x, w=weight, e=epsilon), name))
    return made


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
    given = {"cos": cos, "sin": sin, "p": places, "i": interleaved} | ({"n": start} if start else {})
    return [b.let(b(turn, x=x, **given), name) for x, name in zip(operands, "qk")]


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
