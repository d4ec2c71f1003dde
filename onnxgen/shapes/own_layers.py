"""torch's recurrent layers in numpy, as `onnxgen.LSTM`, `GRU` and `RNN`: several layers, both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from onnxgen.shapes.own import dropped

Array: TypeAlias = Any  # numpy says no more of most results


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _lstm(x: Array, h: Array, c: Array, w: Array, r: Array, b: Array, rb: Array, relu: int) -> tuple[Array, Array]:
    i, o, f, g = np.split(x @ w.T + h @ r.T + b + rb, 4, -1)
    c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
    return _sigmoid(o) * np.tanh(c), c


def _gru(x: Array, h: Array, c: Array, w: Array, r: Array, b: Array, rb: Array, relu: int) -> tuple[Array, Array]:
    (z, reset, n), (hz, hr, hn) = np.split(x @ w.T + b, 3, -1), np.split(h @ r.T + rb, 3, -1)
    update = _sigmoid(z + hz)
    return (1 - update) * np.tanh(n + _sigmoid(reset + hr) * hn) + update * h, c


def _rnn(x: Array, h: Array, c: Array, w: Array, r: Array, b: Array, rb: Array, relu: int) -> tuple[Array, Array]:
    made = x @ w.T + h @ r.T + b + rb
    return (np.maximum(made, 0) if relu else np.tanh(made)), c


# one step, and ONNX's gates as positions among torch's
KINDS = {"LSTM": (_lstm, (0, 3, 1, 2)), "GRU": (_gru, (1, 0, 2)), "RNN": (_rnn, (0,))}


def _layers(
    kind: str, x: Array, states: Sequence[Array | None], weights: Sequence[Array | None], *,
    hidden_size: int, directions: int, batch_first: int, relu: int, dropout: float = 0.0,
) -> list[Array]:  # fmt: skip
    """Return y and the final states of every layer and direction. Gates are in ONNX's order."""
    if x.ndim != 3:
        raise ValueError(f"{x.ndim} axes")  # torch's layer takes two as one sample, which the node does not
    x = np.swapaxes(x, 0, 1) if batch_first else x
    count = len(weights) // 3
    firsts = _states(x, states, (count * directions, x.shape[1], hidden_size))
    ends: list[list[Array]] = [[] for _ in states]
    for layer in range(count):
        w, r, bias = weights[3 * layer : 3 * layer + 3]
        assert w is not None and r is not None
        parts = []
        for d in range(directions):
            both = np.zeros(2 * w.shape[1], x.dtype) if bias is None else bias[d]
            h, *rest = (s[layer * directions + d] for s in firsts)
            c = rest[0] if rest else h
            made = []
            for step in x[::-1] if d else x:
                h, c = KINDS[kind][0](step, h, c, w[d], r[d], both[: w.shape[1]], both[w.shape[1] :], relu)
                made.append(h)
            parts.append(np.stack(made[::-1] if d else made))
            for end, last in zip(ends, (h, c)):
                end.append(last)
        x = np.concatenate(parts, -1)
        x = dropped(x, dropout) if layer < count - 1 else x
    return [np.swapaxes(x, 0, 1) if batch_first else x, *(np.stack(end) for end in ends)]


def _states(x: Array, given: Sequence[Array | None], shape: tuple[int, ...]) -> list[Array]:
    """Return the states to start from, zeros where none is given. torch broadcasts none of them."""
    states = [np.zeros(shape, x.dtype) if s is None else s for s in given]
    if any(s.shape != shape for s in states):
        raise ValueError(f"states {[s.shape for s in states]} instead of {shape}")
    return states


def _one(
    kind: str, x: Array, h: Array | None, c: Array | None, w: Array, r: Array, b: Array | None, rb: Array | None,
    relu: int = 0,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the states after one step. Gates are in torch's order."""
    if x.ndim not in (1, 2):
        raise ValueError(f"{x.ndim} axes")
    function, gates = KINDS[kind]
    nothing = np.zeros(w.shape[0], x.dtype)
    parts = [
        np.concatenate([np.split(v, len(gates))[i] for i in gates])
        for v in (w, r, nothing if b is None else b, nothing if rb is None else rb)
    ]
    first, memory = _states(x, (h, c), (*x.shape[:-1], r.shape[1]))
    return function(x, first, memory, *parts, relu)  # type: ignore[call-arg, arg-type]


def LSTMCell(x: Array, h: Array | None, c: Array | None, w: Array, r: Array, b: Array = None, rb: Array = None) -> Any:
    return list(_one("LSTM", x, h, c, w, r, b, rb))


def GRUCell(
    x: Array, h: Array | None, w: Array, r: Array, b: Array = None, rb: Array = None, *, relu: int = 0
) -> Array:  # fmt: skip
    return _one("GRU", x, h, None, w, r, b, rb)[0]


def RNNCell(
    x: Array, h: Array | None, w: Array, r: Array, b: Array = None, rb: Array = None, *, relu: int = 0
) -> Array:  # fmt: skip
    return _one("RNN", x, h, None, w, r, b, rb, relu)[0]


def LSTM(x: Array, h: Array | None, c: Array | None, *weights: Array | None, **attributes: Any) -> list[Array]:
    return _layers("LSTM", x, (h, c), weights, **attributes)


def GRU(x: Array, h: Array | None, *weights: Array | None, **attributes: Any) -> list[Array]:
    return _layers("GRU", x, (h,), weights, **attributes)


def RNN(x: Array, h: Array | None, *weights: Array | None, **attributes: Any) -> list[Array]:
    return _layers("RNN", x, (h,), weights, **attributes)
