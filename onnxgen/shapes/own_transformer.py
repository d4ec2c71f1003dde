"""torch's multi-head attention and transformer modules in numpy, as `onnxgen.MultiheadAttention` and `Transformer`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from onnxgen.shapes.own import dropped

Array: TypeAlias = Any  # numpy says no more of most results


def _projected(x: Array, weight: Array, bias: Array | None, start: int, width: int) -> Array:
    made = x @ weight[:, start : start + width]
    return made if bias is None else made + bias[start : start + width]


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
    made = zip(inputs, weights, biases, starts)
    q, k, v = (_projected(x, w, b, start, width) for x, w, b, start in made)
    q, k, v = (x.reshape(*x.shape[:2], heads, width // heads).swapaxes(1, 2) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / q.dtype.type(math.sqrt(width // heads))
    batch, _, length, keys = scores.shape
    if not need_weights and 0 in (batch, keys) and (attn_mask is not None or padding is not None):
        raise ValueError("a mask without elements, which torch's layer does not split by heads")
    if attn_mask is not None:
        attn_mask = _added(attn_mask, scores, (length, keys), (batch * heads, length, keys))
        scores = scores + (attn_mask if attn_mask.ndim == 2 else attn_mask.reshape(scores.shape))
    if padding is not None:
        scores = scores + _added(padding, scores, (batch, keys))[:, None, None]
    powers = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    shares = powers / powers.sum(-1, keepdims=True)
    if not need_weights:  # torch's other function: a row without any key is zeros
        shares = np.where((scores > -np.inf).any(-1, keepdims=True), shares, scores.dtype.type(0))
    shares = dropped(shares, dropout)
    y = (shares @ v).swapaxes(1, 2)
    y = y.reshape(*y.shape[:2], width) @ (out_weight if transposed else out_weight.T)
    y = y if out_bias is None else y + out_bias
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
        given = {key: self.options[key] for key in ("heads", "batch_first", "dropout")}

        def function(x: Array, memory: Array | None, mask: Array | None) -> Array:
            keys = x if memory is None else memory
            tensors = (*taken, mask, None)
            return MultiheadAttention(
                x, keys, keys, *tensors, starts=starts, transposed=turned, need_weights=0, average=1, **given
            )[0]

        return function

    def take(self, count: int) -> list[Array | None]:
        taken, self.tensors = self.tensors[:count], self.tensors[count:]
        return taken

    def norm(self, x: Array, taken: Sequence[Array | None], epsilon: float) -> Array:
        weight, bias = taken
        centred = x - x.mean(-1, keepdims=True)
        made = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + x.dtype.type(epsilon)) * weight
        return made if bias is None else made + bias

    def layer(self, x: Array, memory: Array | None, masks: Sequence[Array | None]) -> Array:
        parts = [self.attention(self.take(8)) for _ in masks]
        linears, norms = [self.take(2) for _ in range(2)], [self.take(2) for _ in range(len(masks) + 1)]
        rate, epsilon = self.options["dropout"], self.options["epsilon"]

        def block(i: int, x: Array) -> Array:
            if i < len(parts):
                return dropped(parts[i](x, memory if i else None, masks[i]), rate)
            inner = self.linear(x, linears[0])
            inner = np.maximum(inner, 0) if self.options["activation"] == "relu" else _gelu(inner)
            return dropped(self.linear(dropped(inner, rate), linears[1]), rate)

        for i, norm in enumerate(norms):
            if self.options["norm_first"]:
                x = x + block(i, self.norm(x, norm, epsilon))
            else:
                x = self.norm(x + block(i, x), norm, epsilon)
        return x

    def linear(self, x: Array, taken: Sequence[Array | None]) -> Array:
        weight, bias = taken
        return x @ weight if bias is None else x @ weight + bias


def _gelu(x: Array) -> Array:
    return x * (1 + np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))).astype(x.dtype) / 2


def Transformer(
    source: Array, target: Array | None, src_mask: Array | None, tgt_mask: Array | None, memory_mask: Array | None,
    *tensors: Array | None, stacked: int, encoders: int, decoders: int, norms: int, norm_epsilon: float, **options: Any,
) -> Array:  # fmt: skip
    module = _Module(tensors, **options)
    x = source
    for _ in range(encoders):
        x = module.layer(x, None, [src_mask])
    for _ in range(decoders):
        x = module.layer(x, target, [tgt_mask, memory_mask])
    return module.norm(x, module.take(2), norm_epsilon) if norms else x
