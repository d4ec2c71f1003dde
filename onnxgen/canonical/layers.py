"""What convolutions, attention, reductions and norms are in terms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from onnxgen.canonical.algebra import Algebra
from onnxgen.canonical.rules import Result, _together, add, axes_of, matrices, mul, positive, power, rule, where
from onnxgen.canonical.terms import Term, is_size, number_in


@rule("conv1d.default", "conv2d.default", "conv3d.default")
def conv(
    t: Algebra, out: Result, x: Term, weight: Term, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any
) -> Any:
    rank = len(weight.shape) - 2
    if len(x.shape) != rank + 2:
        return None
    stride, padding, dilation = (_wide(v, rank) for v in (stride, padding, dilation))
    if x.op == "call" and x.args[0] == "pad" and (more := _even(x.args[2], rank)) is not None:
        x, padding = x.args[1], tuple(p + q for p, q in zip(padding, more, strict=True))
    if t.thorough and groups == 1 and not any(padding) and (made := _pieces(t, out, x, weight, stride)) is not None:
        return made if bias is None else t.added([(made, 1), (_per_channel(t, bias, rank), 1)], out.shape, out.dtype)
    result = t.term("call", ("conv", x, weight, stride, padding, dilation, groups), out.shape, out.dtype)
    if bias is None:
        return result
    return t.added([(result, 1), (_per_channel(t, bias, rank), 1)], out.shape, out.dtype)


def _per_channel(t: Algebra, values: Term, rank: int) -> Term:
    return t.reshaped(values, (values.shape[0], *[1] * rank))


def _pieces(t: Algebra, out: Result, x: Term, weight: Term, stride: Sequence[Any]) -> Term | None:
    """Return a convolution as a matrix product, if each place of the input is in one window."""
    kernel = weight.shape[2:]
    if tuple(stride) != tuple(kernel) or any(
        k != 1 and not (isinstance(s, int) and s % k == 0) for s, k in zip(x.shape[2:], kernel, strict=True)
    ):
        return None
    rank = len(kernel)
    cut = [s if k == 1 else s // k for s, k in zip(x.shape[2:], kernel, strict=True)]
    wide = t.reshaped(x, (*x.shape[:2], *(size for pair in zip(cut, kernel, strict=True) for size in pair)))
    batch, channel, made = 0, 1, 2 + 2 * rank
    inside = list(range(2, made))
    sizes = {**dict(enumerate(wide.shape)), made: weight.shape[0]}
    operands = [(wide, [batch, channel, *inside]), (weight, [made, channel, *inside[1::2]])]
    return t.contracted(operands, [batch, made, *inside[::2]], sizes, out.dtype)


@rule("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv_padded(
    t: Algebra, out: Result, x: Term, weight: Term, bias: Any, stride: Any, padding: str, dilation: Any, groups: Any
) -> Any:
    rank = len(weight.shape) - 2
    if len(x.shape) != rank + 2:
        return None
    reach = [d * (k - 1) for d, k in zip(_wide(dilation, rank), weight.shape[2:], strict=True)]
    if padding == "valid":
        return conv(t, out, x, weight, bias, stride, 0, dilation, groups)
    if any(r % 2 for r in reach):  # one more at the end
        pads = tuple(p for r in reversed(reach) for p in (r // 2, r - r // 2))
        wide = (*x.shape[:2], *(size + r for size, r in zip(x.shape[2:], reach, strict=True)))
        return conv(t, out, pad(t, Result(wide, x.dtype), x, pads), weight, bias, stride, 0, dilation, groups)
    return conv(t, out, x, weight, bias, stride, tuple(r // 2 for r in reach), dilation, groups)


def _wide(value: Any, rank: int) -> tuple[Any, ...]:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values * rank if len(values) == 1 else values


def _even(pads: Sequence[Any], rank: int) -> list[Any] | None:
    """Return what is padded on both sides of each of the last axes, in order, or None if the sides differ."""
    pairs = [(pads[i], pads[i + 1]) for i in range(0, len(pads), 2)][::-1]
    if len(pairs) > rank or any(a != b or not isinstance(a, int) or a < 0 for a, b in pairs):
        return None
    return [0] * (rank - len(pairs)) + [a for a, _ in pairs]


@rule("pad", "constant_pad_nd")
def pad(t: Algebra, out: Result, x: Term, pads: Any, *rest: Any) -> Any:
    mode, value = rest if len(rest) == 2 else ("constant", rest[0] if rest else 0)
    if mode == "circular" and all(isinstance(size, int) for size in (*x.shape, *pads)) and min(pads) >= 0:
        return _around(t, x, pads)
    if mode != "constant" or value not in (0, 0.0, None) or not all(is_size(p) for p in pads):
        return None
    if all(p == 0 for p in pads):
        return x
    while len(pads) > 2 and pads[-2:] == (0, 0):
        pads = pads[:-2]
    return t.term("call", ("pad", x, tuple(pads)), out.shape, out.dtype)


def _around(t: Algebra, x: Term, pads: Sequence[int]) -> Term:
    """Return a term with elements of its other end beside each end of its last axes."""
    for number in range(len(pads) // 2):
        axis, (before, after) = len(x.shape) - 1 - number, pads[2 * number : 2 * number + 2]
        size = x.shape[axis]
        parts = [t.sliced(x, axis, size - before, size), x, t.sliced(x, axis, 0, after)]
        x = t.joined([part for part in parts if part.shape[axis] != 0], axis)
    return x


@rule("scaled_dot_product_attention")
def attention(
    t: Algebra,
    out: Result,
    q: Term,
    k: Term,
    v: Term,
    mask: Any = None,
    p: Any = 0.0,
    causal: Any = False,
    scale: Any = None,
    gqa: Any = False,
) -> Any:
    if p or gqa or (scale is None and not isinstance(q.shape[-1], int)):
        return None
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    dtype = out.dtype
    scores = matrices(t, q, t.permuted(k, [*range(len(k.shape) - 2), len(k.shape) - 1, len(k.shape) - 2]), dtype)
    scores = t.added([(scores, scale)], scores.shape, dtype)
    here = Result(scores.shape, dtype)
    if causal:
        mask = t.term("call", ("causal",), scores.shape[-2:], "bool")
    if mask is not None and mask.dtype == "bool" and number_in(mask) == 1:
        mask = None
    if mask is not None and mask.dtype == "bool":
        scores = where(t, here, mask, scores, -math.inf)
    elif mask is not None:
        scores = t.added([(scores, 1), (mask, 1)], _together(scores.shape, mask.shape), dtype)
    shares = t.softmax(scores, len(scores.shape) - 1)
    if mask is not None and not causal and _may_hide_a_row(t, mask):
        shares = t.nothing_if_hidden(shares, mask)
    return matrices(t, shares, v, dtype)


def _may_hide_a_row(t: Algebra, mask: Term) -> bool:
    """Whether a mask may have a row of -inf or of False alone."""
    if mask in t.elements:
        shown = t.elements[mask] if mask.dtype == "bool" else t.elements[mask].isfinite()
        return not bool(shown.any(-1).all())
    if mask.dtype == "bool":
        return True
    todo, done = [mask], set()
    while todo:
        term = todo.pop()
        if term in done:
            continue
        done.add(term)
        if term.op == "sum" and any(isinstance(c, float) and math.isinf(c) for _, c in term.args[0]):
            return True
        if term.op == "constant" and not term.args[1]:
            return True
        if term.op == "call" and term.args[0].split("::")[-1].startswith(("log", "div", "full")):
            return True
        todo += term.parts()
    return False


# ---- reductions and norms --------------------------------------------------------------------------------------------


@rule("softmax.int", "_softmax")
def softmax(t: Algebra, out: Result, x: Term, axis: int, dtype: Any = None) -> Any:
    return t.softmax(t.cast(x, out.dtype), positive(axis, len(x.shape)))


@rule("log_softmax.int", "_log_softmax")
def log_softmax(t: Algebra, out: Result, x: Term, axis: int, dtype: Any = None) -> Any:
    x = t.cast(x, out.dtype)
    axis = positive(axis, len(x.shape))
    whole = t.total(t.exponents(x, axis), [axis], True)
    largest = t.extreme("amax", x, [axis], True)
    log = t.each("log", [whole], whole.shape, out.dtype)
    return t.added([(x, 1), (largest, -1), (log, -1)], out.shape, out.dtype)


@rule("logsumexp")
def logsumexp(t: Algebra, out: Result, x: Term, axes: Any, keep: bool = False) -> Any:
    chosen = axes_of(axes, len(x.shape))
    if len(chosen) != 1 or "float" not in x.dtype:
        return None
    largest = t.extreme("amax", x, chosen, True)
    whole = t.total(t.exponents(x, chosen[0]), chosen, True)
    made = t.added([(largest, 1), (t.each("log", [whole], whole.shape, out.dtype), 1)], whole.shape, out.dtype)
    return t.reshaped(made, out.shape)


@rule("sum.dim_IntList", "mean.dim")
def reduced(
    t: Algebra, out: Result, x: Term, axes: Any, keep: bool = False, dtype: Any = None, mean: bool = False
) -> Any:
    if "float" not in out.dtype:
        return None
    axes = axes_of(axes, len(x.shape))
    return (t.mean if mean else t.total)(t.cast(x, out.dtype), axes, keep)


rule("mean.dim")(lambda t, out, x, axes, keep=False, dtype=None: reduced(t, out, x, axes, keep, dtype, True))
rule("sum.default")(lambda t, out, x, dtype=None: reduced(t, out, x, None))
rule("mean.default")(lambda t, out, x, dtype=None: reduced(t, out, x, None, False, None, True))


@rule("amax", "amin")
def extreme(t: Algebra, out: Result, x: Term, axes: Any = (), keep: bool = False) -> Any:
    return None


rule("amax")(lambda t, out, x, axes=(), keep=False: t.extreme("amax", x, axes_of(axes, len(x.shape)), keep))
rule("amin")(lambda t, out, x, axes=(), keep=False: t.extreme("amin", x, axes_of(axes, len(x.shape)), keep))


@rule("max.dim")
def extreme_at(t: Algebra, out: Result, x: Term, axis: int, keep: bool = False, name: str = "amax") -> Any:
    axis = positive(axis, len(x.shape))
    place = t.term("call", (f"place of {name}", x, axis, keep), out.shape, "int64")
    return t.extreme(name, x, [axis], keep), place


rule("min.dim")(lambda t, out, x, axis, keep=False: extreme_at(t, out, x, axis, keep, "amin"))


@rule("var.correction", "std.correction")
def variance(t: Algebra, out: Result, x: Term, axes: Any = None, correction: Any = None, keep: bool = False) -> Any:
    return t.variance(x, axes_of(axes, len(x.shape)), keep, 1 if correction is None else correction)


@rule("var.dim")
def variance_of(t: Algebra, out: Result, x: Term, axes: Any, unbiased: bool = True, keep: bool = False) -> Any:
    return t.variance(x, axes_of(axes, len(x.shape)), keep, 1 if unbiased else 0)


rule("std.correction")(lambda t, out, *a: power(t, out, variance(t, out, *a), 0.5))
rule("std.dim")(lambda t, out, *a: power(t, out, variance_of(t, out, *a), 0.5))


@rule("linalg_vector_norm")
def vector_norm(
    t: Algebra, out: Result, x: Term, order_: Any = 2, axes: Any = None, keep: bool = False, dtype: Any = None
) -> Any:
    if order_ != 2:
        return None
    squares = power(t, Result(x.shape, out.dtype), x, 2)
    return power(t, out, t.total(squares, axes_of(axes, len(x.shape)), keep), 0.5)


@rule("norm.ScalarOpt_dim")
def norm(t: Algebra, out: Result, x: Term, order_: Any, axes: Any, keep: bool = False) -> Any:
    return vector_norm(t, out, x, 2 if order_ is None else order_, axes, keep)


def scaled(t: Algebra, out: Result, x: Term, weight: Any, bias: Any) -> Term:
    if weight is not None:
        x = t.multiplied(x, weight, out.shape, out.dtype)
    return x if bias is None else t.added([(x, 1), (bias, 1)], out.shape, out.dtype)


@rule("layer_norm")
def layer_norm(
    t: Algebra, out: Result, x: Term, shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5, *_: Any
) -> Any:
    axes = list(range(len(x.shape) - len(shape), len(x.shape)))
    return scaled(t, out, t.normalised(x, axes, eps), weight, bias)


@rule("rms_norm")
def rms_norm(t: Algebra, out: Result, x: Term, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    if eps is None:
        return None
    axes = list(range(len(x.shape) - len(shape), len(x.shape)))
    squares = t.mean(power(t, out, x, 2), axes, True)
    root = power(t, Result(squares.shape, out.dtype), add(t, Result(squares.shape, out.dtype), squares, eps), -0.5)
    return scaled(t, out, mul(t, out, x, root), weight, None)


@rule("group_norm")
def group_norm(
    t: Algebra, out: Result, x: Term, groups: int, weight: Any = None, bias: Any = None, eps: Any = 1e-5, *_: Any
) -> Any:
    channels = x.shape[1]
    if not isinstance(channels, int):
        return None
    wide = t.reshaped(x, (x.shape[0], groups, channels // groups, *x.shape[2:]))
    result = t.reshaped(t.normalised(wide, list(range(2, len(wide.shape))), eps), out.shape)
    per = (channels, *[1] * (len(x.shape) - 2))
    weight, bias = (None if v is None else t.reshaped(v, per) for v in (weight, bias))
    return scaled(t, out, result, weight, bias)


@rule("instance_norm")
def instance_norm(
    t: Algebra,
    out: Result,
    x: Term,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    use: bool,
    momentum: Any,
    eps: Any,
    *_: Any,
) -> Any:
    if not use or mean is not None:
        return None
    return group_norm(t, out, x, x.shape[1], weight, bias, eps) if isinstance(x.shape[1], int) else None


@rule("batch_norm")
def batch_norm(
    t: Algebra,
    out: Result,
    x: Term,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: Any,
    eps: Any,
    *_: Any,
) -> Any:
    if training or mean is None or var is None:
        return None
    per = (mean.shape[0], *[1] * (len(x.shape) - 2))
    root = power(t, Result(mean.shape, out.dtype), add(t, Result(mean.shape, out.dtype), var, eps), -0.5)
    factor = root if weight is None else t.multiplied(root, weight, mean.shape, out.dtype)
    centred = t.added([(x, 1), (t.reshaped(mean, per), -1)], out.shape, out.dtype)
    result = t.multiplied(centred, t.reshaped(factor, per), out.shape, out.dtype)
    return result if bias is None else t.added([(result, 1), (t.reshaped(bias, per), 1)], out.shape, out.dtype)


@rule("_native_batch_norm_legit_no_training")
def batch_norm_in_evaluation(
    t: Algebra, out: Result, x: Term, weight: Any, bias: Any, mean: Any, var: Any, momentum: Any, eps: Any
) -> Any:
    result = batch_norm(t, out, x, weight, bias, mean, var, False, momentum, eps)
    nothing = t.constant(0, (0,), out.dtype)
    return None if result is None else (result, nothing, nothing)
