"""Operators of onnxruntime without a kernel in its CPU provider: computed in numpy, or by other kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from onnxgen.paranoid.picture import Made
from onnxgen.paranoid.region import Untold
from onnxgen.paranoid.single import Single
from onnxgen.shapes import own

Array: TypeAlias = Any  # numpy says no more of most results


@dataclass
class Kernel:
    """Runs another operator with some attributes of a node."""

    single: Single
    step: Made
    wide: bool

    def __call__(self, op: str, *inputs: Array | None, without: Sequence[str] = ()) -> Array:
        attributes = {name: a for name, a in self.step.attributes.items() if name not in without}
        return self.run(replace(self.step, op=op, attributes=attributes), inputs)

    def standard(self, op: str, version: int, *inputs: Array | None, **names: str) -> Array:
        """Compute a standard operator. `names`: maps its attributes to those of the node."""
        given = {new: self.step.attributes[old] for new, old in names.items() if old in self.step.attributes}
        return self.run(replace(self.step, op=op, domain="", version=version, attributes=given), inputs)

    def run(self, made: Made, inputs: Sequence[Array | None]) -> Array:
        return self.single.run(replace(made, outputs=made.outputs[:1]), list(inputs), self.wide)[0]


StandIn = Callable[..., Any]
STAND_INS: dict[str, StandIn] = {}


def run(single: Single, step: Made, inputs: list[Any], wide: bool) -> Sequence[Any] | None:
    """Return the outputs of such a node, or None if there is no replacement. Raises `Untold`."""
    function = STAND_INS.get(step.op)
    if function is None:
        return None
    try:
        made = function(Kernel(single, step, wide), *inputs, **{name: a.value for name, a in step.attributes.items()})
    except Untold:
        raise
    except Exception as error:
        raise Untold(f"{step.domain}.{step.op}: {error}") from None
    return made if isinstance(made, list) else [made]


def stand_in(*names: str) -> Callable[[StandIn], StandIn]:
    def register(function: StandIn) -> StandIn:
        STAND_INS.update(dict.fromkeys(names, function))
        return function

    return register


# ---- sums and products -----------------------------------------------------------------------------------------------


@stand_in("BiasAdd")
def bias_add(kernel: Kernel, x: Array, bias: Array, skip: Array) -> Array:
    return x + bias + skip


@stand_in("BiasSplitGelu")
def bias_split_gelu(kernel: Kernel, x: Array, bias: Array) -> Array:
    first, second = np.split(x + bias, 2, -1)
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return (first * second * (1 + erf(second / math.sqrt(2))) / 2).astype(x.dtype)


@stand_in("GemmFastGelu")
def gemm_fast_gelu(kernel: Kernel, x: Array, w: Array, bias: Array | None = None) -> Array:
    made = x @ w
    made = made if bias is None else made + bias
    inside = math.sqrt(2 / math.pi) * (made + 0.044715 * made**3)
    return (made * (1 + np.tanh(inside)) / 2).astype(x.dtype)


@stand_in("BiasDropout", "BitmaskBiasDropout")
def bias_dropout(
    kernel: Kernel, x: Array, bias: Array, residual: Array | None = None, ratio: Array | None = None,
    training_mode: Array | None = None, *, seed: int = 0,
) -> list[Array]:  # fmt: skip
    made = own.dropped(x + bias, 0.5 if ratio is None else float(ratio))
    return [made if residual is None else made + residual, np.ones(x.shape, bool)]


@stand_in("ComplexMul")
def complex_mul(kernel: Kernel, a: Array, b: Array) -> Array:
    return _pairs(_complex(a) * _complex(b), a)


@stand_in("ComplexMulConj")
def complex_mul_conj(kernel: Kernel, a: Array, b: Array) -> Array:
    return _pairs(_complex(a) * np.conj(_complex(b)), a)


def _complex(x: Array) -> Array:
    return x[..., 0] + 1j * x[..., 1]


def _pairs(x: Array, like: Array) -> Array:
    return np.stack([x.real, x.imag], -1).astype(like.dtype)


@stand_in("BiasSoftmax")
def bias_softmax(kernel: Kernel, x: Array, bias: Array, *, axis: int = 1, is_inner_broadcast: int) -> Array:
    axes = tuple(range(axis % x.ndim, x.ndim))
    powers = np.exp(x + bias - (x + bias).max(axes, keepdims=True))
    return powers / powers.sum(axes, keepdims=True)


@stand_in("GemmaRotaryEmbedding")
def gemma_rotary_embedding(kernel: Kernel, angles: Array, *parts: Array) -> list[Array]:
    sin, cos = (f(angles).astype(parts[0].dtype)[:, None] for f in (np.sin, np.cos))
    return [parts[i] * cos + parts[i + 1] * sin for i in (0, 2)]


# ---- norms -----------------------------------------------------------------------------------------------------------


@stand_in("GroupNorm")
def group_norm(
    kernel: Kernel, x: Array, gamma: Array, beta: Array, *, activation: int, groups: int, channels_last: int = 1,
    epsilon: float = 1e-5,
) -> Array:  # fmt: skip
    """Compute GroupNorm: mean and variance of each group of channels of a sample."""
    first = np.moveaxis(x, -1, 1) if channels_last else x
    grouped = first.reshape(x.shape[0], groups, -1).astype(np.float64)
    normed = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + epsilon)
    wide = (-1, *(1,) * (x.ndim - 2))
    made = normed.reshape(first.shape) * gamma.reshape(wide) + beta.reshape(wide)
    made = made / (1 + np.exp(-made)) if activation else made
    return (np.moveaxis(made, 1, -1) if channels_last else made).astype(x.dtype)


@stand_in("SkipGroupNorm")
def skip_group_norm(
    kernel: Kernel, x: Array, gamma: Array, beta: Array, skip: Array, bias: Array | None = None, *,
    channels_last: int = 1, **attributes: Any,
) -> list[Array]:  # fmt: skip
    inner = (1,) * (x.ndim - 2)
    if skip.ndim == 2:
        skip = skip.reshape(skip.shape[0], *inner, -1) if channels_last else skip.reshape(*skip.shape, *inner)
    if bias is not None:
        skip = skip + (bias if channels_last else bias.reshape(-1, *inner))
    return [group_norm(kernel, x + skip, gamma, beta, channels_last=channels_last, **attributes), x + skip]


# ---- integers --------------------------------------------------------------------------------------------------------


@stand_in("MulInteger")
def mul_integer(kernel: Kernel, a: Array, a_zero: Array | None, b: Array, b_zero: Array | None = None) -> Array:
    parts = [x.astype(np.int32) - (0 if z is None else z.astype(np.int32)) for x, z in ((a, a_zero), (b, b_zero))]
    return parts[0] * parts[1]


@stand_in("ReduceSumInteger")
def reduce_sum_integer(kernel: Kernel, x: Array, *, axes: Sequence[int], keepdims: int) -> Array:
    return x.astype(np.int32).sum(tuple(axes), dtype=np.int32, keepdims=bool(keepdims))


@stand_in("QLinearReduceMean")
def qlinear_reduce_mean(
    kernel: Kernel, x: Array, scale: Array, zero: Array | None, to_scale: Array, to_zero: Array | None = None, *,
    axes: Sequence[int], keepdims: int,
) -> Array:  # fmt: skip
    floats = (x.astype(np.float32) - (0 if zero is None else zero.astype(np.float32))) * scale
    made = np.rint(floats.mean(tuple(axes), keepdims=bool(keepdims)) / to_scale)
    bounds = np.iinfo(x.dtype)
    return np.clip(made + (0 if to_zero is None else to_zero.astype(np.float32)), bounds.min, bounds.max).astype(
        x.dtype
    )


@stand_in("TorchEmbedding")
def torch_embedding(kernel: Kernel, weight: Array, indices: Array, *_: Array | None) -> Array:
    return weight[indices]


# ---- by other kernels ------------------------------------------------------------------------------------------------


@stand_in("NhwcConv", "NhwcFusedConv")
def nhwc_conv(
    kernel: Kernel, x: Array, w: Array, bias: Array | None = None, z: Array | None = None, **attributes: Any
) -> Array:
    """Compute NhwcConv as FusedConv, whose channels come first."""
    inner = [None if v is None else np.ascontiguousarray(np.moveaxis(v, -1, 1)) for v in (x, z)]
    given = [inner[0], w, bias, inner[1]]
    return np.moveaxis(kernel("FusedConv", *given[: 4 if z is not None else 3]), 1, -1)


@stand_in("FusedMatMulActivation")
def fused_matmul_activation(kernel: Kernel, a: Array, b: Array, *, activation: Any, **attributes: Any) -> Array:
    names = {name: f"activation_{name}" for name in ("alpha", "beta", "gamma", "axis")}
    made = kernel("FusedMatMul", a, b, without=["activation", *names.values()])
    return kernel.standard(activation, 13 if "Softmax" in activation else 6, made, **names)


@stand_in("LayerNormalization", "SimplifiedLayerNormalization")
def layer_normalization(kernel: Kernel, *inputs: Array | None, **attributes: Any) -> Array:
    """Compute it with the standard's LayerNormalization."""
    version = 17 if kernel.step.op == "LayerNormalization" else 1
    return kernel.standard(kernel.step.op, version, *inputs, **{name: name for name in attributes})


@stand_in("PackedAttention")
def packed_attention(
    kernel: Kernel, x: Array, weights: Array, bias: Array, offsets: Array, starts: Array, *_: Array | None,
    qkv_hidden_sizes: Sequence[int] = (), **attributes: Any,
) -> Array:  # fmt: skip
    made = x @ weights + bias
    ends = np.cumsum(qkv_hidden_sizes)[:2] if len(qkv_hidden_sizes) else 3
    return packed_multi_head_attention(kernel, *np.split(made, ends, -1), None, offsets, starts)


@stand_in("PackedMultiHeadAttention")
def packed_multi_head_attention(
    kernel: Kernel, query: Array, key: Array | None, value: Array | None, bias: Array | None, offsets: Array,
    starts: Array, *_: Array | None, **attributes: Any,
) -> Array:  # fmt: skip
    """Compute MultiHeadAttention for each sequence separately."""
    parts = [query, key, value]
    if key is None:  # [tokens, heads, 3, size]
        parts = [query[:, :, i].reshape(query.shape[0], -1) for i in range(3)]
    rows = []
    for start, end in zip(starts, starts[1:]):
        given = [np.ascontiguousarray(x[None, start:end]) for x in parts if x is not None]
        given += [] if bias is None else [bias]
        rows.append(kernel("MultiHeadAttention", *given, without=["qkv_hidden_sizes"])[0])
    return np.concatenate(rows)
