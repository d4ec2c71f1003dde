"""ONNX's recurrent operators with everything that torch's layers lack, step by step and differentiable."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def rnn_activation(x: Tensor, name: str, alpha: float = 0.0, beta: float = 0.0) -> Tensor:
    """Apply an activation of ONNX's RNN, GRU and LSTM (attribute `activations`)."""
    if name == "Sigmoid":
        return torch.sigmoid(x)
    if name == "Tanh":
        return torch.tanh(x)
    if name == "Relu":
        return F.relu(x)
    if name == "Affine":
        return alpha * x + beta
    if name == "LeakyRelu":
        return F.leaky_relu(x, alpha)
    if name == "ThresholdedRelu":
        return torch.where(x > alpha, x, 0.0)
    if name == "ScaledTanh":
        return alpha * torch.tanh(beta * x)
    if name == "HardSigmoid":
        return (alpha * x + beta).clamp(0, 1)
    if name == "Elu":
        return F.elu(x, alpha)
    if name == "Softsign":
        return F.softsign(x)
    return F.softplus(x)


def unroll_rnn(
    x: Tensor,
    states: Sequence[Tensor],
    cell: Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor]],
    lengths: Tensor | None,
    backwards: bool,
) -> tuple[Tensor, Sequence[Tensor]]:
    """Run a cell over x [seq, batch, ...], each sequence for `lengths` steps.

    Returns the first state of every step, stacked in the order of `x` and 0 after a
    sequence's end, and the last states, which are 0 after no step, as in onnxruntime.
    Backwards, each sequence begins at its own end.
    """
    steps = x.shape[0]
    outputs: list[Tensor] = []
    if not steps:
        return x.new_zeros(0, *states[0].shape), [torch.zeros_like(s) for s in states]
    for i in range(steps):
        t = steps - 1 - i if backwards else i
        new = cell(x[t], states)
        if lengths is None:
            states = new
            outputs.append(new[0])
        else:
            runs = (t < lengths).unsqueeze(-1)
            states = [torch.where(runs, a, b) for a, b in zip(new, states)]
            outputs.append(torch.where(runs, new[0], 0))
    if backwards:
        outputs.reverse()
    if lengths is not None:
        states = [torch.where((lengths > 0).unsqueeze(-1), s, 0) for s in states]
    return torch.stack(outputs), states


def onnx_recurrent(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None,
    lengths: Tensor | None,
    states: Sequence[Tensor | None],
    cell: Callable[..., Sequence[Tensor]],
    direction: str,
    layout: int,
) -> tuple[Tensor, ...]:
    """Run ONNX's LSTM, GRU or RNN with a cell: directions, layout, biases, lengths.

    `cell(d, gates, states, r=r, rb=rb)` computes the new states of direction `d` from
    the input's part of the gates, the recurrence weights and bias, and the old states.

    Returns Y [seq, directions, batch, hidden] (layout 1:
    [batch, seq, directions, hidden]) and the last states, shaped as the initial ones.
    """
    if layout == 1:
        x, states = x.transpose(0, 1), [None if s is None else s.transpose(0, 1) for s in states]
    zeros = x.new_zeros(r.shape[0], x.shape[1], r.shape[-1])
    start = [zeros if s is None else s for s in states]
    outputs, ends = [], []
    for d in range(r.shape[0]):
        wb, rb = (None, None) if bias is None else bias[d].chunk(2)
        step = functools.partial(cell, d, r=r[d], rb=rb)
        backwards = direction == "reverse" or d == 1
        y, end = unroll_rnn(F.linear(x, w[d], wb), [s[d] for s in start], step, lengths, backwards)
        outputs.append(y)
        ends.append(end)
    y = torch.stack(outputs, 1)
    last = [torch.stack(end) for end in zip(*ends)]
    if layout == 1:
        y, last = y.permute(2, 0, 1, 3), [s.transpose(0, 1) for s in last]
    return y, *last


def lstm_step(
    gates: Tensor,
    c: Tensor,
    peepholes: Tensor | None,
    activations: Sequence[tuple[str, float, float]],
    clip: float,
    input_forget: bool,
) -> tuple[Tensor, Tensor]:
    """Compute the next h and c of `onnx_lstm` from gate inputs [batch, 4 * hidden]."""
    act_f, act_g, act_h = activations
    i, o, f, g = gates.chunk(4, -1)
    p_i, p_o, p_f = (0, 0, 0) if peepholes is None else peepholes.chunk(3)
    i = rnn_activation((i + p_i * c).clamp(-clip, clip), *act_f)
    f = 1 - i if input_forget else rnn_activation((f + p_f * c).clamp(-clip, clip), *act_f)
    c = f * c + i * rnn_activation(g.clamp(-clip, clip), *act_g)
    o = rnn_activation((o + p_o * c).clamp(-clip, clip), *act_f)
    return o * rnn_activation(c, *act_h), c


def onnx_lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    c: Tensor | None = None,
    peepholes: Tensor | None = None,
    *,
    activations: Sequence[tuple[str, float, float]] = (),
    clip: float = math.inf,
    direction: str = "forward",
    input_forget: bool = False,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    """ONNX's LSTM with everything that `nn.LSTM` lacks; gates in the order i, o, f, c.

    Args:
        x: [seq, batch, input] (layout 1: [batch, seq, input]).
        w, r: [directions, 4 * hidden, input] and [directions, 4 * hidden, hidden].
        bias: [directions, 8 * hidden], for `w` and for `r`.
        lengths: [batch], integers.
        h, c: [directions, batch, hidden] (layout 1: [batch, directions, hidden]);
            default: zeros.
        peepholes: [directions, 3 * hidden], for i, o, f.
        activations: (name, alpha, beta) of f, g and h for each direction.
        clip: inputs of the gates' activations are clamped to [-clip, clip].

    Returns Y, Y_h and Y_c as ONNX has them.
    """
    acts = activations or (("Sigmoid", 0.0, 0.0), ("Tanh", 0.0, 0.0), ("Tanh", 0.0, 0.0)) * r.shape[0]

    def cell(d: int, gates: Tensor, states: Sequence[Tensor], r: Tensor, rb: Tensor | None) -> Sequence[Tensor]:
        h, c = states
        peephole = None if peepholes is None else peepholes[d]
        return lstm_step(gates + F.linear(h, r, rb), c, peephole, acts[3 * d : 3 * d + 3], clip, input_forget)

    return onnx_recurrent(x, w, r, bias, lengths, (h, c), cell, direction, layout)


def onnx_gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    *,
    activations: Sequence[tuple[str, float, float]] = (),
    clip: float = math.inf,
    direction: str = "forward",
    layout: int = 0,
    linear_before_reset: bool = False,
) -> tuple[Tensor, ...]:
    """ONNX's GRU with everything that `nn.GRU` lacks; gates in the order z, r, h.

    Arguments as of `onnx_lstm`. Without `linear_before_reset` the reset gate acts on h
    before its matrix product.
    """
    acts = activations or (("Sigmoid", 0.0, 0.0), ("Tanh", 0.0, 0.0)) * r.shape[0]

    def cell(d: int, gates: Tensor, states: Sequence[Tensor], r: Tensor, rb: Tensor | None) -> Sequence[Tensor]:
        h = states[0]
        act_f, act_g = acts[2 * d : 2 * d + 2]
        w_z, w_r, w_h = gates.chunk(3, -1)
        r_z, r_r, r_h = r.chunk(3)
        b_z, b_r, b_h = (None, None, None) if rb is None else rb.chunk(3)
        z = rnn_activation((w_z + F.linear(h, r_z, b_z)).clamp(-clip, clip), *act_f)
        reset = rnn_activation((w_r + F.linear(h, r_r, b_r)).clamp(-clip, clip), *act_f)
        new = reset * F.linear(h, r_h, b_h) if linear_before_reset else F.linear(reset * h, r_h, b_h)
        new = rnn_activation((w_h + new).clamp(-clip, clip), *act_g)
        return ((1 - z) * new + z * h,)

    return onnx_recurrent(x, w, r, bias, lengths, (h,), cell, direction, layout)


def onnx_rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    *,
    activations: Sequence[tuple[str, float, float]] = (),
    clip: float = math.inf,
    direction: str = "forward",
    layout: int = 0,
) -> tuple[Tensor, ...]:
    """ONNX's RNN with everything that `nn.RNN` lacks. Arguments as of `onnx_lstm`."""
    acts = activations or (("Tanh", 0.0, 0.0),) * r.shape[0]

    def cell(d: int, gates: Tensor, states: Sequence[Tensor], r: Tensor, rb: Tensor | None) -> Sequence[Tensor]:
        return (rnn_activation((gates + F.linear(states[0], r, rb)).clamp(-clip, clip), *acts[d]),)

    return onnx_recurrent(x, w, r, bias, lengths, (h,), cell, direction, layout)


# ---- with attention between the steps --------------------------------------------------------------------------------


def additive_attention(query: Tensor, keys: Tensor, values: Tensor, v: Tensor, shown: Tensor) -> Tensor:
    """Bahdanau's attention: a mean of values, weighted by `tanh(keys + query) @ v`.

    Args:
        query: [batch, size]; keys: [batch, steps, size]; values: [batch, steps, depth];
            v: [size].
        shown: which steps count, bool [batch, steps].
    """
    scores = torch.tanh(keys + query.unsqueeze(1)) @ v
    weights = scores.masked_fill(~shown, -math.inf).softmax(-1)
    return (weights.unsqueeze(1) @ values).squeeze(1)


def attention_lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None,
    lengths: Tensor | None,
    h: Tensor | None,
    c: Tensor | None,
    peepholes: Tensor | None,
    query_weight: Tensor,
    memory_weight: Tensor,
    v: Tensor,
    memory: Tensor,
    memory_lengths: Tensor | None = None,
    attention_weight: Tensor | None = None,
    *,
    activations: Sequence[tuple[str, float, float]] = (),
    clip: float = math.inf,
    direction: str = "forward",
    input_forget: bool = False,
) -> tuple[Tensor, ...]:
    """onnxruntime's AttnLSTM: each step also takes in what the last saw of the memory.

    Args:
        w: [directions, 4 * hidden, input + seen]; the last columns are for what was
            seen, which is zeros at first.
        query_weight: [directions, hidden, size]; memory_weight:
            [directions, depth, size]; v: [directions, size].
        memory: [batch, steps, depth], of which `memory_lengths` [batch] steps count.
        attention_weight: [directions, hidden + depth, seen], which mixes h and the
            context; without it the context is seen.
        x, r, bias, lengths, h, c, peepholes and all others: as of `onnx_lstm`, in
            ONNX's layout 0.

    Returns Y, Y_h and Y_c as ONNX's LSTM has them.
    """
    acts = activations or (("Sigmoid", 0.0, 0.0), ("Tanh", 0.0, 0.0), ("Tanh", 0.0, 0.0)) * r.shape[0]
    shown = torch.ones(memory.shape[:2], dtype=torch.bool, device=x.device)
    if memory_lengths is not None:
        shown = torch.arange(memory.shape[1], device=x.device) < memory_lengths.unsqueeze(-1)
    values = torch.where(shown.unsqueeze(-1), memory, 0.0)

    def cell(d: int, gates: Tensor, states: Sequence[Tensor], r: Tensor, rb: Tensor | None) -> Sequence[Tensor]:
        h, c, seen = states
        gates = gates + F.linear(seen, w[d, :, x.shape[-1] :]) + F.linear(h, r, rb)
        peephole = None if peepholes is None else peepholes[d]
        h, c = lstm_step(gates, c, peephole, acts[3 * d : 3 * d + 3], clip, input_forget)
        seen = additive_attention(h @ query_weight[d], values @ memory_weight[d], values, v[d], shown)
        return h, c, seen if attention_weight is None else torch.cat([h, seen], -1) @ attention_weight[d]

    nothing = x.new_zeros(r.shape[0], x.shape[1], w.shape[-1] - x.shape[-1])
    return onnx_recurrent(x, w[..., : x.shape[-1]], r, bias, lengths, (h, c, nothing), cell, direction, 0)[:3]
