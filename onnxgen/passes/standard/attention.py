"""Attention of the standard in all its forms: a cache, softcap, windows, rows of keys of different lengths, scores.

Where softmax(q @ k^T * scale + mask) @ v is all that is left, it stays an Attention, with one mask for everything that
hides keys. Else the scores are written out.
"""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import onnx_ir as ir

from onnxgen.errors import WRITER
from onnxgen.passes.contrib.parts import embedded, heads_of, merged_heads
from onnxgen.passes.contrib.writer import Maybe, Refused, Results, Value, Writer, dtype_of, standard
from onnxgen.shapes import ranges
from onnxgen.shapes.dims import Dim, floordiv, known_less
from onnxgen.shapes.infer_math import same
from onnxgen.shapes.info import info

BOOL = ir.DataType.BOOL
MODES = range(4)  # of qk_matmul_output: the product, after softcap, with the mask, after the softmax


@standard("Attention")
def attention(
    g: Writer, Q: Value, K: Value, V: Value, attn_mask: Maybe = None, past_key: Maybe = None,
    past_value: Maybe = None, nonpad_kv_seqlen: Maybe = None, *,
    is_causal: int = 0, kv_num_heads: int | None = None, left_window_size: int = -1, q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0, right_window_size: int = -1, scale: float | None = None, softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> Results:  # fmt: skip
    """Attention-23 to 25, as onnx 1.23 documents all three: a row that sees no key is zeros."""
    _check(past_key, past_value, nonpad_kv_seqlen, qk_matmul_output_mode)
    q, k, v = (_split(g, x, n) for x, n in ((Q, q_num_heads), (K, kv_num_heads), (V, kv_num_heads)))
    past = None
    if past_key is not None and past_value is not None:
        past = g("Shape", past_key, start=2, end=3)
        k, v = g("Concat", past_key, k, axis=2), g("Concat", past_value, v, axis=2)
    window = left_window_size, 0 if is_causal else right_window_size
    is_first = bool(is_causal) and past is nonpad_kv_seqlen is attn_mask is None and left_window_size < 0
    count = _count(Q, q_num_heads), _count(K, kv_num_heads)
    is_plain = not softcap and not g.wants(3) and _fits(*count)
    file_mask = _given(g, attn_mask, _total(K, past_key), k, nonpad_kv_seqlen is not None, Q)
    seen = None if is_plain and is_first else _visible(g, q, k, past, nonpad_kv_seqlen, window)
    mask = _combined(g, file_mask, seen, Q)
    own = v if dtype_of(V) == dtype_of(Q) else g("Cast", v, to=dtype_of(Q))
    if is_plain:
        y, scores = g("Attention", q, k, own, mask, scale=scale, is_causal=1 if is_first else None), None
    else:
        stages = _product(g, q, _repeated(g, k, q, count), scale, Q, _per_head(Q, q_num_heads), softcap)
        stages += _softmax(g, stages[-1], mask, Q, softmax_precision, may_be_empty=not is_first)
        y, scores = g("MatMul", stages[-1], _repeated(g, own, q, count)), stages[qk_matmul_output_mode]
    return [y if g.rank(Q) == 4 else merged_heads(g, y), k, v, scores]


def _check(past_key: Maybe, past_value: Maybe, nonpad_kv_seqlen: Maybe, mode: int) -> None:
    if (past_key is None) != (past_value is None):
        raise Refused("past_key and past_value must be given together", WRITER)
    if past_key is not None and nonpad_kv_seqlen is not None:
        raise Refused("nonpad_kv_seqlen is of a cache outside of the node, and past_key of one inside", WRITER)
    if mode not in MODES:
        raise Refused(f"attribute 'qk_matmul_output_mode' must be 0, 1, 2 or 3, not {mode}", WRITER)


def _split(g: Writer, x: Value, heads: int | None) -> Value:
    """Return [batch, heads, length, size]."""
    return x if g.rank(x) == 4 else heads_of(g, x, heads or 0)


def _size(x: Maybe, axis: int) -> Dim | None:
    shape = info(x).shape
    return None if shape is None else shape[axis]


def _count(x: Value, heads: int | None) -> Dim | None:
    return _size(x, 1) if info(x).rank == 4 else heads


def _per_head(x: Value, heads: int | None) -> Dim | None:

    size = _size(x, -1)
    return size if info(x).rank == 4 or size is None else floordiv(size, heads or 1)


def _fits(heads: Dim | None, shared: Dim | None) -> bool:
    """True if each head of the keys belongs to as many heads of the queries, and their number is known."""
    if heads == shared:
        return heads is not None
    return isinstance(heads, int) and isinstance(shared, int) and shared > 0 and heads % shared == 0


def _total(K: Value, past_key: Maybe) -> Dim | None:

    new = _size(K, -2 if info(K).rank == 4 else 1)
    past = 0 if past_key is None else _size(past_key, 2)
    return None if new is None or past is None else new + past


def _given(g: Writer, mask: Maybe, total: Dim | None, k: Value, has_room: bool, like: Value) -> Maybe:
    """Return the mask of the node as booleans, or as numbers of the type of q, for all keys.

    The standard lets a mask be shorter than the keys (one column, too): it hides those behind its end. It is lengthened
    where that is known, and where the keys lie in a cache that has room for more.
    """
    if mask is None:
        return None
    dtype, width = dtype_of(mask), _size(mask, -1)
    if dtype not in (BOOL, dtype_of(like)):
        dtype, mask = dtype_of(like), g.like(g("Cast", mask, to=dtype_of(like)), like)
    is_short = width is not None and total is not None and known_less(width, total)
    if not is_short and (not has_room or width == total is not None):
        return mask
    missing = g("Sub", g("Shape", k, start=2, end=3), g("Shape", mask, start=-1))
    filled = g.constant(np.asarray(False)) if dtype == BOOL else g.number(-math.inf, like)
    return g("Pad", mask, g("Concat", g.ints(0), missing, axis=0), filled, g.ints(-1))


def _visible(g: Writer, q: Value, k: Value, past: Maybe, lengths: Maybe, window: tuple[int, int]) -> Maybe:
    """Return which keys a query sees by its position: [queries, keys] or [batch, 1, queries, keys]; None: all.

    The last query is at the position of the last key that counts, where `lengths` or a cache says how many do. `window`
    says how many keys it sees before and after its position (negative: all).
    """
    before, after = window
    keys, end = g.range(None, g("Shape", k, start=2, end=3)), None
    if lengths is not None:
        end = g("Unsqueeze", lengths, g.ints(1, 2, 3))
    conditions = []
    if before >= 0 or after >= 0:
        length = g("Shape", q, start=2, end=3)
        if end is None:
            places = g("Unsqueeze", g.range(past, length if past is None else g("Add", past, length)), g.ints(1))
        else:
            places = g("Add", g("Sub", end, length), g("Unsqueeze", g.range(None, length), g.ints(1)))
        if after >= 0:
            conditions.append(g("LessOrEqual", keys, g("Add", places, g.int64(after)) if after else places))
        if before >= 0:
            conditions.append(g("GreaterOrEqual", keys, g("Sub", places, g.int64(before)) if before else places))
    if end is not None and after != 0:  # no key after the last query's position counts anyway
        conditions.append(g("Less", keys, end))
    return reduce(lambda a, b: g("And", a, b), conditions) if conditions else None


def _combined(g: Writer, file_mask: Maybe, seen: Maybe, like: Value) -> Maybe:
    if file_mask is None or seen is None:
        return seen if file_mask is None else file_mask
    if info(file_mask).dtype == BOOL:
        return g.like(g("And", file_mask, seen), file_mask)
    return g.like(g("Where", seen, file_mask, g.number(-math.inf, like)), file_mask)


def _repeated(g: Writer, x: Value, q: Value, count: tuple[Dim | None, Dim | None]) -> Value:
    """Return keys or values with one head for each head of the queries."""
    if count[0] == count[1] is not None:
        return x
    times = g("Div", g("Shape", q, start=1, end=2), g("Shape", x, start=1, end=2))
    shape = g("Concat", g.ints(1, 1), times, g.ints(1, 1), axis=0)
    wide = g("Expand", g("Unsqueeze", x, g.ints(2)), shape)
    return g("Reshape", wide, g("Concat", g.ints(0, -1), g("Shape", x, start=2), axis=0))


def _product(
    g: Writer, q: Value, k: Value, scale: float | None, like: Value, size: Dim | None, softcap: float
) -> list[Value]:
    """Return the scaled product of q and k, and the same after `softcap`."""
    dtype = dtype_of(like)
    wide = dtype if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    if scale is None and isinstance(size, int):
        scale = 1 / math.sqrt(size)
    if scale is not None:
        factor = g.constant(np.asarray(scale, wide.numpy()))
    else:
        factor = g("Reciprocal", g("Sqrt", g("Cast", g("Shape", q, start=3), to=wide)))
    factor = factor if wide == dtype else g("Cast", factor, to=dtype)
    raw = g("MatMul", g("Mul", q, factor), g("Transpose", k, perm=[0, 1, 3, 2]))
    if not softcap:
        return [raw, raw]
    cap = g.number(softcap, like)
    return [raw, g("Mul", g("Tanh", g("Div", raw, cap)), cap)]


def _as_numbers(g: Writer, mask: Value, dtype: ir.DataType) -> Value:
    bias = g("Where", mask, g.float32(0), g.float32(-math.inf))
    return bias if dtype == ir.DataType.FLOAT else g("Cast", bias, to=dtype)


def _softmax(
    g: Writer, scores: Value, mask: Maybe, like: Value, precision: int | None, may_be_empty: bool
) -> list[Value]:
    """Return scores with the mask, and their softmax, in which a row without any key is zeros."""
    dtype = dtype_of(like)
    zero, lowest = g.number(0, like), g.number(-math.inf, like)
    bias = mask
    if mask is not None:
        bias = mask if info(mask).dtype == dtype else _as_numbers(g, mask, dtype)
        scores = g("Add", scores, bias)
    wide = ir.DataType(precision or dtype)
    probabilities = g("Softmax", scores if wide == dtype else g("Cast", scores, to=wide), axis=-1)
    probabilities = probabilities if wide == dtype else g("Cast", probabilities, to=dtype)
    if bias is not None and may_be_empty:
        is_empty = g("Equal", g("ReduceMax", bias, g.ints(-1)), lowest)
        probabilities = g("Where", is_empty, zero, probabilities)
    return [scores, probabilities]


@standard("FlexAttention", domain="ai.onnx.preview")
def flex_attention(
    g: Writer, Q: Value, K: Value, V: Value, *, prob_mod: ir.Graph | None = None, scale: float | None = None,
    score_mod: ir.Graph | None = None, softmax_precision: int | None = None,
) -> Value:  # fmt: skip
    """Attention in which the file's own graphs change the scores and the probabilities."""
    count = _size(Q, 1), _size(K, 1)
    if score_mod is None and prob_mod is None and _fits(*count):
        return g("Attention", Q, K, V, scale=scale)
    dtype = dtype_of(Q)
    wide = ir.DataType(softmax_precision or (dtype if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT))
    scores = _product(g, Q, _repeated(g, K, Q, count), scale, Q, _size(Q, 3), 0.0)[0]
    scores = scores if wide == dtype else g("Cast", scores, to=wide)
    scores = scores if score_mod is None else g.inlined(score_mod, scores)
    probabilities = g("Softmax", scores, axis=-1)
    probabilities = probabilities if prob_mod is None else g.inlined(prob_mod, probabilities)
    probabilities = probabilities if wide == dtype else g("Cast", probabilities, to=dtype)
    return g("MatMul", probabilities, _repeated(g, V, Q, count))


@standard("RotaryEmbedding", infer=same, ranges=ranges.rotary_embedding)
def rotary_embedding(
    g: Writer, X: Value, cos_cache: Value, sin_cache: Value, position_ids: Maybe = None, *,
    interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0,
) -> Value:  # fmt: skip
    """Without `position_ids`, the caches hold a row for each token of each sample."""
    tables = [cos_cache, sin_cache]
    if position_ids is not None:
        tables = [g("Gather", table, position_ids) for table in tables]
    return embedded(g, X, tables, cos_cache, interleaved, num_heads, rotary_embedding_dim)
