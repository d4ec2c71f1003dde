"""A Mamba2 block (Dao, Gu 2024), token after token, with the states after each token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def selective_scan(state: Tensor, kept: Tensor, keys: Tensor, values: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Selective scan (Mamba2): return what queries read from the state, and all states.

    Args:
        state: [heads, key size, value size].
        kept: [tokens, heads, 1], the share of the state that is kept at each token.
        keys, queries: [tokens, heads, key size]; values: [tokens, heads, value size].
    """
    added, states = keys.unsqueeze(-1) * values.unsqueeze(-2), []
    for step in range(len(kept)):
        state = kept[step].unsqueeze(-1) * state + added[step]
        states.append(state)
    behind = torch.stack(states)
    return (queries.unsqueeze(-2) @ behind).squeeze(-2), behind


def mamba2_block(
    projection: Tensor,
    conv_states: Tensor,
    states: Tensor,
    row: Tensor,
    conv: tuple[Tensor, Tensor],
    terms: tuple[Tensor, Tensor, Tensor],
    norm: Tensor,
    groups: int,
    epsilon: float,
    least: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Mamba2 block, computed in float32.

    Args:
        projection: [tokens, gate + channels + heads].
        conv_states: [slots, channels, taps - 1]; states:
            [slots, heads, state size, head size].
        row: [1], the slot to begin with; the results are NaN if there is no such slot.
        conv: weights [channels, taps] or [channels, 1, taps], and biases [channels].
        terms: the offset of time steps, the decay, and the factor by which inputs skip
            the scan; each [heads].
        norm: [heads * head size].
        groups: the number of groups of heads that share keys and queries and are
            normalised together.
        least: the shortest time step.

    Returns:
        The normalised results, the states of convolution and scan after the last
        tokens, the convolution's outputs, and what is read from the states. Results and
        outputs have the type of `projection`.
    """
    slots, heads, size, width = states.shape
    dtype, count, channels = projection.dtype, projection.shape[0], conv_states.shape[1]
    gate, x, time = torch.split(projection, [heads * width, channels, heads], -1)
    is_there, first = (row >= 0) & (row < slots), row.clamp(0, slots - 1).long()
    window = torch.cat([conv_states[first][0], x.T], 1)
    weight = conv[0].float().reshape(channels, 1, -1)
    mixed = F.silu(F.conv1d(window.float().unsqueeze(0), weight, conv[1].float(), groups=channels))[0].T.to(dtype)
    x, b, c = torch.split(mixed.float(), [heads * width, groups * size, groups * size], -1)
    x = torch.unflatten(x, 1, (heads, width))
    b, c = (torch.unflatten(v, 1, (groups, size)).repeat_interleave(heads // groups, 1) for v in (b, c))
    time = F.softplus(time.float() + terms[0]).clamp(min=least).unsqueeze(-1)
    kept = (terms[1].unsqueeze(-1) * time).exp()
    read, after = selective_scan(states[first][0], kept, b, time * x, c)
    read = (terms[2].unsqueeze(-1) * x + read).flatten(1)
    made = torch.unflatten(read * F.silu(gate.float()), 1, (groups, -1))
    made = (made * (made.square().mean(-1, keepdim=True) + epsilon).rsqrt()).flatten(1) * norm
    windows = window.unfold(1, conv_states.shape[2], 1)[:, 1:].transpose(0, 1)
    results = [torch.where(is_there, v, torch.nan) for v in (made.to(dtype), windows, after, mixed, read)]
    few = min(count, slots)
    results[1] = torch.cat([results[1][count - few :], conv_states[few:]])
    results[2] = torch.cat([results[2][count - few :], states[few:]])
    return results[0], results[1], results[2], results[3], results[4]
