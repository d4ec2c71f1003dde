"""Arithmetic, comparisons and logic: elementwise functions, bits, and sums along an axis."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.code.quote import OMIT, literal, unless
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import INTEGERS, PIECEWISE_CONSTANT, op
from onnxgen.graph.traits import (
    ADDS,
    AVERAGES,
    BROADCASTS,
    COMMUTES,
    COMPARISON,
    ELEMENTWISE,
    KEEPS_SIGN,
    MOVES,
    PICKS,
    RECTIFIER,
    SCALES,
    WHOLE,
)
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.lowering.from_sizes import Sized, formula
from onnxgen.ops.cast import FLOAT8_MAX, SIGNED, WIDER, compared, computed, is_integer
from onnxgen.ops.rules import rules
from onnxgen.shapes import elements, own, ranges, usual
from onnxgen.shapes.dims import dim_max, dim_min, int_div
from onnxgen.shapes.elements import equal as equal_dims
from onnxgen.shapes.elements import less
from onnxgen.shapes.infer_math import same, same_bool
from onnxgen.shapes.info import info

MAX_TERMS = 32  # of a sum in one expression

# Operators with one input, no attribute and the same meaning at every opset; these take floats only.
FLOAT_UNARY: dict[str, Callable[..., Any]] = {
    "Acos": np.arccos, "Acosh": np.arccosh, "Asin": np.arcsin, "Asinh": np.arcsinh, "Atan": np.arctan,
    "Atanh": np.arctanh, "Ceil": np.ceil, "Cos": np.cos, "Cosh": np.cosh, "Erf": usual.erf, "Exp": np.exp,
    "Floor": np.floor, "Log": np.log, "Round": np.rint, "Sin": np.sin, "Sinh": np.sinh, "Sqrt": np.sqrt, "Tan": np.tan,
}  # fmt: skip
UNARY: dict[str, tuple[str, Callable[..., Any]]] = {  # in torch, and in numpy
    "Reciprocal": ("1 / x", np.reciprocal),
    "Neg": ("-x", np.negative),
    **{name: (f"torch.{name.lower()}(x)", numbers) for name, numbers in FLOAT_UNARY.items()},
}
# of numbers that Python computes from sizes, which are not negative; each rounds once
OF_SIZES = {"Neg": "-x", "Sqrt": "math.sqrt(x)"}
STEPS = ("Ceil", "Floor", "Round")
LEAST = {"Exp": 0.0, "Sqrt": 0.0, "Erf": -1.0, "Sin": -1.0, "Cos": -1.0}


def unary(template: str, of_sizes: str = "") -> Callable[..., ast.expr | Sized]:
    """Make the function of an operator with one input from a template of `x`; `of_sizes`: that of Python's numbers."""

    def lower(b: Builder, X: Arg) -> ast.expr | Sized:
        if of_sizes and X.is_float and (sized := formula(of_sizes, X, rounds=True)) is not None:
            return sized
        return computed(b, X.dtype, lambda x: b(template, x=x), X)

    return lower


for _name, (_template, _numbers) in UNARY.items():
    op(
        _name, renames={"input": "X"}, traits=[ELEMENTWISE, *[WHOLE] * (_name == "Neg")], least=LEAST.get(_name),
        numbers=_numbers, dims=operator.neg if _name == "Neg" else None,
        flat=PIECEWISE_CONSTANT if _name in STEPS else None,
    )(unary(_template, OF_SIZES.get(_name, "")))  # fmt: skip

op("BitwiseNot", traits=[ELEMENTWISE], numbers=np.invert, flat=INTEGERS)(unary("~x"))

for _name in ("Rsqrt", "Log10", "Log2"):
    _reference = getattr(own, _name)
    op(_name, domain=DOMAIN, traits=[ELEMENTWISE], reference=_reference)(unary(f"torch.{_name.lower()}(x)"))


@op("Abs", traits=[ELEMENTWISE], least=0.0, numbers=np.abs, dims=elements.absolute)
def abs_(b: Builder, X: Arg) -> ast.expr:
    return X.expr if X.dtype in WIDER else b("torch.abs(x)", x=X)


@op("Sign", traits=[ELEMENTWISE], numbers=np.sign, dims=elements.sign, flat=PIECEWISE_CONSTANT)
def sign(b: Builder, input: Arg) -> ast.expr:
    """torch.sign gives 0 for NaN, ONNX gives NaN."""
    if input.is_float:
        return b("torch.where(x.isnan(), x, torch.sign(x))", x=input)
    if input.dtype in WIDER:
        return b("(x != 0).to(d)", x=input, d=input.dtype)
    return b("torch.sign(x)", x=input)


# ------------------------------------------------------------------------------------------------ of two tensors


def aligned(b: Builder, A: Arg, B: Arg, axis: int | None) -> list[Any]:
    """Return the operands of a binary operator. Before opset 7, `axis` is the axis of A at which B's axes begin."""
    if axis is None or B.known_rank == 0:
        return b.numbers(A, B, fills=b.node.op_type in ("Add", "Sub", "Mul", "Div"))
    missing = A.known_rank - axis % A.known_rank - B.known_rank
    if missing <= 0 or B.number is not None:
        return b.numbers(A, B)
    new = ast.Tuple([ast.Constant(... if i == 0 else None) for i in range(missing + 1)], ast.Load())
    return [A, ast.Subscript(B.expr, new, ast.Load())]


def _add(b: Builder, x: Any, y: Any) -> ast.expr:
    is_negative = isinstance(y, ast.UnaryOp) and isinstance(y.op, ast.USub)
    return b("x - y", x=x, y=y.operand) if is_negative else b("x + y", x=x, y=y)


@op(
    "Add",
    traits=[ADDS, COMMUTES, KEEPS_SIGN],
    numbers=np.add,
    dims=operator.add,
    neutral=0,
    bound=lambda node, bounds: sum(bounds),
)
def add(b: Builder, A: Arg, B: Arg, *, broadcast: int = 0, axis: int | None = None) -> ast.expr | Sized:
    if (sized := floats("x + y", A, B, axis)) is not None:
        return sized
    return computed(b, A.dtype, lambda x, y: _add(b, x, y), *aligned(b, A, B, axis))


def floats(template: str, A: Arg, B: Arg, axis: int | None = None) -> Sized | None:
    """Return what Python computes of floats that are sizes. Integers that no dim expresses may wrap."""
    return formula(template, A, B, rounds=True) if axis is None and A.is_float else None


def binary(template: str, of_sizes: str = "") -> Callable[..., ast.expr | Sized]:
    """Make the function of an operator with two inputs from a template of `x` and `y`; see `unary`."""

    def lower(b: Builder, A: Arg, B: Arg, *, broadcast: int = 0, axis: int | None = None) -> ast.expr | Sized:
        if of_sizes and (sized := floats(of_sizes, A, B, axis)) is not None:
            return sized
        return computed(b, A.dtype, lambda x, y: b(template, x=x, y=y), *aligned(b, A, B, axis))

    return lower


op("Sub", traits=[ADDS], numbers=np.subtract, dims=operator.sub, neutral=0)(binary("x - y", "x - y"))
op("BitwiseAnd", traits=[BROADCASTS], numbers=np.bitwise_and, flat=INTEGERS)(binary("x & y"))
op("BitwiseOr", traits=[BROADCASTS], numbers=np.bitwise_or, flat=INTEGERS)(binary("x | y"))
op("BitwiseXor", traits=[BROADCASTS], numbers=np.bitwise_xor, flat=INTEGERS)(binary("x ^ y"))


def _of_product(node: ir.Node, bounds: list[float]) -> float:
    return 0.0 if min(bounds) >= 0 or node.inputs[0] is node.inputs[1] else -math.inf


@op("Mul", traits=[WHOLE, SCALES, COMMUTES], numbers=np.multiply, dims=operator.mul, neutral=1, bound=_of_product)
def mul(b: Builder, A: Arg, B: Arg, *, broadcast: int = 0, axis: int | None = None) -> ast.expr | Sized:
    """A number is the first factor, `2 * x`."""
    if (sized := floats("x * y", A, B, axis)) is not None:
        return sized
    x, y = aligned(b, A, B, axis)
    number, tensor = (y, x) if isinstance(x, Arg) else (x, y)
    if isinstance(tensor, Arg) and not isinstance(number, (Arg, ast.Subscript)):
        x, y = number, tensor
    return computed(b, A.dtype, lambda x, y: b("x * y", x=x, y=y), x, y)


@op(
    "Div", traits=[SCALES], numbers=usual.divide, elements=elements.folded(elements.quotient, int_div),
    ranges=ranges.mod, neutral=1, bound=lambda node, bounds: 0.0 if min(bounds) >= 0 else -math.inf,
)  # fmt: skip
def div(b: Builder, A: Arg, B: Arg, *, broadcast: int = 0, axis: int | None = None) -> ast.expr | Sized:
    """Integers are divided with truncation toward zero."""
    nonzero = B.constant is not None and bool(B.constant.all())  # Python refuses to divide by a size that is 0
    if nonzero and (sized := floats("x / y", A, B, axis)) is not None:
        return sized
    x, y = aligned(b, A, B, axis)
    if not is_integer(b, A):
        return b("x / y", x=x, y=y)
    if A.dtype == ir.DataType.UINT64:
        return b("uint64_div(x, y)", x=A, y=y if isinstance(y, ast.Subscript) else B)
    return computed(b, A.dtype, lambda x, y: b("torch.div(x, y, rounding_mode='trunc')", x=x, y=y), A, y)


@op("Mod", traits=[BROADCASTS], **rules("mod"))
def mod(b: Builder, A: Arg, B: Arg, *, fmod: int = 0) -> ast.expr:
    """The remainder has the divisor's sign, or the dividend's if `fmod`; they differ for signed numbers only."""
    if A.dtype == ir.DataType.UINT64:
        return b("uint64_mod(x, y)", x=A, y=B)
    _, y = b.numbers(A, B)
    template = "torch.fmod(x, y)" if fmod and (not is_integer(b, A) or A.dtype in SIGNED) else "x % y"
    return computed(b, A.dtype, lambda x, y: b(template, x=x, y=y), A, y)


@op("Pow", traits=[BROADCASTS], chosen="Y", neutral=1, numbers=usual.power, **rules("power", kernel=None))
def pow_(b: Builder, X: Arg, Y: Arg, *, broadcast: int = 0, axis: int | None = None) -> ast.expr:
    """The result has the base's type: an integer to a fractional power is truncated."""
    integer = is_integer(b, X)
    x, y = aligned(b, X, Y, axis)
    is_tensor = isinstance(y, (Arg, ast.Subscript))
    exponent = None if is_tensor else Y.scalar
    if isinstance(exponent, float) and exponent.is_integer() and abs(exponent) < 1024:
        exponent, y = int(exponent), literal(int(exponent))
    if X.dtype != Y.dtype:
        x = X  # a number would take the exponent's type
    if integer and _is_fraction(Y, exponent):
        return b("(x.double() ** y).to(d)", x=X, y=y, d=X.dtype)
    if X.dtype == Y.dtype or not is_tensor:
        return computed(b, X.dtype, lambda x, y: b("x ** y", x=x, y=y), x, y)
    if Y.is_float and Y.dtype is not None and X.dtype is not None and Y.dtype.itemsize < X.dtype.itemsize:
        return b("x ** y.to(d)", x=X, y=y, d=X.dtype)
    wide = b("x.to(d)", x=X, d=Y.dtype) if Y.is_float else X.expr
    return b("(x ** y).to(d)", x=wide, y=y, d=X.dtype)


def _is_fraction(exponent: Arg, number: float | int | None) -> bool:
    """Return True if a power of integers is no integer. `number`: the exponent, if it is known."""
    return exponent.is_float if number is None else isinstance(number, float) or number < 0


@op("BitShift", traits=[BROADCASTS], flat=INTEGERS)
def bit_shift(b: Builder, X: Arg, Y: Arg, *, direction: str) -> ast.expr:
    if direction == "RIGHT" and X.dtype == ir.DataType.UINT64:
        return b("uint64_shift_right(x, y)", x=X, y=Y)
    template = "x >> y" if direction == "RIGHT" else "x << y"
    return computed(b, X.dtype, lambda x, y: b(template, x=x, y=y), X, b.numbers(X, Y)[1])


# ----------------------------------------------------------------------------------------------- of many tensors


def _sum(b: Builder, inputs: tuple[Arg, ...]) -> ast.expr:
    first, *rest = b.numbers(*inputs)

    def total(*terms: Any) -> ast.expr:
        return _chained(b, terms, lambda chain, term: _add(b, chain, term))

    return computed(b, inputs[0].dtype, total, first, *rest)


def _chained(b: Builder, terms: Sequence[Any], join: Callable[[ast.expr, Any], ast.expr]) -> ast.expr:
    """Join all terms, at most MAX_TERMS in one expression: parsers recurse into nested expressions."""
    chain = literal(terms[0])
    for number, term in enumerate(terms[1:], 1):
        chain = join(chain, term)
        if number % MAX_TERMS == 0 and number < len(terms) - 1:
            chain = b.let(chain, "total")
    return chain


@op("Sum", traits=[ADDS, KEEPS_SIGN], numbers=np.add, dims=operator.add)
def sum_(b: Builder, *data_0: Arg) -> ast.expr:
    return data_0[0].expr if len(data_0) == 1 else _sum(b, data_0)


@op("Mean", traits=[BROADCASTS, AVERAGES])
def mean(b: Builder, *data_0: Arg) -> ast.expr:
    return data_0[0].expr if len(data_0) == 1 else b("x / n", x=_sum(b, data_0), n=len(data_0))


def _extreme(function: str, bound: str) -> Callable[..., ast.expr]:
    """NaN wins, in torch as in onnxruntime."""

    def lower(b: Builder, *data_0: Arg) -> ast.expr:
        if len(data_0) == 1:
            return data_0[0].expr
        operands = compared(b, *data_0)
        tensors = [o for o in operands if isinstance(o, Arg)]
        numbers = [o for o in operands if not isinstance(o, Arg)]

        def formula(*terms: Any) -> ast.expr:
            extreme = _chained(b, terms, lambda extreme, term: b(f"torch.{function}(x, y)", x=extreme, y=term))
            return _chained(
                b, [extreme, *numbers], lambda extreme, number: b(f"x.clamp({bound}=c)", x=extreme, c=number)
            )

        return computed(b, data_0[0].dtype, formula, *tensors, order=True)

    return lower


_declare = op(
    "Max", traits=[COMMUTES, PICKS], numbers=np.maximum, dims=dim_max, neutral=-math.inf,
    bound=lambda node, bounds: max(bounds),
)  # fmt: skip
_declare(_extreme("maximum", "min"))
op("Min", traits=[COMMUTES, PICKS], numbers=np.minimum, dims=dim_min, neutral=math.inf)(_extreme("minimum", "max"))


def _not_below(node: ir.Node, bounds: list[float]) -> float:
    """Return the lower bound of a Clip, which is an attribute up to opset 10."""
    if "min" in node.attributes:
        return max(bounds[0], float(node.attributes["min"].value))
    low = info(node.inputs[1]).constant if len(node.inputs) > 1 else None
    return bounds[0] if low is None or low.size != 1 else max(bounds[0], float(low.reshape(-1)[0]))


@op("Clip", traits=[RECTIFIER], chosen="min max", bound=_not_below, **rules("clip"))
def clip(b: Builder, input: Arg, min: Arg | None = None, max: Arg | None = None) -> ast.expr:
    """If the bounds cross, `max` wins.

    Up to opset 10 the bounds are attributes; their defaults, the limits of float32, mean that there is no bound.
    """
    low, high = _bound(b, input, min, -1), _bound(b, input, max, 1)
    if low is None and high is None:
        return input.expr
    if input.is_float and min is not None and max is not None and (min.scalar, max.scalar) == (0, 6):
        return b("F.relu6(x)", x=input)
    template = "x.clamp(max=high)" if low is None else "x.clamp(min=low)" if high is None else "x.clamp(low, high)"
    if low is not None and high is not None and isinstance(low, Arg) != isinstance(high, Arg):
        template = "x.clamp(min=low).clamp(max=high)"  # clamp takes two numbers or two tensors, not one of each

    def formula(x: Any, *bounds: Any) -> ast.expr:
        names = [name for name, bound in (("low", low), ("high", high)) if bound is not None]
        return b(template, x=x, **dict(zip(names, bounds)))

    return computed(b, input.dtype, formula, input, *(v for v in (low, high) if v is not None), order=True)


def _bound(b: Builder, x: Arg, bound: Arg | None, sign: int) -> Any:
    """Return a bound as a number, or as a tensor if it is computed; None if there is no bound."""
    if bound is None:
        return None
    value = bound.scalar
    if value is not None and value * sign >= (3.4028234e38 if bound.value is None else math.inf):
        return None
    if x.dtype == ir.DataType.UINT64 or bound.number is None:
        return bound
    return bound.beside


# -------------------------------------------------------------------------------------------------- along an axis


def _cumulative(name: str) -> Callable[..., ast.expr]:
    """`x.cumsum(dim)`; `reverse` from the end; `exclusive` without the element itself."""

    def lower(b: Builder, x: Arg, axis: Arg, *, exclusive: int = 0, reverse: int = 0) -> ast.expr:
        dim = axis.as_int()
        # torch sums small integers as int64 by default
        kept = unless(x.dtype, ir.DataType.INT64) if is_integer(b, x) and x.dtype not in WIDER else OMIT

        def formula(x: Any) -> ast.expr:
            total = b("x.flip(i)", x=x, i=dim) if reverse else literal(x)
            if exclusive:
                total = b(f"exclusive_{name}(x, dim=i)", x=total, i=dim)
            else:
                total = b.call(b(f"x.{name}", x=total), dim=dim, dtype=kept)
            return b("x.flip(i)", x=total, i=dim) if reverse else total

        return computed(b, x.dtype, formula, x)

    return lower


op("CumSum", traits=[KEEPS_SIGN], **rules("cumsum"))(_cumulative("cumsum"))
op("CumProd", traits=[KEEPS_SIGN], infer=same)(_cumulative("cumprod"))


@op("Einsum", **rules("einsum"))
def einsum(b: Builder, *Inputs: Arg, equation: str) -> ast.expr:
    dtype, equation = Inputs[0].dtype, equation.replace(" ", "")
    if dtype in SIGNED - {ir.DataType.INT64} or dtype == ir.DataType.UINT8:  # sums over one operand are of int64
        wide = [b("x.long()", x=x) for x in Inputs]
        return b("x.to(d)", x=b.call("torch.einsum", equation, *wide), d=dtype)
    return computed(b, dtype, lambda *xs: b.call("torch.einsum", equation, *xs), *Inputs)


@op("Det")
def det(b: Builder, X: Arg) -> ast.expr:
    if X.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        return b("torch.linalg.det(x.float()).to(d)", x=X, d=X.dtype)
    return b("torch.linalg.det(x)", x=X)


# ------------------------------------------------------------------------------------------- tests of numbers


def _without_float8(b: Builder, x: Arg) -> ast.expr:
    return b("x.float()", x=x) if x.dtype in FLOAT8_MAX else x.expr


@op("IsNaN", traits=[ELEMENTWISE], infer=same_bool, numbers=np.isnan, flat=INTEGERS)
def is_nan(b: Builder, X: Arg) -> ast.expr:
    return b("torch.isnan(x)", x=_without_float8(b, X))


@op("IsInf", traits=[ELEMENTWISE], infer=same_bool, flat=INTEGERS)
def is_inf(b: Builder, X: Arg, *, detect_negative: int = 1, detect_positive: int = 1) -> ast.expr:
    if not detect_negative and not detect_positive:
        return b("torch.zeros_like(x, dtype=torch.bool)", x=X)
    name = "isinf" if detect_negative and detect_positive else "isneginf" if detect_negative else "isposinf"
    return b(f"torch.{name}(x)", x=_without_float8(b, X))


# in torch, of numbers that Python computes from sizes, in numpy, of dims, and what changes nothing
LOGIC: dict[str, tuple[str, str, Callable[..., Any], Callable[..., Any], bool]] = {
    "And": ("x & y", "x and y", np.logical_and, lambda a, b: a and b, True),
    "Or": ("x | y", "x or y", np.logical_or, lambda a, b: a or b, False),
    "Xor": ("x ^ y", "x != y", np.logical_xor, operator.ne, False),
}
ORDER: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "Less": ("x < y", np.less, less),
    "LessOrEqual": ("x <= y", np.less_equal, lambda a, b: not less(b, a)),
    "Greater": ("x > y", np.greater, lambda a, b: less(b, a)),
    "GreaterOrEqual": ("x >= y", np.greater_equal, lambda a, b: not less(a, b)),
}


def _order(template: str) -> Callable[..., ast.expr | Sized]:
    def lower(b: Builder, A: Arg, B: Arg, *, broadcast: int = 0, axis: int | None = None) -> ast.expr | Sized:
        if axis is None and (sized := formula(template, A, B)) is not None:
            return sized
        operands = [A, B] if A.dtype == ir.DataType.UINT64 else aligned(b, A, B, axis)
        return computed(b, A.dtype, lambda x, y: b(template, x=x, y=y), *operands, order=True, back=False)

    return lower


def _logic(template: str, of_sizes: str) -> Callable[..., ast.expr | Sized]:
    lower = binary(template)

    def of_either(b: Builder, A: Arg, B: Arg, *, broadcast: int = 0, axis: int | None = None) -> ast.expr | Sized:
        sized = formula(of_sizes, A, B) if axis is None else None
        return sized or lower(b, A, B, broadcast=broadcast, axis=axis)

    return of_either


for _name, (_template, _of_sizes, _numbers, _dims, _neutral) in LOGIC.items():
    _declare = op(_name, traits=[COMMUTES], numbers=_numbers, dims=_dims, neutral=_neutral, flat=INTEGERS)
    _declare(_logic(_template, _of_sizes))
for _name, (_template, _numbers, _dims) in ORDER.items():
    op(_name, traits=[COMPARISON], numbers=_numbers, dims=_dims)(_order(_template))


@op("Equal", traits=[COMPARISON], numbers=np.equal, dims=equal_dims)
def equal(b: Builder, A: Arg, B: Arg, *, broadcast: int = 0, axis: int | None = None) -> ast.expr | Sized:
    if axis is None and (sized := formula("x == y", A, B)) is not None:
        return sized
    if A.dtype == ir.DataType.STRING:
        return b("torch.from_numpy(np.asarray(x == y, dtype=bool))", x=A, y=B)
    x, y = aligned(b, A, B, axis)
    if A.dtype == ir.DataType.BOOL and isinstance(y, ast.Constant):
        return literal(x) if y.value else b("~x", x=x)
    return computed(b, A.dtype, lambda x, y: b("x == y", x=x, y=y), x, y, back=False)


@op("Not", traits=[ELEMENTWISE], numbers=np.logical_not, flat=INTEGERS)
def not_(b: Builder, X: Arg) -> ast.expr | Sized:
    sized = formula("not x", X)  # the opposite of a comparison of sizes is a comparison: `x.dim() != 2`
    return b("~x", x=X) if sized is None else sized.map(_opposite)


OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt
}  # fmt: skip


def _opposite(tree: ast.expr) -> ast.expr:
    match tree:
        case ast.UnaryOp(operand=ast.Compare(left=left, ops=[one], comparators=[other])):
            return ast.Compare(left, [OPPOSITE[type(one)]()], [other])
    return tree


@op("Where", traits=[MOVES, BROADCASTS], data="X Y", still="condition", **rules("where"))
def where(b: Builder, condition: Arg, X: Arg, Y: Arg) -> ast.expr:
    """Pick elements of X where the condition is true, else of Y; all three broadcast."""
    if X.dtype == ir.DataType.STRING:
        return b("np.where(c.cpu(), x, y)", c=condition, x=X, y=Y)
    sized = b.sized(condition.value)
    if sized is not None and sized.one is not None and X.shape is not None and X.shape == Y.shape == b.out().shape:
        return b("x if c else y", x=X, c=sized.one, y=Y)
    x, y = _choices(b, condition, X, Y)
    if not isinstance(x, Arg) and isinstance(y, Arg) and y.shape is not None and y.shape == b.out().shape:
        return b("y.masked_fill(c, x)", y=y, c=condition, x=x)
    return b("torch.where(c, x, y)", c=condition, x=x, y=y)


def _choices(b: Builder, condition: Arg, X: Arg, Y: Arg) -> list[Any]:
    """Return X and Y, as Python numbers where the result keeps its type and rank."""
    ranks = condition.rank, X.rank, Y.rank
    if condition.rank is None or max(r if r is not None else 99 for r in ranks) > condition.rank:
        return b.numbers(X, Y)
    x, y = X.number, Y.number
    if x is not None and y is not None and X.dtype not in (ir.DataType.FLOAT, ir.DataType.INT64):
        return [X, y]
    return [X if x is None else x, Y if y is None else y]
