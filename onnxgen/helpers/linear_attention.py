"""Attention that sums its keys and values in a state, one token after the other.

Linear attention (Katharopoulos et al. 2020) adds each key and value to the state. With a decay, the state is scaled
down before that (Gated Linear Attention: Yang et al. 2023). With the delta rule, the state's value for the key is
subtracted from the value (DeltaNet: Yang et al. 2024). Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024) does both.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Linear attention: return what queries read after their token, and the last state.

    Args:
        q, k: [batch, length, heads, key size]; their heads share those of v, or are
            shared by them.
        v: [batch, length, heads, value size].
        state: [batch, heads, key size, value size]; default: zeros.
        decay: [batch, length, heads, key size or 1], logarithms of the share of the
            state that is kept; default: all.
        beta: [batch, length, heads or 1, 1], how far the state's value for a key moves
            to the new one; default: the new value is added.
        scale: factor of the results; default: the inverse root of the key size.
    """
    heads = v.shape[2]
    k = k.repeat_interleave(heads // k.shape[2], 2)
    q = torch.unflatten(q.repeat_interleave(max(heads // q.shape[2], 1), 2), 2, (heads, -1))
    q = q * (scale or 1 / math.sqrt(q.shape[-1]))
    if state is None:
        state = v.new_zeros(v.shape[0], heads, k.shape[3], v.shape[3])
    made = []
    for step in range(v.shape[1]):
        key, value = k[:, step].unsqueeze(-1), v[:, step]
        if decay is not None:
            state = state * decay[:, step].exp().unsqueeze(-1)
        if beta is not None:
            value = beta[:, step] * (value - (state * key).sum(-2))
        state = state + key * value.unsqueeze(-2)
        made.append(q[:, step] @ state)
    results = torch.stack(made, 1) if made else q @ state.unsqueeze(1)
    return results.flatten(2, 3), state


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    kv_heads: int,
    state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Apply `delta_rule` to heads side by side, [batch, length, heads * size].

    It is computed in float32. A decay has one number per head or per element of its
    keys; beta has one per head, or one for all.
    """
    dtype, kept = q.dtype, q.dtype if state is None else state.dtype
    k = torch.unflatten(k.float(), -1, (-1, q.shape[-1] // heads))
    q = torch.unflatten(q.float(), -1, (heads, -1))
    v = torch.unflatten(v.float(), -1, (kv_heads, -1))
    decay = None if decay is None else torch.unflatten(decay.float(), -1, (kv_heads, -1))
    beta = None if beta is None else beta.float().unsqueeze(-1)
    made, state = delta_rule(q, k, v, None if state is None else state.float(), decay, beta, scale)
    return made.flatten(2).to(dtype), state.to(kept)


def packed_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None = None,
    starts: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    epsilon: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Apply `delta_rule` to packed sequences, one after the other, in float32.

    Args:
        q, k, v: [tokens, heads, size] or [batch, length, heads, size].
        state: [batch, heads, value size, key size].
        starts: [batch + 1], the start of each sequence, and the end of the last. None:
            all have the same length.
        decay: [tokens, heads] or [tokens, heads, key size]; beta: [tokens, heads]; or
            both with a batch axis.
        epsilon: normalise queries and keys to length 1, with this added to their sums
            of squares. None: do not.
    """
    dtype, lead = q.dtype, v.shape[:-1]
    q, k, v = q.float(), k.float(), v.float()
    if epsilon is not None:
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + epsilon) for x in (q, k))
    beta = None if beta is None else beta.float().unsqueeze(-1)
    decay = None if decay is None else decay.float().reshape(*lead, -1)
    state = None if state is None else state.transpose(-2, -1)
    if starts is None:
        batch = v.shape[0] if state is None else state.shape[0]
        q, k, v = (x.reshape(batch, -1, *x.shape[-2:]) for x in (q, k, v))
        decay, beta = (None if x is None else x.reshape(batch, -1, *x.shape[-2:]) for x in (decay, beta))
        made, state = delta_rule(q, k, v, state, decay, beta, scale)
    else:
        results, states = [], []
        ends = starts.tolist()
        for row, (start, end) in enumerate(zip(ends, ends[1:])):
            q_row, k_row, v_row = (x[None, start:end] for x in (q, k, v))
            decay_row, beta_row = (None if x is None else x[None, start:end] for x in (decay, beta))
            begun = None if state is None else state[row : row + 1]
            result, ended = delta_rule(q_row, k_row, v_row, begun, decay_row, beta_row, scale)
            results.append(result[0])
            states.append(ended)
        made, state = torch.cat(results), torch.cat(states)
    return made.reshape(*lead, -1).to(dtype), state.transpose(-2, -1)


def state_updates(
    k: Tensor,
    v: Tensor,
    counts: Tensor,
    capacity: int,
    state: Tensor | None = None,
    starts: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float | None = None,
) -> Tensor:
    """Return decays, keys and values that update the state at the start of sequences.

    They are those of the first `counts` [batch] tokens; zeros fill the `capacity`. The
    other arguments are those of `packed_delta_rule`.
    """
    shared, heads = k.shape[-2], v.shape[-2]
    k, v = k.float().flatten(0, -3), v.float().flatten(0, -3)
    if epsilon is not None:
        k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + epsilon)
    if starts is None:
        starts = torch.arange(len(counts) + 1, device=k.device) * (len(k) // len(counts))
    numbers = torch.arange(capacity, device=k.device)
    kept = numbers < torch.minimum(counts, starts.diff()).unsqueeze(-1)
    places = (starts[:-1].unsqueeze(-1) + numbers).clamp(max=len(k) - 1)
    decays = v.new_ones(len(k), heads, 1) if decay is None else decay.float().exp().reshape(len(k), heads, -1)
    rates = v.new_ones(len(k), heads, 1) if beta is None else beta.float().reshape(len(k), heads, 1)
    keys, values, decays, rates = (x[places] for x in (k, v, decays, rates))
    wide = keys.repeat_interleave(heads // shared, 2).unsqueeze(-1)
    if state is None:
        state = v.new_zeros(len(counts), heads, v.shape[-1], k.shape[-1])
    state, taken = state.transpose(-2, -1), []
    for step in range(capacity):
        state, value = state * decays[:, step].unsqueeze(-1), values[:, step]
        if beta is not None:
            value = rates[:, step] * (value - (state * wide[:, step]).sum(-2))
        state = state + wide[:, step] * value.unsqueeze(-2)
        taken.append(value)
    parts = (x.flatten(2).masked_fill(~kept.unsqueeze(-1), 0) for x in (decays, keys, torch.stack(taken, 1)))
    return torch.cat([part.flatten(1) for part in parts], 1)
