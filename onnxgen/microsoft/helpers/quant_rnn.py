"""onnxruntime's LSTM with 8-bit weights, whose inputs are quantised at run time."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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


class DynamicLSTM(nn.Module):
    """An LSTM in integers: what is multiplied is quantised to 8 bits over its range.

    It takes x [length, batch, input_size], and perhaps h and c [directions, batch,
    hidden_size]. It returns all h [length, directions, batch, hidden_size], the last h,
    and the last c.

    Args:
        direction: "forward", "reverse" or "bidirectional".
        dtype: of the weights.
        by_column: each column of a weight has a scale and a zero point of its own.
        learned: the bias is a parameter, otherwise a buffer.
        clip: inputs of gates are clamped to [-clip, clip], unless it is 0.
    """

    weight_ih: Tensor
    weight_hh: Tensor
    scale_ih: Tensor
    scale_hh: Tensor
    zero_ih: Tensor
    zero_hh: Tensor
    bias: Tensor | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        direction: str = "forward",
        bias: bool = True,
        dtype: torch.dtype = torch.int8,
        by_column: bool = False,
        learned: bool = False,
        clip: float = 0.0,
    ) -> None:
        super().__init__()
        self.hidden_size, self.clip = hidden_size, clip
        self.reverse = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
        count = len(self.reverse)
        columns = (count, 4 * hidden_size) if by_column else (count,)
        for name, size in (("ih", input_size), ("hh", hidden_size)):
            self.register_buffer(f"weight_{name}", torch.zeros(count, size, 4 * hidden_size, dtype=dtype))
            self.register_buffer(f"scale_{name}", torch.ones(columns))
            self.register_buffer(f"zero_{name}", torch.zeros(columns, dtype=dtype))
        if learned:
            self.bias = nn.Parameter(torch.zeros(count, 8 * hidden_size))
        else:
            self.register_buffer("bias", torch.zeros(count, 8 * hidden_size) if bias else None)

    def forward(self, x: Tensor, h: Tensor | None = None, c: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        zeros = x.new_zeros(len(self.reverse), x.shape[1], self.hidden_size)
        h, c = zeros if h is None else h, zeros if c is None else c
        made = [
            dynamic_lstm(
                x,
                (self.weight_ih[i], self.scale_ih[i], self.zero_ih[i]),
                (self.weight_hh[i], self.scale_hh[i], self.zero_hh[i]),
                None if self.bias is None else self.bias[i],
                None,
                h[i],
                c[i],
                is_reverse,
                self.clip,
            )
            for i, is_reverse in enumerate(self.reverse)
        ]
        return (
            torch.stack([y for y, _, _ in made], 1),
            torch.stack([h for _, h, _ in made]),
            torch.stack([c for _, _, c in made]),
        )
