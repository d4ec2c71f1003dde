"""What each operator of torch is in terms. An operator without a rule is a term of its own, with all its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from onnxgen.canonical.algebra import Algebra
from onnxgen.canonical.terms import Shape, Term, is_size, plain


class NotFollowed(Exception):
    """A module can't be brought to terms. Says why."""


@dataclass(frozen=True)
class Result:
    """Shape and dtype of a result."""

    shape: Shape
    dtype: str


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of operators (`add.Tensor`, or `add` for all overloads).

    A rule gets the terms, the result, and the arguments in the order of the schema. It returns None if it doesn't apply.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


EMPTY = ("empty", "empty_like", "new_empty", "empty_strided", "empty_permuted")  # elements of no known value


def apply(terms: Algebra, reader: Any, target: Any, arguments: Sequence[Any], results: Sequence[Result]) -> Any:
    """Return what an operator makes of its arguments."""
    package, name = target._schema.name.split("::")
    overload = target._overloadname
    if package == "aten":
        function = RULES.get(f"{name}.{overload}") or RULES.get(name)
        if function is not None:
            made = function(terms, results[0], *arguments)
            if made is not None:
                return made
    made = opaque(terms, reader, target, f"{package}::{name}.{overload}", arguments, results)
    if name in ("batch_norm", "instance_norm") and arguments[3] is not None and arguments[5]:
        reader.effect(made)  # it also changes the running statistics
    return made


def opaque(
    terms: Algebra, reader: Any, target: Any, full: str, arguments: Sequence[Any], results: Sequence[Result]
) -> Any:
    values = tuple(_argument(terms, a) for a in arguments)
    if _is_random(target, arguments):
        key = (full, values)
        values = (*values, ("drawn", reader.occurrence(key)))
    result = results[0]
    if len(results) == 1:
        return terms.term("call", (full, *values), result.shape, result.dtype)
    whole = terms.term("call", (full, *values), (), "tuple")
    return tuple(terms.term("item", (whole, i), r.shape, r.dtype) for i, r in enumerate(results))


def _is_random(target: Any, arguments: Sequence[Any]) -> bool:
    name = target._schema.name.split("::")[1]
    if name == "scaled_dot_product_attention":
        return arguments[4] != 0
    return torch.Tag.nondeterministic_seeded in target.tags or name in EMPTY or "dropout" in name


def _argument(terms: Algebra, value: Any) -> Any:
    if isinstance(value, float):
        return terms.near(value)
    if isinstance(value, (tuple, list)):
        return tuple(_argument(terms, v) for v in value)
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    return value


def scalar(t: Algebra, value: Any, dtype: str) -> Term:
    """Return an operand that may be a number or a size."""
    if isinstance(value, Term):
        return value
    if isinstance(value, (bool, int, float)):
        return t.constant(value, (), dtype)
    if is_size(value):
        monomial, number = t.size(value)
        return t.sum_of({monomial: number}, (), dtype)
    raise NotFollowed(f"an operand {value!r}")


def positive(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


def axes_of(axes: Any, rank: int) -> list[int]:
    if axes is None or (isinstance(axes, tuple) and not axes):
        return list(range(rank))
    return [positive(a, rank) for a in (axes if isinstance(axes, (tuple, list)) else (axes,))]


# ---- arithmetic ------------------------------------------------------------------------------------------------------


@rule("add")
def add(t: Algebra, out: Result, one: Any, other: Any, alpha: Any = 1) -> Any:
    if out.dtype == "bool" or not isinstance(alpha, (int, float)):
        return None
    return t.added([(scalar(t, one, out.dtype), 1), (scalar(t, other, out.dtype), alpha)], out.shape, out.dtype)


@rule("sub")
def sub(t: Algebra, out: Result, one: Any, other: Any, alpha: Any = 1) -> Any:
    return add(t, out, one, other, -alpha) if isinstance(alpha, (int, float)) else None


@rule("rsub")
def rsub(t: Algebra, out: Result, one: Any, other: Any, alpha: Any = 1) -> Any:
    return sub(t, out, other, one) if alpha == 1 else None


@rule("mul")
def mul(t: Algebra, out: Result, one: Any, other: Any) -> Any:
    if out.dtype == "bool":
        return None
    return t.multiplied(scalar(t, one, out.dtype), scalar(t, other, out.dtype), out.shape, out.dtype)


@rule("div.Tensor", "div.Scalar", "true_divide")
def div(t: Algebra, out: Result, one: Any, other: Any) -> Any:
    return t.divided(scalar(t, one, out.dtype), scalar(t, other, out.dtype), out.shape, out.dtype)


@rule("neg")
def neg(t: Algebra, out: Result, x: Term) -> Any:
    return t.added([(x, -1)], out.shape, out.dtype)


@rule("pow.Tensor_Scalar")
def pow_scalar(t: Algebra, out: Result, x: Term, exponent: Any) -> Any:
    return power(t, out, x, exponent) if isinstance(exponent, (int, float)) else None


@rule("pow.Tensor_Tensor")
def pow_tensor(t: Algebra, out: Result, x: Term, exponent: Term) -> Any:
    from onnxgen.canonical.terms import number_in

    number = number_in(exponent)
    return None if number is None else power(t, out, x, number)


def power(t: Algebra, out: Result, x: Term, exponent: float) -> Any:
    if "float" not in out.dtype:
        return None
    return t.powered(t.operand(x, out.dtype), exponent, out.shape)


for _name, _exponent in (("sqrt", 0.5), ("rsqrt", -0.5), ("reciprocal", -1), ("square", 2)):
    rule(_name)(lambda t, out, x, exponent=_exponent: power(t, out, x, exponent))


@rule("addcmul")
def addcmul(t: Algebra, out: Result, x: Term, one: Term, other: Term, value: Any = 1) -> Any:
    return add(t, out, x, mul(t, out, one, other), value)


@rule("lerp.Scalar", "lerp.Tensor")
def lerp(t: Algebra, out: Result, start: Term, end: Term, weight: Any) -> Any:
    difference = t.added([(end, 1), (start, -1)], out.shape, out.dtype)
    return add(t, out, start, mul(t, out, difference, weight))


# ---- functions of single elements ------------------------------------------------------------------------------------

UNARY = (
    "exp", "log", "tanh", "erf", "sin", "cos", "tan", "abs", "sign", "floor", "ceil", "round", "trunc", "log1p", "expm1",
    "log2", "log10", "logical_not", "bitwise_not", "isnan", "isinf", "asin", "acos", "atan", "sinh", "cosh", "erfc", "exp2",
    "sigmoid",
)  # fmt: skip


def unary(t: Algebra, out: Result, name: str, x: Term) -> Term:
    if "float" in out.dtype and x.dtype != out.dtype:
        x = t.cast(x, out.dtype)
    return t.each(name, [x], out.shape, out.dtype)


for _name in UNARY:
    rule(f"{_name}.")(lambda t, out, x, name=_name: unary(t, out, name, x))
    rule(f"{_name}.default")(lambda t, out, x, name=_name: unary(t, out, name, x))


def bounded(t: Algebra, out: Result, x: Term, low: Any, high: Any) -> Term:
    """Return x, at least `low` and at most `high`."""
    for name, limit in (("maximum", low), ("minimum", high)):
        if limit is not None:
            x = t.each(
                name, [t.operand(x, out.dtype), t.operand(scalar(t, limit, out.dtype), out.dtype)], out.shape, out.dtype
            )
    return x


@rule("clamp", "clip", "hardtanh")
def clamp(t: Algebra, out: Result, x: Term, low: Any = None, high: Any = None) -> Any:
    return bounded(t, out, x, low, high)


rule("relu")(lambda t, out, x: bounded(t, out, x, 0, None))
rule("relu6")(lambda t, out, x: bounded(t, out, x, 0, 6))
rule("clamp_min")(lambda t, out, x, low: bounded(t, out, x, low, None))
rule("clamp_max")(lambda t, out, x, high: bounded(t, out, x, None, high))
rule("maximum", "max.other")(lambda t, out, x, y: bounded(t, out, x, y, None))
rule("minimum", "min.other")(lambda t, out, x, y: bounded(t, out, x, None, y))


@rule("hardsigmoid")
def hardsigmoid(t: Algebra, out: Result, x: Term) -> Term:
    bound = bounded(t, out, add(t, out, x, 3), 0, 6)
    return t.added([(bound, 1 / 6)], out.shape, out.dtype)


rule("hardswish")(lambda t, out, x: mul(t, out, x, hardsigmoid(t, out, x)))
rule("silu")(lambda t, out, x: mul(t, out, x, unary(t, out, "sigmoid", x)))


@rule("gelu")
def gelu(t: Algebra, out: Result, x: Term, approximate: str = "none") -> Any:
    if approximate == "none":
        inner = unary(t, out, "erf", t.added([(x, 1 / math.sqrt(2))], out.shape, out.dtype))
    else:
        cube = power(t, out, x, 3)
        argument = t.added(
            [(x, math.sqrt(2 / math.pi)), (cube, math.sqrt(2 / math.pi) * 0.044715)], out.shape, out.dtype
        )
        inner = unary(t, out, "tanh", argument)
    half = t.added([(x, 0.5)], out.shape, out.dtype)
    return mul(t, out, half, add(t, out, inner, 1))


@rule("mish")
def mish(t: Algebra, out: Result, x: Term) -> Term:
    return mul(t, out, x, unary(t, out, "tanh", t.term("call", ("softplus", x), out.shape, out.dtype)))


@rule("softplus")
def softplus(t: Algebra, out: Result, x: Term, beta: Any = 1, threshold: Any = 20) -> Any:
    return t.term("call", ("softplus", x), out.shape, out.dtype) if (beta, threshold) == (1, 20) else None


@rule("leaky_relu")
def leaky_relu(t: Algebra, out: Result, x: Term, slope: Any = 0.01) -> Any:
    return where(
        t, out, compared(t, out, "lt", scalar(t, 0, out.dtype), x), x, t.added([(x, slope)], out.shape, out.dtype)
    )


# ---- choices ---------------------------------------------------------------------------------------------------------


def compared(t: Algebra, out: Result, name: str, one: Any, other: Any) -> Term:
    dtype = next((v.dtype for v in (one, other) if isinstance(v, Term) and v.shape), "float32")
    dtype = dtype if isinstance(one, Term) and isinstance(other, Term) or dtype != "bool" else dtype
    operands = [scalar(t, v, dtype) for v in (one, other)]
    shape = _together(*(o.shape for o in operands))
    return t.each(name, operands, shape, "bool")


def _together(*shapes: Shape) -> Shape:
    rank = max(map(len, shapes))
    wide = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*wide, strict=True))


for _name in ("lt", "le", "eq", "ne"):
    rule(_name)(lambda t, out, one, other, name=_name: compared(t, out, name, one, other))
rule("gt")(lambda t, out, one, other: compared(t, out, "lt", other, one))
rule("ge")(lambda t, out, one, other: compared(t, out, "le", other, one))
for _name in ("logical_and", "logical_or", "bitwise_and", "bitwise_or"):
    rule(_name)(
        lambda t, out, one, other, name=_name: t.each(
            name.replace("bitwise", "logical") if out.dtype == "bool" else name,
            [scalar(t, one, out.dtype), scalar(t, other, out.dtype)],
            out.shape,
            out.dtype,
        )
    )


@rule("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(t: Algebra, out: Result, condition: Term, one: Any, other: Any) -> Any:
    if condition.op == "each" and condition.args[0] == "logical_not":
        return where(t, out, condition.args[2], other, one)
    operands = [t.operand(scalar(t, v, out.dtype), out.dtype) for v in (one, other)]
    return t.each("where", [condition, *operands], out.shape, out.dtype)


@rule("masked_fill")
def masked_fill(t: Algebra, out: Result, x: Term, mask: Term, value: Any) -> Any:
    return where(t, out, mask, value, x)


# ---- products --------------------------------------------------------------------------------------------------------


def matrices(t: Algebra, one: Term, other: Term, dtype: str) -> Term:
    """Return the matrix product, as `torch.matmul` defines it."""
    counter = iter(range(1000))
    left, right = list(one.shape), list(other.shape)
    inner, row, column = next(counter), next(counter), next(counter)
    sizes: dict[int, Any] = {inner: left[-1]}
    if left[-1] == 1:
        sizes[inner] = right[-2] if len(right) > 1 else right[-1]
    a, b, out = [inner], [inner], []
    if len(left) > 1:
        a.insert(0, row)
        sizes[row] = left[-2]
    if len(right) > 1:
        b.append(column)
        sizes[column] = right[-1]
    outer = max(len(left), len(right)) - 2
    batch_a, batch_b = left[:-2], right[:-2]
    for place in range(outer):
        label = next(counter)
        i, j = place - outer + len(batch_a), place - outer + len(batch_b)
        size_a, size_b = (batch_a[i] if i >= 0 else 1), (batch_b[j] if j >= 0 else 1)
        sizes[label] = size_b if size_a == 1 else size_a
        if i >= 0:
            a.insert(len(a) - (2 if len(left) > 1 else 1), label)
        if j >= 0:
            b.insert(len(b) - (2 if len(right) > 1 else 1), label)
        out.append(label)
    out += ([row] if len(left) > 1 else []) + ([column] if len(right) > 1 else [])
    return t.contracted([(one, a), (other, b)], out, sizes, dtype)


@rule("matmul", "mm", "bmm", "mv", "dot")
def matmul(t: Algebra, out: Result, one: Term, other: Term) -> Any:
    return matrices(t, one, other, out.dtype)


@rule("addmm", "baddbmm")
def addmm(t: Algebra, out: Result, bias: Term, one: Term, other: Term, beta: Any = 1, alpha: Any = 1) -> Any:
    return t.added([(bias, beta), (matrices(t, one, other, out.dtype), alpha)], out.shape, out.dtype)


@rule("linear")
def linear(t: Algebra, out: Result, x: Term, weight: Term, bias: Term | None = None) -> Any:
    axes = list(range(len(x.shape)))
    inner, made = axes[-1], len(axes)
    sizes = {**dict(enumerate(x.shape)), made: weight.shape[0]}
    result = t.contracted([(x, axes), (weight, [made, inner])], [*axes[:-1], made], sizes, out.dtype)
    return result if bias is None else t.added([(result, 1), (bias, 1)], out.shape, out.dtype)


@rule("einsum")
def einsum(t: Algebra, out: Result, equation: str, operands: Sequence[Term], path: Any = None) -> Any:
    text = equation.replace(" ", "")
    if "." in text:
        return None
    inputs, arrow, result = text.partition("->")
    labels = inputs.split(",")
    if not arrow:
        everything = inputs.replace(",", "")
        result = "".join(sorted(c for c in set(everything) if everything.count(c) == 1))
    number = {c: i for i, c in enumerate(dict.fromkeys(inputs.replace(",", "")))}
    sizes: dict[int, Any] = {}
    for names, operand in zip(labels, operands, strict=True):
        if len(set(names)) < len(names):
            return None
        for name, size in zip(names, operand.shape, strict=True):
            if sizes.get(number[name], 1) == 1:
                sizes[number[name]] = size
    given = [(o, [number[c] for c in names]) for o, names in zip(operands, labels, strict=True)]
    return t.contracted(given, [number[c] for c in result], sizes, out.dtype)


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
    result = t.term("call", ("conv", x, weight, stride, padding, dilation, groups), out.shape, out.dtype)
    if bias is None:
        return result
    return t.added([(result, 1), (t.reshaped(bias, (bias.shape[0], *[1] * rank)), 1)], out.shape, out.dtype)


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
    if any(r % 2 for r in reach):
        return None
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
    if mode != "constant" or value not in (0, 0.0, None) or not all(is_size(p) for p in pads):
        return None
    if all(p == 0 for p in pads):
        return x
    while len(pads) > 2 and pads[-2:] == (0, 0):
        pads = pads[:-2]
    return t.term("call", ("pad", x, tuple(pads)), out.shape, out.dtype)


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
    if mask is not None and mask.dtype == "bool":
        scores = where(t, here, mask, scores, -math.inf)
    elif mask is not None:
        scores = t.added([(scores, 1), (mask, 1)], _together(scores.shape, mask.shape), dtype)
    shares = t.softmax(scores, len(scores.shape) - 1)
    if mask is not None and not causal and _may_hide_a_row(mask):
        shares = t.each("nothing_for_nan", [shares], shares.shape, dtype)  # a row without any key is 0, and not NaN
    return matrices(t, shares, v, dtype)


def _may_hide_a_row(mask: Term) -> bool:
    """Whether a mask may have a row of -inf or of False alone."""
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


@rule("adaptive_avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool3d")
def pooled(t: Algebra, out: Result, x: Term, sizes: Any) -> Any:
    if any(s != 1 for s in sizes):
        return None
    rank = len(sizes)
    return t.mean(x, list(range(len(x.shape) - rank, len(x.shape))), True)


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


# ---- views -----------------------------------------------------------------------------------------------------------


@rule(
    "view.default",
    "reshape",
    "_unsafe_view",
    "flatten",
    "unflatten",
    "unsqueeze",
    "view_as",
    "reshape_as",
    "_reshape_alias",
)
def reshape(t: Algebra, out: Result, x: Term, *_: Any) -> Any:
    return t.reshaped(x, out.shape)


@rule("squeeze")
def squeeze(t: Algebra, out: Result, x: Term, axes: Any = None) -> Any:
    chosen = axes_of(axes, len(x.shape))
    if any(not isinstance(x.shape[a], int) for a in chosen):
        raise NotFollowed("squeeze of an axis that may have any size: name the axis")
    return t.reshaped(x, out.shape)


@rule("permute")
def permute(t: Algebra, out: Result, x: Term, axes: Any) -> Any:
    return t.permuted(x, [positive(a, len(x.shape)) for a in axes])


@rule("transpose.int", "swapaxes", "swapdims")
def transpose(t: Algebra, out: Result, x: Term, one: int, other: int) -> Any:
    axes = list(range(len(x.shape)))
    i, j = positive(one, len(axes)), positive(other, len(axes))
    axes[i], axes[j] = axes[j], axes[i]
    return t.permuted(x, axes)


@rule("t", "numpy_T", "matrix_H", "mT", "mH", "adjoint")
def turned(t: Algebra, out: Result, x: Term) -> Any:
    if "complex" in x.dtype:
        return None
    return x if len(x.shape) < 2 else transpose(t, out, x, -1, -2) if len(x.shape) == 2 else None


rule("mT")(lambda t, out, x: transpose(t, out, x, -1, -2))


@rule("movedim")
def movedim(t: Algebra, out: Result, x: Term, source: Any, target: Any) -> Any:
    rank = len(x.shape)
    sources, targets = axes_of(source, rank), axes_of(target, rank)
    axes: list[Any] = [None] * rank
    for s, d in zip(sources, targets, strict=True):
        axes[d] = s
    rest = iter(a for a in range(rank) if a not in sources)
    return t.permuted(x, [next(rest) if a is None else a for a in axes])


@rule("expand", "expand_as", "broadcast_to")
def expand(t: Algebra, out: Result, x: Term, *_: Any) -> Any:
    return t.expanded(x, out.shape)


@rule("contiguous", "clone", "alias", "lift_fresh_copy", "lift_fresh", "resolve_conj", "resolve_neg")
def same(t: Algebra, out: Result, x: Term, *_: Any) -> Any:
    return x


@rule("to", "_to_copy", "type_as")
def to(t: Algebra, out: Result, x: Term, *_: Any) -> Any:
    return t.cast(x, out.dtype)


@rule("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def dropout(t: Algebra, out: Result, x: Term, p: float, train: bool) -> Any:
    return x if not train or p == 0 else None


@rule("detach")
def detach(t: Algebra, out: Result, x: Term) -> Any:
    return t.term("detach", (x,), out.shape, out.dtype)


@rule("slice.Tensor")
def slice_(t: Algebra, out: Result, x: Term, axis: int = 0, start: Any = None, stop: Any = None, step: Any = 1) -> Any:
    axis = positive(axis, len(x.shape))
    size = x.shape[axis]
    start, stop = (0 if start is None else start), (size if stop is None else stop)
    if isinstance(stop, int) and stop >= 2**62:
        stop = size
    if isinstance(size, int) and isinstance(start, int) and isinstance(stop, int):
        start, stop = (max(0, min(v + size if v < 0 else v, size)) for v in (start, stop))
        return t.sliced(x, axis, start, max(start, stop), step)
    if start == 0 and stop == size:
        return t.sliced(x, axis, 0, size, step)
    return None


@rule("narrow")
def narrow(t: Algebra, out: Result, x: Term, axis: int, start: Any, length: Any) -> Any:
    if not isinstance(start, int) or start < 0:
        return None
    return slice_(t, out, x, axis, start, plain(start + length))


@rule("select.int")
def select(t: Algebra, out: Result, x: Term, axis: int, index: Any) -> Any:
    axis = positive(axis, len(x.shape))
    size = x.shape[axis]
    if not isinstance(index, int) or (index < 0 and not isinstance(size, int)):
        return None
    index = index + size if index < 0 else index
    part = t.sliced(x, axis, index, index + 1)
    return t.reshaped(part, (*part.shape[:axis], *part.shape[axis + 1 :]))


def _cut(t: Algebra, x: Term, axis: int, counts: Sequence[Any]) -> tuple[Term, ...]:
    axis, at, parts = positive(axis, len(x.shape)), 0, []
    for count in counts:
        parts.append(t.sliced(x, axis, at, at + count))
        at += count
    return tuple(parts)


@rule("split.Tensor")
def split(t: Algebra, out: Result, x: Term, count: Any, axis: int = 0) -> Any:
    size = x.shape[axis]
    if not isinstance(size, int) or not isinstance(count, int):
        return None
    return _cut(t, x, axis, [min(count, size - i) for i in range(0, size, count)])


@rule("split_with_sizes", "split.sizes")
def split_sizes(t: Algebra, out: Result, x: Term, counts: Any, axis: int = 0) -> Any:
    return _cut(t, x, axis, counts) if all(isinstance(c, int) for c in counts) else None


@rule("chunk")
def chunk(t: Algebra, out: Result, x: Term, count: int, axis: int = 0) -> Any:
    size = x.shape[axis]
    return split(t, out, x, -(-size // count), axis) if isinstance(size, int) else None


@rule("unbind.int")
def unbind(t: Algebra, out: Result, x: Term, axis: int = 0) -> Any:
    size = x.shape[axis]
    return tuple(select(t, out, x, axis, i) for i in range(size)) if isinstance(size, int) else None


@rule("cat", "concat", "concatenate")
def cat(t: Algebra, out: Result, pieces: Sequence[Term], axis: int = 0) -> Any:
    axis = positive(axis, len(out.shape))
    if any(p.shape == (0,) for p in pieces):
        return None
    return t.joined([t.cast(p, out.dtype) for p in pieces], axis)


@rule("stack")
def stack(t: Algebra, out: Result, pieces: Sequence[Term], axis: int = 0) -> Any:
    axis = positive(axis, len(out.shape))
    return t.joined([t.reshaped(p, (*p.shape[:axis], 1, *p.shape[axis:])) for p in pieces], axis)


# ---- constants -------------------------------------------------------------------------------------------------------


def filled(t: Algebra, out: Result, number: Any) -> Any:
    return t.constant(number, out.shape, out.dtype) if isinstance(number, (bool, int, float)) else None


rule("zeros", "zeros_like", "new_zeros")(lambda t, out, *_: filled(t, out, 0))
rule("ones", "ones_like", "new_ones")(lambda t, out, *_: filled(t, out, 1))
rule("full")(lambda t, out, size, number, *_: filled(t, out, number))
rule("full_like")(lambda t, out, x, number, *_: filled(t, out, number))
rule("new_full")(lambda t, out, x, size, number, *_: filled(t, out, number))
rule("scalar_tensor")(lambda t, out, number, *_: filled(t, out, number))


@rule("embedding")
def embedding(t: Algebra, out: Result, weight: Term, indices: Term, *rest: Any) -> Any:
    if len(rest) > 1 and any(rest[1:]):
        return None
    unlearned = () if not rest or rest[0] in (None, -1) else (("padding", rest[0]),)
    return t.term("call", ("aten::index.Tensor", weight, (indices,), *unlearned), out.shape, out.dtype)


@rule("size", "sym_size")
def unused(t: Algebra, out: Result, x: Term, *_: Any) -> Any:
    raise NotFollowed("sizes as a tensor")


@rule("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range_for_size")
def nothing(t: Algebra, out: Result, *_: Any) -> Any:
    return ()
