"""Causal convolutions of packed sequences, each preceded by the last inputs of an earlier call."""

from __future__ import annotations

import torch
from torch import Tensor


def inputs_at(x: Tensor, starts: Tensor, state: Tensor, rows: Tensor, places: Tensor) -> Tensor:
    """Gather inputs of `x` [tokens, channels] at `places` of the sequences `rows`.

    Sequences begin at `starts`. Before the first input of each are the last ones of its
    `state` [rows, channels, length].
    """
    early, length = places - starts[rows], state.shape[2]
    past = torch.nn.functional.pad(state, (0, 1))[rows, :, (early + length).clamp(max=length)]
    return torch.where((early < 0).unsqueeze(-1), past, x[places.clamp(min=0)])


def packed_causal_conv(
    x: Tensor, weight: Tensor, starts: Tensor, state: Tensor, bias: Tensor | None = None, dilation: int = 1
) -> Tensor:
    """Causal depthwise convolution over packed sequences.

    Args:
        x: [tokens, channels], one sequence after the other.
        weight: [channels, 1, taps].
        starts: [sequences + 1], the start of each sequence, and the end of the last.
        state: [sequences, channels, (taps - 1) * dilation], the inputs before.
        bias: [channels].
        dilation: the distance between taps.
    """
    starts, numbers = starts.long(), torch.arange(x.shape[0], device=x.device)
    rows = torch.searchsorted(starts[1:], numbers, right=True)
    made = torch.zeros_like(x) if bias is None else bias.expand_as(x)
    for tap in range(weight.shape[2]):
        back = (weight.shape[2] - 1 - tap) * dilation
        made = made + weight[:, 0, tap] * inputs_at(x, starts, state, rows, numbers - back)
    return made


def packed_conv_state(x: Tensor, starts: Tensor, state: Tensor) -> Tensor:
    """Return the last inputs of each sequence in the shape of `state`; see above."""
    starts = starts.long()
    numbers = torch.arange(state.shape[2], device=x.device) - state.shape[2]
    rows = torch.arange(state.shape[0], device=x.device).unsqueeze(-1)
    return inputs_at(x, starts, state, rows, starts[1:, None] + numbers).transpose(1, 2)


def leading_inputs(x: Tensor, starts: Tensor, counts: Tensor, capacity: int) -> Tensor:
    """Return the first `counts` inputs of each sequence; zeros fill the `capacity`."""
    numbers = torch.arange(capacity, device=x.device)
    kept = numbers < torch.minimum(counts, starts.diff())[:, None]
    first = x[(starts[:-1, None] + numbers).clamp(max=x.shape[0] - 1)]
    return torch.where(kept.unsqueeze(-1), first, torch.zeros_like(first))
