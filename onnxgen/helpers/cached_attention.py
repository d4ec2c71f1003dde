"""Attention of few key heads with a cache of keys and values (onnxruntime's GroupQueryAttention)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rotate_positions(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    """`x` [batch, heads, length, size] turned by the angles of positions [batch, length]; caches [positions, half].

    Halves of the first `2 * half` elements are turned with each other, or neighbours if `interleaved`.
    """
    cos, sin = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    turned, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    if interleaved:
        first, second = turned[..., ::2], turned[..., 1::2]
        parts = torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)
    else:
        first, second = turned.chunk(2, -1)
        parts = torch.cat([first * cos - second * sin, first * sin + second * cos], -1)
    return torch.cat([parts, rest], -1)


def append_cache(past: Tensor | None, new: Tensor, before: Tensor, length: int) -> Tensor:
    """A cache of `length` with new entries after the first `before` [batch] of each row; zeros behind them."""
    batch, heads, count, size = new.shape
    cache = new.new_zeros(batch, heads, length, size)
    if past is not None:
        kept = torch.arange(past.shape[2], device=new.device) < before[:, None]
        filled = torch.where(kept[:, None, :, None], past, torch.zeros_like(past))
        cache = torch.cat([filled, cache[:, :, past.shape[2] :]], 2)
    places = before[:, None] + torch.arange(count, device=new.device)
    return cache.scatter(2, places[:, None, :, None].expand(new.shape), new)


def group_query_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    before: Tensor,
    scale: float | None = None,
    window: int = -1,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
    is_causal: bool = True,
) -> Tensor:
    """Each query attends to the keys up to its own place, which is `before` [batch] plus its number.

    Args:
        q: [batch, heads, queries, size]; k, v: [batch, key heads, keys, size], whose heads are shared.
        before: how many keys of a row come before its queries.
        scale: of the products; None is the inverse root of the size.
        window: how many keys a query sees, -1 is all.
        softcap: a bound that scores approach, 0 is none.
        bias: added to the scores.
        sink: [heads], a score for attending to nothing.
    """
    shared = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q @ k.transpose(-1, -2)).to(wide) * (scale or 1 / math.sqrt(q.shape[-1]))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    rows = (before[:, None] + torch.arange(q.shape[2], device=q.device))[:, None, :, None]
    columns = torch.arange(k.shape[2], device=q.device)
    if not is_causal:
        rows = before[:, None, None, None] + q.shape[2] - 1
    shown = columns <= rows
    if window > 0:
        shown = shown & (columns > rows - window)
    scores = scores.masked_fill(~shown, -math.inf)
    if sink is None:
        return scores.softmax(-1).to(q.dtype) @ v
    nothing = sink.to(wide).reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, nothing], -1).softmax(-1)[..., :-1].to(q.dtype) @ v
