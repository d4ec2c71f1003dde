"""onnxruntime's LSTM with 8-bit weights, whose inputs are quantised at run time."""

from __future__ import annotations

import torch
from torch import Tensor


def dynamic_product(x: Tensor, weight: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Quantise rows [rows, size] to 8 bits, and multiply them by a quantised matrix.

    Args:
        weight: [size, columns]; `(weight - zero) * scale`, scale and zero with a single
            element or one per column.
    """
    low, high = x.min().clamp(max=0.0), x.max().clamp(min=0.0)
    step = (high - low) / 255.0
    step = torch.where(step == 0, torch.ones_like(step), step)
    middle = torch.round((0.0 - low) / step).clamp(0, 255)
    numbers = ((x / step).round() + middle).clamp(0, 255) - middle
    total = numbers.double() @ (weight.double() - zero.double())
    return total.float() * (step * scale)


def dynamic_lstm(
    x: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    recurrent: tuple[Tensor, Tensor, Tensor],
    bias: Tensor | None,
    peepholes: Tensor | None,
    h: Tensor,
    c: Tensor,
    is_reverse: bool,
    clip: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """One direction of an LSTM: return all h [length, batch, hidden], the last h and c.

    Args:
        x: [length, batch, size].
        weights, recurrent: a matrix with the gates i, o, f, c side by side, its scale
            and its zero point.
        bias: [8 * hidden], for both products.
        peepholes: [3 * hidden], the weights of c for i, o and f.
        clip: inputs of gates are clamped to [-clip, clip], unless it is 0.
    """
    length, batch, size = x.shape
    hidden = h.shape[-1]
    inputs = dynamic_product(x.reshape(-1, size), *weights).reshape(length, batch, -1)
    if bias is not None:
        inputs = inputs + (bias[: 4 * hidden] + bias[4 * hidden :])
    sees = [h.new_zeros(hidden)] * 3 if peepholes is None else list(peepholes.chunk(3))

    def bounded(gate: Tensor) -> Tensor:
        return gate.clamp(-clip, clip) if clip else gate

    found: list[Tensor] = []
    for step in range(length - 1, -1, -1) if is_reverse else range(length):
        i, o, f, g = (inputs[step] + dynamic_product(h, *recurrent)).chunk(4, -1)
        forget = torch.sigmoid(bounded(f + sees[2] * c))
        c = forget * c + torch.sigmoid(bounded(i + sees[0] * c)) * torch.tanh(bounded(g))
        h = torch.sigmoid(bounded(o + sees[1] * c)) * torch.tanh(c)
        found.append(h)
    return torch.stack(found[::-1] if is_reverse else found), h, c
