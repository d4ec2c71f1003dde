"""Changes a model so that a device can train it: other dtypes, unrolled recurrent layers.

Unrolled layers compute step by step, with operations that every device has. Each class is a
subclass of torch's with another `forward`; parameters, names, initialisation and checks are
inherited. So an instance of torch's class can be converted by changing its `__class__`. The
formulas are those in torch's documentation of `nn.LSTM`, `nn.GRU` and `nn.RNN`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from onnxgen.errors import OnnxgenError
from onnxgen.training.devices.probe import Device

# The dtype of half the size, for devices without float64.
SINGLE = {torch.float64: torch.float32, torch.complex128: torch.complex64}


def prepare_for(model: nn.Module, device: Device) -> nn.Module:
    """Change a model in place so that `device` can train it. The keys of its state dict stay.

    If the device has no float64, such parameters and buffers become float32 (parameters with a warning). If its LSTM,
    GRU and RNN kernels are not known to work, these layers are unrolled. Nothing is moved to the device.

    Returns:
        the same model.

    Raises:
        OnnxgenError: a recurrent layer is of a subclass, so it can't be unrolled.
    """
    if not device.float64:
        if any(p.dtype in SINGLE for p in model.parameters()):
            warnings.warn(f"{device.text} has no float64: parameters of it are trained in float32", stacklevel=2)
        model._apply(single)  # type: ignore[no-untyped-call]
    if not device.recurrent:
        unroll(model)
    return model


def single(tensor: Tensor) -> Tensor:
    """Convert float64 to float32 and complex128 to complex64. Return any other tensor unchanged."""
    return tensor.to(SINGLE[tensor.dtype]) if tensor.dtype in SINGLE else tensor


def unroll(model: nn.Module) -> None:
    """Make every LSTM, GRU, RNN and cell of torch compute step by step.

    Raises:
        OnnxgenError: one is of a subclass, which may have its own `forward`.
    """
    for name, module in model.named_modules():
        if type(module) in UNROLLED:
            module.__class__ = UNROLLED[type(module)]
        elif isinstance(module, nn.RNNBase | nn.RNNCellBase) and type(module) not in UNROLLED.values():
            what = f"{name or 'the model'} is a {type(module).__name__}, which can't be unrolled"
            raise OnnxgenError(what, help="use nn.LSTM, nn.GRU or nn.RNN itself, or another device")


State = tuple[Tensor, ...]  # (h,) or (h, c), each [batch, hidden]
Step = Callable[[Tensor, Tensor, State], State]  # takes the input's and the state's contributions to the gates


def _lstm(x: Tensor, h: Tensor, state: State) -> State:
    i, f, g, o = (x + h).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(x: Tensor, h: Tensor, state: State) -> State:
    (x_r, x_z, x_n), (h_r, h_z, h_n) = x.chunk(3, -1), h.chunk(3, -1)
    z = (x_z + h_z).sigmoid()
    n = (x_n + (x_r + h_r).sigmoid() * h_n).tanh()
    return (n + z * (state[0] - n),)


_STEPS: dict[str, Step] = {
    "LSTM": _lstm,
    "GRU": _gru,
    "RNN_TANH": lambda x, h, state: ((x + h).tanh(),),
    "RNN_RELU": lambda x, h, state: ((x + h).relu(),),
}


class _Unrolled(nn.RNNBase):
    """The `forward` of LSTM, GRU and RNN."""

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """Compute the same as torch's `forward`. Raises `OnnxgenError`: the input is a packed sequence."""
        if isinstance(input, PackedSequence):
            raise OnnxgenError(
                f"{self._get_name()} can't be unrolled over packed sequences", help="pad them, or train on cpu"
            )
        single, parts = input.dim() == 2, 2 if self.mode == "LSTM" else 1
        axis = 1 if self.batch_first else 0
        x = input.unsqueeze(1) if single else input.transpose(0, axis)
        if hx is None:
            states = self._zeros(x, parts)
        else:
            states = tuple(h.unsqueeze(1) if single else h for h in (hx if parts == 2 else (hx,)))
        checked = states if parts == 2 else states[0]
        self.check_forward_args(x.transpose(0, axis), checked, None)  # type: ignore[arg-type]
        output, last = self._layers(x, states)
        if single:
            output, last = output.squeeze(1), tuple(h.squeeze(1) for h in last)
        else:
            output = output.transpose(0, axis)
        return output, last if parts == 2 else last[0]

    def _zeros(self, x: Tensor, parts: int) -> State:
        sizes = (self.proj_size or self.hidden_size, self.hidden_size)[:parts]
        count = self.num_layers * (2 if self.bidirectional else 1)
        return tuple(x.new_zeros(count, x.shape[1], size) for size in sizes)

    def _layers(self, x: Tensor, states: State) -> tuple[Tensor, State]:
        """Run all layers over x [length, batch, features]. The last states are stacked in torch's order."""
        directions, last = 2 if self.bidirectional else 1, []
        for index, weights in enumerate(self.all_weights):
            layer, backward = divmod(index, directions)
            if not backward:
                if layer and self.dropout:
                    x = F.dropout(x, self.dropout, self.training)
                outputs = []
            y, state = self._layer(x, tuple(part[index] for part in states), weights, bool(backward))
            outputs.append(y)
            last.append(state)
            if backward == directions - 1:
                x = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        return x, tuple(torch.stack(part) for part in zip(*last))

    def _layer(self, x: Tensor, state: State, weights: Sequence[Tensor], backward: bool) -> tuple[Tensor, State]:
        """Run one direction of one layer over x [length, batch, features]."""
        w_ih, w_hh, *rest = weights
        b_ih, b_hh = rest[:2] if self.bias else (None, None)
        step, outputs = _STEPS[self.mode], []
        inputs = F.linear(x, w_ih, b_ih).unbind(0)  # computed for all steps at once
        for gates in reversed(inputs) if backward else inputs:
            state = step(gates, F.linear(state[0], w_hh, b_hh), state)
            if self.proj_size:
                state = (F.linear(state[0], rest[-1]), *state[1:])
            outputs.append(state[0])
        return torch.stack(outputs[::-1] if backward else outputs), state


class LSTM(_Unrolled, nn.LSTM): ...  # type: ignore[misc]


class GRU(_Unrolled, nn.GRU): ...  # type: ignore[misc]


class RNN(_Unrolled, nn.RNN): ...  # type: ignore[misc]


class LSTMCell(nn.LSTMCell):
    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        if hx is None:
            zeros = input.new_zeros(*input.shape[:-1], self.hidden_size)
            hx = (zeros, zeros)
        h, c = _lstm(*_shares(self, input, hx[0]), hx)
        return h, c


class GRUCell(nn.GRUCell):
    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        hx = input.new_zeros(*input.shape[:-1], self.hidden_size) if hx is None else hx
        return _gru(*_shares(self, input, hx), (hx,))[0]


class RNNCell(nn.RNNCell):
    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        hx = input.new_zeros(*input.shape[:-1], self.hidden_size) if hx is None else hx
        return _STEPS[f"RNN_{self.nonlinearity.upper()}"](*_shares(self, input, hx), (hx,))[0]


def _shares(cell: nn.RNNCellBase, input: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return F.linear(input, cell.weight_ih, cell.bias_ih), F.linear(h, cell.weight_hh, cell.bias_hh)


# By torch's class.
UNROLLED = {getattr(nn, kind.__name__): kind for kind in (LSTM, GRU, RNN, LSTMCell, GRUCell, RNNCell)}
