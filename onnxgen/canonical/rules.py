"""What each operator of torch is in terms. An operator without a rule is a term of its own, with all its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from onnxgen.canonical.algebra import Algebra
from onnxgen.canonical.terms import INTEGERS, NOTHING, Shape, Term, is_size, number_in, product


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

    A rule gets the terms, the result, and the arguments in the order of the schema. It returns None if it can't say.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
LAID_OUT = ("as_strided", "as_strided_copy", "as_strided_scatter", "resize", "resize_as", "set")  # not by values alone
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
    if terms.thorough and name in NORMED and arguments[5] and len(results[0].shape) > 1:
        return _normed(terms, reader, target, arguments, results)
    made = opaque(terms, reader, target, f"{package}::{name}.{overload}", arguments, results)
    if name in ("batch_norm", "instance_norm") and arguments[3] is not None and arguments[5]:
        reader.effect(made)  # it also changes the running statistics
    return made


NORMED = ("batch_norm", "_native_batch_norm_legit_functional")  # in training


def _normed(terms: Algebra, reader: Any, target: Any, arguments: Sequence[Any], results: Sequence[Result]) -> Any:
    """Return a batch norm with statistics of the batch: of rows of channels, then turned back, scaled and shifted."""
    x, weight, bias, mean, var, training, momentum, epsilon, *_ = arguments
    shape, dtype = results[0].shape, results[0].dtype
    rank, channels = len(shape), shape[1]
    turned = terms.permuted(x, [0, *range(2, rank), 1])
    rows = (product(turned.shape[:-1]), channels)
    given = [terms.reshaped(turned, rows), None, None, mean, var, training, momentum, epsilon]
    name = "batch norm"  # of both operators: the functional one also returns what becomes of the statistics
    whole = terms.term("call", (name, *(_argument(terms, g, "float32") for g in given)), (), "tuple")
    made = terms.reshaped(terms.term("item", (whole, 0), rows, dtype), turned.shape)
    made = terms.permuted(made, [0, rank - 1, *range(1, rank - 1)])
    per = (channels, *[1] * (rank - 2))
    if weight is not None:
        made = terms.multiplied(made, terms.reshaped(weight, per), shape, dtype)
    if bias is not None:
        made = terms.added([(made, 1), (terms.reshaped(bias, per), 1)], shape, dtype)
    if len(results) > 1:
        rest = (terms.term("item", (whole, i), r.shape, r.dtype) for i, r in enumerate(results) if i)
        return (made, *rest)
    if mean is not None:
        reader.effect(whole)  # it also changes the running statistics
    return made


def opaque(
    terms: Algebra, reader: Any, target: Any, full: str, arguments: Sequence[Any], results: Sequence[Result]
) -> Any:
    if target._schema.name.split("::")[1] in LAID_OUT:
        raise NotFollowed(f"{full} depends on how elements are stored")
    wide = any(dtype == "float64" for dtype in (*(r.dtype for r in results), *_dtypes(arguments)))
    values = tuple(_argument(terms, a, "float64" if wide else "float32") for a in arguments)
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
        return bool(arguments[4] != 0)
    if name in RECURRENT:
        names = [argument.name for argument in target._schema.arguments]
        return bool(arguments[names.index("dropout")] and arguments[names.index("train")])
    return torch.Tag.nondeterministic_seeded in target.tags or name in EMPTY or "dropout" in name


def _dtypes(arguments: Any) -> Iterator[str]:
    for argument in arguments:
        if isinstance(argument, Term):
            yield argument.dtype
        elif isinstance(argument, tuple):
            yield from _dtypes(argument)


def _argument(terms: Algebra, value: Any, dtype: str) -> Any:
    if isinstance(value, float):
        return terms.near(value, dtype)
    if isinstance(value, (tuple, list)):
        return tuple(_argument(terms, v, dtype) for v in value)
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    return value


def scalar(t: Algebra, value: Any, dtype: str) -> Term:
    """Return an operand that may be a number or a size."""
    if isinstance(value, Term):
        return value
    if isinstance(value, (bool, int, float)):
        return t.constant(value, (), "float32" if isinstance(value, float) and dtype in INTEGERS else dtype)
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
    number = number_in(exponent)
    return None if number is None else power(t, out, x, number)


def power(t: Algebra, out: Result, x: Term, exponent: float) -> Any:
    if "float" not in out.dtype:
        return None
    return t.powered(t.operand(x, out.dtype), exponent, out.shape)


for _name, _exponent in (("sqrt", 0.5), ("rsqrt", -0.5), ("reciprocal", -1), ("square", 2)):
    rule(_name)(lambda t, out, x, exponent=_exponent: power(t, out, x, exponent))


@rule("outer", "ger")
def outer(t: Algebra, out: Result, one: Term, other: Term) -> Any:
    return mul(t, out, t.reshaped(one, (*one.shape, 1)), other)


@rule("addcmul")
def addcmul(t: Algebra, out: Result, x: Term, one: Term, other: Term, value: Any = 1) -> Any:
    return add(t, out, x, mul(t, out, one, other), value)


@rule("lerp.Scalar", "lerp.Tensor")
def lerp(t: Algebra, out: Result, start: Term, end: Term, weight: Any) -> Any:
    difference = t.added([(end, 1), (start, -1)], out.shape, out.dtype)
    return add(t, out, start, mul(t, out, difference, weight))


# ---- functions of single elements ------------------------------------------------------------------------------------

UNARY = """
    exp log tanh erf sin cos tan abs sign floor ceil round trunc log1p expm1 log2 log10 logical_not bitwise_not
    isnan isinf asin acos atan sinh cosh erfc exp2 sigmoid
""".split()


def _of_softplus(t: Algebra, name: str, x: Term) -> Term | None:
    """Return y of `log(1 + exp(y))`."""
    if name == "log1p":
        x = t.added([(x, 1), (t.constant(1, (), x.dtype), 1)], x.shape, x.dtype)
    items = t.items_of(x)
    if len(items) != 2 or items.get(NOTHING) != 1:
        return None
    ((monomial, coefficient),) = [(m, c) for m, c in items.items() if m]
    ((factor, count), *others) = monomial
    is_exp = factor.op == "each" and factor.args[0] == "exp" and count == coefficient == 1 and not others
    return t.expanded(factor.args[2], x.shape) if is_exp else None


def unary(t: Algebra, out: Result, name: str, x: Term) -> Term:
    if "float" in out.dtype and x.dtype != out.dtype:
        x = t.cast(x, out.dtype)
    if name == "sigmoid":
        return t.sigmoid(x, out.shape)
    if name == "tanh" and t.thorough:
        twice = t.sigmoid(t.added([(x, 2)], out.shape, out.dtype), out.shape)
        return t.added([(twice, 2), (t.constant(1, (), out.dtype), -1)], out.shape, out.dtype)
    if name in ("log", "log1p") and t.thorough and (inner := _of_softplus(t, name, x)) is not None:
        return t.term("call", ("softplus", inner), out.shape, out.dtype)
    if name == "bitwise_not" and out.dtype == "bool":
        name = "logical_not"
    if name == "logical_not" and x.op == "each" and x.args[0] in ("eq", "ne"):
        return t.each("ne" if x.args[0] == "eq" else "eq", x.args[2:], out.shape, out.dtype)
    return t.each(name, [x], out.shape, out.dtype)


for _name in UNARY:
    rule(f"{_name}.")(lambda t, out, x, name=_name: unary(t, out, name, x))
    rule(f"{_name}.default")(lambda t, out, x, name=_name: unary(t, out, name, x))


def _is_zero(limit: Any) -> bool:
    return number_in(limit) == 0 if isinstance(limit, Term) else limit == 0 and limit is not None


def bounded(t: Algebra, out: Result, x: Term, low: Any, high: Any) -> Term:
    """Return x, at least `low` and at most `high`."""
    if t.thorough and "float" in out.dtype and _is_zero(low) and high is None:
        return t.positive_part(t.operand(x, out.dtype), out.shape)
    if t.thorough and "float" in out.dtype and _is_zero(high) and low is None:
        x = t.operand(x, out.dtype)
        return t.added([(x, 1), (t.positive_part(x, out.shape), -1)], out.shape, out.dtype)
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
def mish(t: Algebra, out: Result, x: Term) -> Any:
    return mul(t, out, x, unary(t, out, "tanh", t.term("call", ("softplus", x), out.shape, out.dtype)))


@rule("softplus")
def softplus(t: Algebra, out: Result, x: Term, beta: Any = 1, threshold: Any = 20) -> Any:
    return t.term("call", ("softplus", x), out.shape, out.dtype) if (beta, threshold) == (1, 20) else None


@rule("log_sigmoid")
def log_sigmoid(t: Algebra, out: Result, x: Term) -> Any:
    turned = t.added([(x, -1)], out.shape, out.dtype)
    return t.added([(t.term("call", ("softplus", turned), out.shape, out.dtype), -1)], out.shape, out.dtype)


@rule("expm1.default")
def expm1(t: Algebra, out: Result, x: Term) -> Any:
    return add(t, out, unary(t, out, "exp", x), -1)


@rule("elu")
def elu(t: Algebra, out: Result, x: Term, alpha: Any = 1, scale: Any = 1, inner: Any = 1) -> Any:
    below = add(t, out, unary(t, out, "exp", t.added([(x, inner)], out.shape, out.dtype)), -1)
    sides = (t.added([(x, scale)], out.shape, out.dtype), t.added([(below, alpha * scale)], out.shape, out.dtype))
    return where(t, out, compared(t, out, "lt", scalar(t, 0, out.dtype), x), *sides)


rule("selu")(lambda t, out, x: elu(t, out, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946))


@rule("prelu")
def prelu(t: Algebra, out: Result, x: Term, weight: Term) -> Any:
    shape = () if weight.shape in ((), (1,)) else (weight.shape[0], *[1] * (len(x.shape) - 2))
    low = mul(t, out, x, t.reshaped(weight, shape))
    return where(t, out, compared(t, out, "lt", scalar(t, 0, out.dtype), x), x, low)


@rule("leaky_relu")
def leaky_relu(t: Algebra, out: Result, x: Term, slope: Any = 0.01) -> Any:
    return where(
        t, out, compared(t, out, "lt", scalar(t, 0, out.dtype), x), x, t.added([(x, slope)], out.shape, out.dtype)
    )


# ---- choices ---------------------------------------------------------------------------------------------------------


def compared(t: Algebra, out: Result, name: str, one: Any, other: Any) -> Term:
    dtype = next((v.dtype for v in (one, other) if isinstance(v, Term)), "float32")
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


def junction(t: Algebra, out: Result, name: str, one: Any, other: Any) -> Term:
    """Return `and` or `or`. Of what is true, or false, everywhere, nothing is left."""
    operands = [scalar(t, one, out.dtype), scalar(t, other, out.dtype)]
    if out.dtype != "bool":
        return t.each(name, operands, out.shape, out.dtype)
    if all(o.dtype == "bool" for o in operands):
        for number, rest in ((number_in(operands[0]), operands[1]), (number_in(operands[1]), operands[0])):
            if number is not None:
                decides = bool(number) == ("or" in name)
                return t.constant(number, out.shape, "bool") if decides else t.expanded(t.bare(rest), out.shape)
    return t.each(name.replace("bitwise", "logical"), operands, out.shape, out.dtype)


for _name, *_others in (("logical_and",), ("logical_or",), ("bitwise_and", "__and__"), ("bitwise_or", "__or__")):
    rule(_name, *_others)(lambda t, out, one, other, name=_name: junction(t, out, name, one, other))


@rule("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(t: Algebra, out: Result, condition: Term, one: Any, other: Any) -> Any:
    if (number := number_in(condition)) is not None:
        return t.expanded(t.operand(scalar(t, one if number else other, out.dtype), out.dtype), out.shape)
    if condition.op == "each" and condition.args[0] == "logical_not":
        return where(t, out, condition.args[2], other, one)
    if condition.op == "each" and condition.args[0] == "eq":
        return where(t, out, t.each("ne", condition.args[2:], condition.shape, "bool"), other, one)
    high, low = (t.operand(scalar(t, v, out.dtype), out.dtype) for v in (one, other))
    return t.chosen(condition, high, low, out.shape, out.dtype)


@rule("threshold")
def threshold(t: Algebra, out: Result, x: Term, limit: Any, value: Any) -> Any:
    return where(t, out, compared(t, out, "lt", limit, x), x, value)


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
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    if not arrow:
        everything = inputs.replace(",", "").replace(".", "")
        result = ("..." if "." in inputs else "") + "".join(
            sorted(c for c in {*everything} if everything.count(c) == 1)
        )
    labels = [_labels(text, len(o.shape)) for text, o in zip(inputs.split(","), operands, strict=True)]
    number = {c: i for i, c in enumerate(dict.fromkeys(c for names in labels for c in names))}
    sizes: dict[int, Any] = {}
    for names, operand in zip(labels, operands, strict=True):
        if len(set(names)) < len(names):
            return None
        for name, size in zip(names, operand.shape, strict=True):
            if sizes.get(number[name], 1) == 1:
                sizes[number[name]] = size
    given = [(o, [number[c] for c in names]) for o, names in zip(operands, labels, strict=True)]
    return t.contracted(given, [number[c] for c in _labels(result, len(out.shape))], sizes, out.dtype)


def _labels(text: str, rank: int) -> list[Any]:
    """Return a label for each axis; those of an ellipsis are counted from its end, where they are aligned."""
    before, dots, after = text.partition("...")
    hidden = rank - len(before) - len(after) if dots else 0
    return [*before, *(-i for i in range(hidden, 0, -1)), *after]
