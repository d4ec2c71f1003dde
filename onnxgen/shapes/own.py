"""The operators of the domain `onnxgen` in numpy, written for the checks only: the references of their cards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

Array: TypeAlias = Any  # numpy says no more of most results

# What every random number between 0 and 1 is. `number < keep` and `number + keep >= 1` both keep what is kept with a
# chance over a half, so that both spellings of dropping agree; wherever their axes lie, all elements fare alike.
RANDOM_NUMBER = 0.4999


def dropped(x: Array, ratio: float) -> Array:
    """Apply Dropout in training mode, with one random number for all elements."""
    if 1 - ratio <= RANDOM_NUMBER:
        return x * x.dtype.type(0)  # what is no number stays none
    return x / x.dtype.type(1 - ratio) if ratio else x


def StochasticDepth(x: Array, *, p: float, mode: str) -> Array:
    if "alpha" not in mode:
        return dropped(x, p)
    selu = 1.7580993408473766
    scale = ((selu**2 * p + 1) * (1 - p)) ** -0.5
    return scale * ((x if 1 - p > RANDOM_NUMBER else np.full_like(x, -selu)) + x.dtype.type(selu * p))


def Affine(x: Array, scale: Array, bias: Array) -> Array:
    return x * scale.reshape(1) + bias.reshape(1)  # the layer's numbers have one axis


def _has_axes(x: Array, least: int = 1) -> None:
    """Raise `ValueError` for a tensor of fewer axes than torch's function takes."""
    if x.ndim < least:
        raise ValueError(f"{x.ndim} axes")


def WeightNorm(v: Array, g: Array, *, dim: int) -> Array:
    _has_axes(v)
    axes = tuple(axis for axis in range(v.ndim) if axis != dim)
    return v * (g / np.sqrt((v * v).sum(axes, keepdims=bool(g.ndim))))


def Standardize(
    x: Array, scale: Array | None = None, bias: Array | None = None, *, epsilon: float, shape: Sequence[int] = ()
) -> Array:
    x = x.reshape(1, shape[0], -1) if len(shape) else x
    _has_axes(x, 2)
    if x.size == x.shape[1]:
        raise ValueError("one value per channel, of which torch has no variance")
    axes, per_channel = (0, *range(2, x.ndim)), (1, -1, *[1] * (x.ndim - 2))
    y = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + x.dtype.type(epsilon))
    y = y if scale is None else y * scale.reshape(per_channel)
    y = y if bias is None else y + bias.reshape(per_channel)
    return y.reshape(shape) if len(shape) else y


def Linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    product = x @ weight
    if weight.ndim > 2 or bias is not None and bias.size not in (1, bias.shape[-1] if product.ndim else 1):
        raise ValueError(f"a matrix of {weight.ndim} axes, or a bias of several")
    y = product if bias is None else product + bias.reshape(-1)  # the layer's has one axis
    if y.shape != product.shape:
        raise ValueError("a bias that gives the result other axes")
    return y


def Glu(x: Array, *, axis: int) -> Array:
    first, second = np.split(x, 2, axis)
    return first / (1 + np.exp(-second))


def Softplus(x: Array, *, beta: float) -> Array:
    return np.logaddexp(x.dtype.type(0), x * x.dtype.type(beta)) / x.dtype.type(beta)


def LogSigmoid(x: Array) -> Array:
    return -np.logaddexp(x.dtype.type(0), -x)


def Rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def Log10(x: Array) -> Array:
    return np.log10(x)


def Log2(x: Array) -> Array:
    return np.log2(x)


def Normalize(x: Array, *, axis: int, p: int, epsilon: float) -> Array:
    norm = (np.abs(x) ** p).sum(axis, keepdims=True) ** (1 / p)
    return x / np.maximum(norm, x.dtype.type(epsilon))


def CosineSimilarity(x: Array, y: Array, *, axis: int, epsilon: float) -> Array:
    return (Normalize(x, axis=axis, p=2, epsilon=epsilon) * Normalize(y, axis=axis, p=2, epsilon=epsilon)).sum(axis)


def Variance(x: Array, *, axes: Sequence[int], keepdims: int) -> Array:
    return np.asarray(x.var(tuple(axes) or None, ddof=1, keepdims=bool(keepdims)))


def Deviation(x: Array, *, axes: Sequence[int], keepdims: int) -> Array:
    return np.asarray(x.std(tuple(axes) or None, ddof=1, keepdims=bool(keepdims)))


def Attention(
    q: Array, k: Array, v: Array, mask: Array | None = None, *, scale: float, is_causal: int = 0, dropout: float = 0.0
) -> Array:
    """softmax(q k^T scale + mask) v; a row whose keys are all hidden is zeros."""
    scores = (q @ np.swapaxes(k, -1, -2)) * q.dtype.type(scale)
    if mask is not None and (
        np.broadcast_shapes(mask.shape, scores.shape) != scores.shape or mask.ndim < 2 < q.ndim - 1
    ):
        raise ValueError(f"a mask {mask.shape} of scores {scores.shape}")
    shown = np.ones((), bool)
    if is_causal:
        shown = np.tril(np.ones(scores.shape[-2:], bool))
    if mask is not None and mask.dtype == bool:
        shown = shown & mask
    elif mask is not None:
        scores, shown = scores + mask, shown & (mask != -np.inf)
    shown = np.broadcast_to(shown, scores.shape)
    scores = np.where(shown, scores, -np.inf)
    with np.errstate(all="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        weights = powers / powers.sum(-1, keepdims=True)
    weights = np.where(shown.any(-1, keepdims=True), weights, 0).astype(q.dtype)
    return dropped(weights, dropout) @ v


# ---- layout ----------------------------------------------------------------------------------------------------------


def Unbind(x: Array, *, axis: int = 0) -> list[Array]:
    return [x.take(i, axis) for i in range(x.shape[axis])]


def Stack(*inputs: Array, axis: int = 0) -> Array:
    return np.stack(inputs, axis)


def Roll(x: Array, *, shifts: Sequence[int], axes: Sequence[int]) -> Array:
    return np.roll(x, tuple(shifts), tuple(axes))


def RepeatInterleave(x: Array, *, repeats: int, axis: int) -> Array:
    _has_axes(x)
    return np.repeat(x, repeats, axis)


def Positions(x: Array) -> Array:
    return np.argwhere(np.atleast_1d(x))  # as onnxruntime: one axis in a scalar


def Chosen(x: Array, mask: Array) -> Array:
    if x.shape[: mask.ndim] != mask.shape:
        raise ValueError("a mask has another size")
    return x[mask]


def RotateHalf(x: Array) -> Array:
    if x.shape[-1] == 1:
        raise ValueError("one element has no halves")
    half = (x.shape[-1] + 1) // 2
    return np.concatenate([-x[..., half:], x[..., :half]], -1)


def RotatePairs(x: Array) -> Array:
    return np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)


# ---- text ------------------------------------------------------------------------------------------------------------


def TextCodes(*inputs: Array) -> list[Array]:
    table = sorted({text for array in inputs for text in array.reshape(-1)})
    places = {text: i for i, text in enumerate(table)}
    texts = np.empty(len(table), object)
    texts[:] = table
    codes = [np.array([places[t] for t in a.reshape(-1)], np.int64).reshape(a.shape) for a in inputs]
    return [texts, *codes]


def TextAt(table: Array, index: Array) -> Array:
    return np.asarray(table[index], object)


# ---- quantised -------------------------------------------------------------------------------------------------------


def FakeQuantize(
    x: Array, scale: Array, zero: Array | None = None, *,
    axis: int = 1, block: int = 0, low: int = -128, high: int = 127, to: int = 0,
) -> Array:  # fmt: skip
    """x as integers from `low` to `high` hold it, or floats of the type `to`, times `scale`."""
    steps, shift = spread(scale, x, axis, block), 0 if zero is None else spread(zero, x, axis, block)
    if to:
        kind = ir.DataType(to)
        if not kind.is_floating_point():
            raise ValueError(f"{kind} is no type of floats")
        return (np.clip(x / steps, kind.min, kind.max).astype(kind.numpy()).astype(x.dtype) * steps).astype(x.dtype)
    whole = np.clip(np.round(x / steps) + shift, low, high) - shift
    return (whole * steps).astype(x.dtype)


def FakeQuantizeDynamic(x: Array) -> Array:
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = (high - low) / 255 or 1.0
    zero = np.clip(np.round(-low / scale), 0, 255)
    return ((np.clip(np.round(x / scale) + zero, 0, 255) - zero) * scale).astype(x.dtype)


def dynamic_range(x: Array) -> tuple[Array, Array, Array]:
    """DynamicQuantizeLinear, less its zero point: integers as float64, the scale, the zero point."""
    low, high = np.float32(min(x.min(initial=0), 0)), np.float32(max(x.max(initial=0), 0))
    scale = (high - low) / np.float32(255) or np.float32(1)
    zero = np.clip(np.round(-low / scale), 0, 255)
    return np.clip(np.round(x / scale) + zero, 0, 255).astype(np.float64) - zero, scale, zero


def DynamicLinear(x: Array, weight: Array, scale: Array, zero: Array | None = None, bias: Array | None = None) -> Array:
    numbers, step, _ = dynamic_range(x)
    total = numbers @ (weight.astype(np.float64) - (0 if zero is None else zero.astype(np.float64)))
    y = total.astype(np.float32) * (step * scale)
    return y if bias is None else y + bias


def DynamicConv(
    x: Array, weight: Array, scale: Array, zero: Array | None = None, bias: Array | None = None, *,
    dilations: Sequence[int] = (), group: int = 1, pads: Sequence[int] = (), strides: Sequence[int] = (),
    rounded: int = 0,
) -> Array:  # fmt: skip
    numbers, step, _ = dynamic_range(x)
    kernel = weight.astype(np.float64) - (0 if zero is None else zero.astype(np.float64))
    step, shape = np.float32(step * scale.reshape(())), (-1, *[1] * (x.ndim - 2))
    total = convolved(numbers, kernel, dilations, group, pads, strides)
    if bias is not None and rounded:
        total = total + np.floor(bias / step).reshape(shape)
    y = total.astype(np.float32) * step
    return y if bias is None or rounded else y + bias.reshape(shape)


def convolved(
    x: Array, kernel: Array, dilations: Sequence[int], group: int, pads: Sequence[int], strides: Sequence[int]
) -> Array:
    """Conv of ONNX, with the same padding at both ends."""
    n = x.ndim - 2
    ones = [1] * n
    steps, apart, ends = (list(numbers) or ones for numbers in (strides, dilations, pads[:n] if any(pads) else ()))
    x = np.pad(x, [(0, 0), (0, 0), *[(end, end) if any(pads) else (0, 0) for end in ends]])
    spans = [(size - 1) * step + 1 for size, step in zip(kernel.shape[2:], apart)]
    windows = np.lib.stride_tricks.sliding_window_view(x, spans, tuple(range(2, n + 2)))
    cut = (slice(None), slice(None), *(slice(None, None, s) for s in steps), *(slice(None, None, s) for s in apart))
    windows = windows[cut]
    inside = kernel.shape[1]
    axes = (1, *range(n + 2, 2 * n + 2)), (1, *range(2, n + 2))
    parts = [
        np.tensordot(windows[:, i * inside : (i + 1) * inside], part, axes)
        for i, part in enumerate(np.split(kernel, group))
    ]
    return np.moveaxis(np.concatenate(parts, -1), -1, 1)


def spread(scale: Array, x: Array, axis: int, block: int) -> Array:
    """Broadcast a scale to a tensor. It has one number for all, one per index of an axis, or one per block of it."""
    if scale.size == 1:
        return scale.reshape(())
    if block:
        wide = np.repeat(scale, block, axis)
        return wide[tuple(slice(n) for n in x.shape)]
    shape = [1] * x.ndim
    shape[axis] = -1
    return scale.reshape(shape)


def SummedPool(
    X: Array, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0,
    kernel_shape: Sequence[int], pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Array:  # fmt: skip
    """Return the mean of each window. Counted padding includes what the last window reaches past the end."""
    rank = len(kernel_shape)
    steps = tuple(strides or [1] * rank)
    sides = _sides(X.shape[2:], kernel_shape, steps, auto_pad, ceil_mode, list(pads or [0] * 2 * rank))
    around = [(0, 0), (0, 0), *zip(sides[:rank], sides[rank:])]
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(X, around), tuple(kernel_shape), tuple(range(2, rank + 2))
    )
    at = (slice(None), slice(None), *(slice(None, None, s) for s in steps))
    total = windows[at].sum(tuple(range(-rank, 0)))
    if count_include_pad:
        return np.asarray(total / X.dtype.type(math.prod(kernel_shape)))
    ones = np.pad(np.ones_like(X), around)
    counted = np.lib.stride_tricks.sliding_window_view(ones, tuple(kernel_shape), tuple(range(2, rank + 2)))
    return np.asarray(total / counted[at].sum(tuple(range(-rank, 0))))


def _sides(
    sizes: Sequence[int], kernel: Sequence[int], steps: Sequence[int], auto_pad: str, ceil_mode: int, pads: list[int]
) -> list[int]:  # fmt: skip
    """Return the padding before each axis, then behind each, including what the last window of a rounded-up size
    reaches past it.
    """
    rank = len(kernel)
    sides = [0] * (2 * rank)
    for axis, (n, k, step) in enumerate(zip(sizes, kernel, steps)):
        before, after = pads[axis], pads[axis + rank]
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            total = max((-(-n // step) - 1) * step + k - n, 0)
            before = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            after = total - before
        elif auto_pad == "VALID":
            before = after = 0
        if ceil_mode and auto_pad == "NOTSET":
            count = -(-(n + before + after - k) // step) + 1
            count -= (count - 1) * step >= n + before  # a window must not begin past the end
            after = max(after, (count - 1) * step + k - n - before)
        sides[axis], sides[axis + rank] = before, after
    return sides
