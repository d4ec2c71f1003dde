"""torch's recurrent layers, multi-head attention and transformers in numpy.

`LSTM`, `GRU` and `RNN` have several layers and both directions.
"""

from __future__ import annotations

import math
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
    total = x @ w.T + h @ r.T + b + rb
    return (np.maximum(total, 0) if relu else np.tanh(total)), c


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
            first = [s[layer * directions + d] for s in firsts]
            outputs, *last = _one_way(kind, x[::-1] if d else x, first, (w[d], r[d], *np.split(both, 2)), relu)
            parts.append(outputs[::-1] if d else outputs)
            for end, state in zip(ends, last):
                end.append(state)
        x = np.concatenate(parts, -1)
        x = dropped(x, dropout) if layer < count - 1 else x
    return [np.swapaxes(x, 0, 1) if batch_first else x, *(np.stack(end) for end in ends)]


def _one_way(
    kind: str, x: Array, states: Sequence[Array], weights: tuple[Array, ...], relu: int
) -> tuple[Array, Array, Array]:
    """Return the outputs of all steps in one direction, and the last states."""
    h, c = states[0], states[-1]  # only an LSTM has the second
    outputs = []
    for step in x:
        h, c = KINDS[kind][0](step, h, c, *weights, relu)  # type: ignore[call-arg]
        outputs.append(h)
    return np.stack(outputs), h, c


def _states(x: Array, initial: Sequence[Array | None], shape: tuple[int, ...]) -> list[Array]:
    """Return the states to start from, zeros where none is given. torch broadcasts none of them."""
    states = [np.zeros(shape, x.dtype) if s is None else s for s in initial]
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


def _masked(scores: Array, mask: Array | None, padding: Array | None) -> Array:
    batch, heads, length, keys = scores.shape
    if mask is not None:
        mask = _added(mask, scores, (length, keys), (batch * heads, length, keys))
        scores = scores + (mask if mask.ndim == 2 else mask.reshape(scores.shape))
    return scores if padding is None else scores + _added(padding, scores, (batch, keys))[:, None, None]


def _added(mask: Array, x: Array, *shapes: tuple[int, ...]) -> Array:
    """Return the numbers that a mask of one of some shapes adds to scores. torch broadcasts no mask."""
    if mask.shape not in shapes:
        raise ValueError(f"a mask {mask.shape} instead of one of {shapes}")
    return np.where(mask, x.dtype.type(-np.inf), x.dtype.type(0)) if mask.dtype == bool else mask


def MultiheadAttention(
    query: Array, key: Array, value: Array, *tensors: Array | None,
    heads: int, starts: Sequence[int], transposed: int, batch_first: int, dropout: float, need_weights: int,
    average: int,
) -> list[Array]:  # fmt: skip
    weights, biases, (out_weight, out_bias) = tensors[:3], tensors[3:6], tensors[6:8]
    attn_mask, padding = [*tensors[8:], None, None][:2]
    assert out_weight is not None
    width = out_weight.shape[0]
    inputs = [x.swapaxes(0, 1) for x in (query, key, value)] if not batch_first else [query, key, value]
    operands = zip(inputs, weights, biases, starts)
    q, k, v = (_linear(x, (w, b), slice(start, start + width)) for x, w, b, start in operands)
    q, k, v = (x.reshape(*x.shape[:2], heads, width // heads).swapaxes(1, 2) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / q.dtype.type(math.sqrt(width // heads))
    if not need_weights and 0 in (len(scores), scores.shape[-1]) and (attn_mask is not None or padding is not None):
        raise ValueError("a mask without elements, which torch's layer does not split by heads")
    scores = _masked(scores, attn_mask, padding)
    powers = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    shares = powers / powers.sum(-1, keepdims=True)
    if not need_weights:  # torch's other function: a row without any key is zeros
        shares = np.where((scores > -np.inf).any(-1, keepdims=True), shares, scores.dtype.type(0))
    shares = dropped(shares, dropout)
    y = (shares @ v).swapaxes(1, 2)
    y = _linear(y.reshape(*y.shape[:2], width), (out_weight if transposed else out_weight.T, out_bias))
    return [y if batch_first else y.swapaxes(0, 1), shares.mean(1) if average else shares]


class _Module:
    """One `onnxgen.Transformer` while it is computed; takes its tensors in their order."""

    def __init__(
        self, tensors: Sequence[Array | None], starts: Sequence[int], transposed: Sequence[int], **options: Any
    ):
        self.tensors, self.starts, self.transposed = list(tensors), list(starts), list(transposed)
        self.options = options

    def attention(self, taken: list[Array | None]) -> Any:
        starts, self.starts = self.starts[:3], self.starts[3:]
        turned = self.transposed.pop(0)
        options = {key: self.options[key] for key in ("heads", "batch_first", "dropout")}

        def function(x: Array, memory: Array | None, mask: Array | None) -> Array:
            keys = x if memory is None else memory
            tensors = (*taken, mask, None)
            return MultiheadAttention(
                x, keys, keys, *tensors, starts=starts, transposed=turned, need_weights=0, average=1, **options
            )[0]

        return function

    def take(self, count: int) -> list[Array | None]:
        taken, self.tensors = self.tensors[:count], self.tensors[count:]
        return taken

    def norm(self, x: Array, taken: Sequence[Array | None], epsilon: float) -> Array:
        weight, bias = taken
        centred = x - x.mean(-1, keepdims=True)
        y = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + x.dtype.type(epsilon)) * weight
        return y if bias is None else y + bias

    def layer(self, x: Array, memory: Array | None, masks: Sequence[Array | None]) -> Array:
        parts = [self.attention(self.take(8)) for _ in masks]
        linears, norms = [self.take(2) for _ in range(2)], [self.take(2) for _ in range(len(masks) + 1)]
        rate, epsilon = self.options["dropout"], self.options["epsilon"]

        def block(i: int, x: Array) -> Array:
            if i < len(parts):
                return dropped(parts[i](x, memory if i else None, masks[i]), rate)
            inner = _linear(x, linears[0])
            inner = np.maximum(inner, 0) if self.options["activation"] == "relu" else _gelu(inner)
            return dropped(_linear(dropped(inner, rate), linears[1]), rate)

        for i, norm in enumerate(norms):
            if self.options["norm_first"]:
                x = x + block(i, self.norm(x, norm, epsilon))
            else:
                x = self.norm(x + block(i, x), norm, epsilon)
        return x


def _linear(x: Array, tensors: Sequence[Any], columns: slice = slice(None)) -> Array:
    """Return `x @ weight + bias` for some columns of both."""
    weight, bias = tensors
    y = x @ weight[:, columns]
    return y if bias is None else y + bias[columns]


def _gelu(x: Array) -> Array:
    return x * (1 + np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))).astype(x.dtype) / 2


def Transformer(
    source: Array, target: Array | None,
    src_mask: Array | None, tgt_mask: Array | None, memory_mask: Array | None, *tensors: Array | None,
    stacked: int, encoders: int, decoders: int, norms: int, norm_epsilon: float, **options: Any,
) -> Array:  # fmt: skip
    module = _Module(tensors, **options)
    x = source
    for _ in range(encoders):
        x = module.layer(x, None, [src_mask])
    for _ in range(decoders):
        x = module.layer(x, target, [tgt_mask, memory_mask])
    return module.norm(x, module.take(2), norm_epsilon) if norms else x
