"""Attention with shared key heads and a cache of keys and values (onnxruntime's GroupQueryAttention, PagedAttention).

Rows of a batch may have different lengths: `lengths` are their numbers of keys, including the new ones. A row with
fewer keys than there are queries is padded at its end.

Or the tokens of all rows are packed one after the other, and `starts` [batch + 1] says where each row begins. Then a
table [batch, pages] says which pages of a cache [pages, entries, heads, size] have a row's keys; -1 is no page.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def row_places(
    lengths: Tensor,
    count: int,
    given: Tensor | None = None,
    total: Tensor | None = None,
    before: Tensor | None = None,
) -> Tensor:
    """Return the positions [batch, count] of each row's queries.

    They are the last of a row's `lengths` keys, or they are `given`. For a prompt,
    which has as many queries as keys in `total`, only the first given position is used.
    With `before`, the keys that each row had before, queries after a row's new keys get
    0.
    """
    numbers = torch.arange(count, device=lengths.device)
    if before is not None:
        places = before[:, None] + numbers if given is None else given.reshape(-1, count)
        return torch.where(numbers < (lengths - before)[:, None], places, 0)
    if given is None or total is None:
        return (lengths - count).clamp(min=0)[:, None] + numbers
    prompt = (given.flatten()[0] + numbers).expand(lengths.shape[0], count)
    return torch.where(total.flatten() == count, prompt, given.reshape(-1, count))


def rotate_positions(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    """Rotary embedding of `x` [batch, heads, length, size] at positions
    [batch, length].

    The caches are [positions, half]. In the first `2 * half` elements, the two halves
    are rotated with each other, or neighbours if `interleaved`.
    """
    positions = positions[:, : x.shape[2]]
    cos, sin = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    turned, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    if interleaved:
        first, second = turned[..., ::2], turned[..., 1::2]
        parts = torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)
    else:
        first, second = turned.chunk(2, -1)
        parts = torch.cat([first * cos - second * sin, first * sin + second * cos], -1)
    return torch.cat([parts, rest], -1)


def append_cache(
    past: Tensor | None, new: Tensor, lengths: Tensor, length: int, before: Tensor | None = None
) -> Tensor:
    """Write new entries at the end of each row of a cache of size `length`.

    `lengths` [batch] includes the new entries; zeros follow them. If rows say how many
    entries they had `before`, the last of `new` may be padding, which is left out.
    """
    batch, heads, count, size = new.shape
    if before is None:
        before = (lengths - count).clamp(min=0)
    else:
        is_new = torch.arange(count, device=new.device) < (lengths - before)[:, None]
        new = torch.where(is_new[:, None, :, None], new, torch.zeros_like(new))
    cache = new.new_zeros(batch, heads, length, size)
    if past is not None:
        kept = torch.arange(past.shape[2], device=new.device) < before[:, None]
        filled = torch.where(kept[:, None, :, None], past, torch.zeros_like(past))
        cache = torch.cat([filled, cache[:, :, past.shape[2] :]], 2)
    places = before[:, None] + torch.arange(count, device=new.device)
    return cache.scatter(2, places[:, None, :, None].expand(new.shape), new)


def resident_keys(lengths: Tensor, capacity: int, window: int) -> Tensor:
    """Count a row's keys in a sliding cache, which frees several at once when full."""
    step = capacity - window + 1
    return lengths - ((lengths - capacity).clamp(min=0) + step - 1) // step * step


def window_lengths(lengths: Tensor, count: int, capacity: int, window: int) -> Tensor:
    """Count a row's keys in a sliding cache and among the `count` new ones."""
    before = (lengths - count).clamp(min=0)
    return resident_keys(before, capacity, window) + lengths - before


def slide_cache(cache: Tensor, lengths: Tensor, kept: Tensor, capacity: int) -> Tensor:
    """Keep the last `kept` of each row's `lengths` entries; zeros fill the rest."""
    numbers = torch.arange(capacity, device=cache.device)
    places = ((lengths - kept)[:, None] + numbers).clamp(max=cache.shape[2] - 1)[:, None, :, None]
    moved = cache.gather(2, places.expand(*cache.shape[:2], -1, cache.shape[3]))
    return torch.where((numbers < kept[:, None])[:, None, :, None], moved, torch.zeros_like(moved))


def slide_bias(bias: Tensor, start: Tensor, count: int) -> Tensor:
    """Take `count` columns of each row from its `start` on; zeros after the last."""
    places = start[:, None] + torch.arange(count, device=bias.device)
    shape = (start.shape[0], *bias.shape[1:3], count)
    bias = torch.nn.functional.pad(bias, (0, 1))
    places = places.clamp(max=bias.shape[-1] - 1)[:, None, None]
    return bias.expand(start.shape[0], -1, -1, -1).gather(3, places.expand(shape))


def quantize_cache(x: Tensor, scale: Tensor, bits: int) -> Tensor:
    """Quantise keys or values to int8, or to two numbers of 4 bits in each byte."""
    half = 2 ** (bits - 1)
    rounded = torch.round(x / scale).clamp(-half, half - 1)
    if bits == 8:
        return rounded.to(torch.int8)
    pairs: Tensor = (rounded + half).to(torch.uint8).unflatten(-1, (-1, 2))
    return pairs[..., 0] | pairs[..., 1] << 4


def dequantize_cache(cache: Tensor, scale: Tensor, bits: int) -> Tensor:
    """Dequantise keys or values that `quantize_cache` quantised."""
    if bits == 4:
        cache = torch.stack([cache & 15, cache >> 4], -1).flatten(-2).float() - 8
    return cache * scale


def grouped_scores(
    q: Tensor,
    k: Tensor,
    lengths: Tensor,
    scale: float | None = None,
    window: int = -1,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    is_causal: bool = True,
    before: Tensor | None = None,
) -> Tensor:
    """Attention scores [batch, heads, queries, keys], -inf for hidden keys. Arguments
    as of `group_query_attention`.
    """
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q @ k.transpose(-1, -2)).to(wide) * (scale or 1 / math.sqrt(q.shape[-1]))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + torch.nn.functional.pad(bias, (0, k.shape[2] - bias.shape[3]))
    rows = (lengths - 1)[:, None]
    if is_causal:
        first = (lengths - q.shape[2]).clamp(min=0) if before is None else before
        places = first[:, None] + torch.arange(q.shape[2], device=q.device)
        rows = torch.minimum(places, rows)
    rows = rows[:, None, :, None]
    columns = torch.arange(k.shape[2], device=q.device)
    shown = columns <= rows
    if window > 0:
        shown = shown & (columns > rows - window)
    return scores.masked_fill(~shown, -math.inf)


def block_bias(rows: Tensor, columns: Tensor, lengths: Tensor, count: int, keys: int, heads: int, block: int) -> Tensor:
    """Bias [batch, heads, count, keys]: 0 for keys that are seen, else the lowest value

    A matrix of blocks in compressed rows says what is seen: `columns`
    [layouts, entries] has the column of each entry, `rows` [layouts, blocks + 1] the
    start of each row. Heads use the layouts in turn.
    """
    blocks = rows.shape[1] - 1
    entries = torch.arange(columns.shape[1], device=rows.device)
    row = (entries[None, :, None] >= rows[:, None, 1:]).sum(-1)
    seen = torch.zeros(rows.shape[0], blocks + 1, blocks + 1, dtype=torch.bool, device=rows.device)
    layout = torch.arange(rows.shape[0], device=rows.device)[:, None].expand_as(row)
    seen[layout, row, columns.long() % (blocks + 1)] = True  # an entry of -1 is unused: it goes to a further column
    places = (lengths - count).clamp(min=0)[:, None] + torch.arange(count, device=rows.device)
    of_keys = torch.arange(keys, device=rows.device) // block
    chosen = torch.arange(heads, device=rows.device) % rows.shape[0]
    shown = seen[chosen[None, :, None, None], (places // block)[:, None, :, None], of_keys]
    return torch.zeros(shown.shape, device=rows.device).masked_fill(~shown, torch.finfo(torch.float32).min)


def sink_softmax(scores: Tensor, sink: Tensor | None = None) -> Tensor:
    """Softmax over the keys and, with a sink [heads], a further key with that score."""
    if sink is None:
        return scores.softmax(-1)
    nothing = sink.to(scores.dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, nothing], -1).softmax(-1)[..., :-1]


def grouped_values(weights: Tensor, v: Tensor) -> Tensor:
    """Sum values [batch, key heads, keys, size] by weights; key heads are shared."""
    return weights.to(v.dtype) @ v.repeat_interleave(weights.shape[1] // v.shape[1], 1)


def group_query_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    scale: float | None = None,
    window: int = -1,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    is_causal: bool = True,
    before: Tensor | None = None,
    sink: Tensor | None = None,
) -> Tensor:
    """Grouped-query attention: queries see the keys of their row up to their position.

    Args:
        q: [batch, heads, queries, size]; k, v: [batch, key heads, keys, size], whose
            heads are shared.
        lengths: [batch], the number of keys of each row; the last are those of the
            queries.
        scale: factor of the products; default: the inverse root of the size.
        window: how many keys a query sees; -1 is all.
        softcap: a bound that scores approach; 0 is none.
        bias: [batch or 1, heads or 1, queries, keys], added to the scores; the last
            keys may be left out.
        is_causal: if False, a query sees all keys of its row.
        before: [batch], the number of keys that each row had before; queries after its
            new keys are padding. None: there is no padding.
        sink: [heads], the score of a key without a value.
    """
    scores = grouped_scores(q, k, lengths, scale, window, softcap, bias, is_causal, before)
    return grouped_values(sink_softmax(scores, sink), v)


def token_rows(starts: Tensor, count: int) -> Tensor:
    """Return the index of the sequence that each of `count` tokens belongs to."""
    tokens = torch.arange(count, device=starts.device)
    return (tokens[:, None] >= starts[1:]).sum(1)


def token_places(starts: Tensor, past: Tensor, rows: Tensor) -> Tensor:
    """Return the position of each token in its sequence, after `past` [batch] keys."""
    return (past - starts[:-1])[rows] + torch.arange(rows.shape[0], device=starts.device)


def page_slots(table: Tensor, rows: Tensor, places: Tensor, entries: int) -> Tensor:
    """Return each token's slot among the entries of all pages; -1 without a page."""
    pages = table[rows, places // entries].long()
    return torch.where(pages < 0, -1, pages * entries + places % entries)


def write_slots(cache: Tensor, slots: Tensor, new: Tensor) -> Tensor:
    """Write new entries [1, heads, tokens, size] at their slots, except for slot -1."""
    flat = cache.flatten(0, 1)
    flat = torch.cat([flat, flat.new_zeros(1, *flat.shape[1:])])
    written = flat.index_copy(0, slots.long() % flat.shape[0], new.squeeze(0).transpose(0, 1).to(cache.dtype))
    return written[:-1].view(cache.shape)


def read_pages(cache: Tensor, table: Tensor) -> Tensor:
    """Read the entries of all sequences' pages: [1, heads, entries, size]."""
    return cache[table.clamp(min=0).flatten().long()].flatten(0, 1).transpose(0, 1).unsqueeze(0)


def page_mask(
    starts: Tensor,
    past: Tensor,
    table: Tensor,
    rows: Tensor,
    places: Tensor,
    entries: int,
    window: int = -1,
    is_causal: bool = True,
) -> Tensor:
    """Mask of the entries from `read_pages` that each token sees: [tokens, entries]."""
    number = torch.arange(table.numel() * entries, device=table.device)
    row, place = number // (table.shape[1] * entries), number % (table.shape[1] * entries)
    last = places if is_causal else (past + starts.diff())[rows] - 1
    shown = (row == rows[:, None]) & (place <= last[:, None]) & (table.flatten() >= 0).repeat_interleave(entries)
    return shown & (place > places[:, None] - window) if window > 0 else shown


def window_mask(places: Tensor, keys: int, window: int = -1) -> Tensor:
    """Mask of the keys that queries see: `window` keys up to their own place."""
    columns, rows = torch.arange(keys, device=places.device), places[:, None, :, None]
    return (columns <= rows) & (columns > rows - window) if window > 0 else columns <= rows


def selected_mask(indices: Tensor, counts: Tensor, places: Tensor, keys: int) -> Tensor:
    """Mask of each query's first `counts` selected keys: [batch, 1, queries, keys]."""
    chosen = torch.arange(indices.shape[1], device=indices.device) < counts[:, None]
    at = torch.where(chosen & (indices >= 0) & (indices < keys), indices.long(), keys)
    seen = torch.zeros(at.shape[0], keys + 1, dtype=torch.bool, device=at.device).scatter(1, at, True)
    return seen[:, :keys].view(*places.shape, keys).unsqueeze(1)


def row_mask(mask: Tensor, rows: Tensor, batch: int) -> Tensor:
    """Turn a mask [tokens, 1, keys] into one over all rows; tokens see only theirs."""
    own = torch.arange(batch, device=rows.device)[:, None] == rows[:, None, None]
    return (mask & own).flatten(1)


def shown_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shown: Tensor,
    scale: float | None = None,
    softcap: float = 0.0,
    sink: Tensor | None = None,
) -> Tensor:
    """Attention of each query to the keys that `shown` allows; zeros if there are none.

    Args:
        q: [batch, heads, queries, size]; k, v: [batch, key heads, keys, size], whose
            heads are shared.
        shown: which keys each query sees, broadcasts to [..., queries, keys].
        scale: factor of the products; default: the inverse root of the size.
        softcap: a bound that scores approach; 0 is none.
        sink: [heads], the score of a key without a value.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = (q.to(wide) @ k.to(wide).transpose(-1, -2)) * (scale or 1 / math.sqrt(q.shape[-1]))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    weights = sink_softmax(scores.masked_fill(~shown, torch.finfo(wide).min), sink).masked_fill(~shown, 0.0)
    return grouped_values(weights, v.to(wide)).to(q.dtype)


def merge_selections(
    base: Tensor, counts: Tensor, rows: Tensor, more: Tensor, more_counts: Tensor, room: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge the first `counts` indices of rows of `base` with those of `more`.

    Returns:
        The indices [queries, room], filled up with -1; their numbers; and a status: 0,
        1 if an argument is out of range, 2 if there is no room. With status 1 or 2
        there are no indices.
    """
    is_row = (rows >= 0) & (rows < base.shape[0])
    at = torch.where(is_row, rows, 0).long()
    given, sizes = torch.cat([base[at].long(), more], 1), ((counts[at], base.shape[1]), (more_counts, more.shape[1]))
    inside = torch.cat([torch.arange(n, device=base.device) < count[:, None] for count, n in sizes], 1)
    wrong = ~is_row | (inside & (given < 0)).any(1)
    for count, n in sizes:
        wrong = wrong | (count < 0) | (count > n)
    values, order = torch.where(inside, given, 2**40).sort(dim=1, stable=True)
    fresh = values.diff(dim=1, prepend=values[:, :1] - 1) != 0
    first = torch.zeros_like(inside).scatter(1, order, fresh) & inside
    total = first.sum(1)
    status = torch.where(wrong, 1, torch.where(total > room, 2, 0))
    kept = first & (status == 0)[:, None]
    places = torch.where(kept, first.cumsum(1) - 1, room)  # what is left out goes to a further column
    merged = torch.full((rows.shape[0], room + 1), -1, device=base.device).scatter(1, places, given)[:, :room]
    return merged.int(), kept.sum(1).int(), status.int()


def index_ranges(starts: Tensor, ends: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """List and count the numbers from starts to ends.

    The count is `room + 1` if they do not fit, and -1 if a start is negative.
    """
    numbers = starts[:, None].long() + torch.arange(room + 1, device=starts.device)
    return numbers, torch.where(starts < 0, -1, (ends - starts).clamp(max=room + 1))
