"""What pooling and resizing are in terms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from onnxgen.canonical.algebra import Algebra
from onnxgen.canonical.layers import _wide
from onnxgen.canonical.rules import Result, rule
from onnxgen.canonical.terms import Term


def _is_floor(x: Term, out: Result, windows: Sequence[tuple[int, int, int, int]]) -> bool:
    """Whether no window reaches past what is padded: then rounding up the size of the result changes nothing."""
    sizes = list(zip(x.shape[-len(windows) :], out.shape[-len(windows) :], windows, strict=True))
    if not all(isinstance(size, int) and isinstance(made, int) for size, made, _ in sizes):
        return False
    return all(
        made == (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
        for size, made, (kernel, stride, pad, dilation) in sizes
    )


@rule("max_pool1d.default", "max_pool2d.default", "max_pool3d.default")
def max_pool(
    t: Algebra,
    out: Result,
    x: Term,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> Any:
    rank = len(_wide(kernel, 1)) if isinstance(kernel, tuple) and len(kernel) > 1 else _rank(x)
    kernel, stride, padding, dilation = (_wide(v, rank) for v in (kernel, stride or kernel, padding, dilation))
    if ceil and _is_floor(x, out, list(zip(kernel, stride, padding, dilation, strict=True))):
        ceil = False
    return t.term("call", ("max_pool", x, kernel, stride, padding, dilation, ceil), out.shape, out.dtype)


def _rank(x: Term) -> int:
    return len(x.shape) - 2


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    t: Algebra,
    out: Result,
    x: Term,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil: bool = False,
    counts_padding: bool = True,
    divisor: Any = None,
) -> Any:
    if divisor is not None:
        return None
    rank = len(kernel) if isinstance(kernel, tuple) and len(kernel) > 1 else _rank(x)
    kernel, stride, padding = (_wide(v, rank) for v in (kernel, stride or kernel, padding))
    if ceil and _is_floor(x, out, [(k, s, p, 1) for k, s, p in zip(kernel, stride, padding, strict=True)]):
        ceil = False
    if not ceil and not any(padding):
        counts_padding = False
        if x.shape[-rank:] == kernel:
            return t.mean(x, list(range(len(x.shape) - rank, len(x.shape))), True)
        here = x.shape[-rank:]
        if (
            t.thorough
            and kernel == stride
            and all(isinstance(s, int) and s % k == 0 for s, k in zip(here, kernel, strict=True))
        ):
            pairs = [size for s, k in zip(here, kernel, strict=True) for size in (s // k, k)]
            wide, first = t.reshaped(x, (*x.shape[:-rank], *pairs)), len(x.shape) - rank
            return t.mean(wide, list(range(first + 1, first + 2 * rank, 2)), False)
    return t.term("call", ("avg_pool", x, kernel, stride, padding, ceil, counts_padding), out.shape, out.dtype)


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def pooled(t: Algebra, out: Result, x: Term, sizes: Any) -> Any:
    rank = len(sizes)
    if all(s == 1 for s in sizes):
        return t.mean(x, list(range(len(x.shape) - rank, len(x.shape))), True)
    here = x.shape[-rank:]
    if all(isinstance(size, int) and isinstance(s, int) and size % s == 0 for size, s in zip(here, sizes, strict=True)):
        kernel = tuple(size // s for size, s in zip(here, sizes, strict=True))
        return x if math.prod(kernel) == 1 else avg_pool(t, out, x, kernel)
    return None


@rule("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def nearest(t: Algebra, out: Result, x: Term, sizes: Any, scales: Any) -> Any:
    return _enlarged(t, out, "nearest", x, None, scales)


@rule("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")
def linear(t: Algebra, out: Result, x: Term, sizes: Any, align: bool, scales: Any) -> Any:
    return _enlarged(t, out, "linear", x, align, scales)


@rule("upsample_bicubic2d.vec")
def cubic(t: Algebra, out: Result, x: Term, sizes: Any, align: bool, scales: Any) -> Any:
    return _enlarged(t, out, "cubic", x, align, scales)


def _enlarged(t: Algebra, out: Result, kind: str, x: Term, align: Any, scales: Any) -> Any:
    """Of a whole factor, a size and a scale say the same: torch divides by the scale, or one size by the other."""
    rank = len(x.shape) - 2
    factors = [_whole(made / size) for size, made in zip(x.shape[-rank:], out.shape[-rank:], strict=True)]
    if None in factors or (scales is not None and list(scales) != factors):
        return None
    if kind == "nearest" and t.thorough:
        sizes = [size for s, f in zip(x.shape[-rank:], factors, strict=True) for size in (s, f)]
        apart = [size for s in x.shape[-rank:] for size in (s, 1)]
        wide = t.expanded(t.reshaped(x, (*x.shape[:-rank], *apart)), (*x.shape[:-rank], *sizes))
        return t.reshaped(wide, out.shape)
    return t.term("call", ("enlarged", kind, x, align), out.shape, out.dtype)


def _whole(factor: Any) -> int | None:
    """Return a factor of numbers or of sizes as a whole number, or None."""
    is_whole = factor == int(factor) if isinstance(factor, (int, float)) else factor.is_Integer
    return int(factor) if is_whole else None
