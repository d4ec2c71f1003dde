"""Builds expressions as Python's `ast` from templates of PyTorch code.

`quote("F.relu(x)", x=value)` parses the template once and puts the values in place of their names. So names, numbers
and text from an ONNX file become literals or placeholder nodes, never syntax. A number that is written as an
expression, such as `torch.finfo(torch.float32).min`, is checked for its value (`hold_same`).

`formula` writes a number that a person computed the way it was computed: `math.sqrt(32)`, not 5.656854; `1 / 6`. A file
has only the result, rounded to float32. In the code it is a float64 that a formula gives and that rounds to the very
same float32 (`computed`). The formula itself is written at the end. Until then it is a number like any other.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from operator import is_
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import onnx_ir as ir

from onnxgen.errors import WrongTranslation
from onnxgen.shapes.dims import Sym
from onnxgen.weights.dtypes import TORCH_DTYPES

if TYPE_CHECKING:
    from onnxgen.code.module_def import Member


Change = Callable[[ast.AST], ast.expr | None]  # what `rewrite` puts in the place of a node; None keeps it
REMARK, APART = "_onnxgen_remark", "_onnxgen_apart"  # attributes of statements, which `printer.py` writes


class Ref(ast.expr):
    """Placeholder for the value with this id. Becomes the name of a local variable."""

    _fields = ()

    def __init__(self, value: str) -> None:
        super().__init__()
        self.value = value


class SizeOf(ast.expr):
    """Placeholder for a symbolic dim as a Python int. Becomes `x.shape[1]` of a tensor in scope."""

    _fields = ()

    def __init__(self, dim: Sym) -> None:
        super().__init__()
        self.dim = dim


class DeviceOf(ast.expr):
    """Placeholder for the device to compute on. Becomes `x.device` of a tensor in scope."""

    _fields = ()


class MemberRef(ast.expr):
    """Placeholder for a parameter, buffer or submodule. Becomes `self.conv1`, or a longer path from `self`."""

    _fields = ()

    def __init__(self, member: Member) -> None:
        super().__init__()
        self.member = member


class _Omit:
    def __repr__(self) -> str:
        return "OMIT"


OMIT = _Omit()


def unless(value: Any, default: Any) -> Any:
    """Return `value`, or `OMIT` if it is torch's default: `call` leaves such arguments out."""
    return OMIT if value == default else value


class NiceFloat(float):
    """A float that prints as a person writes it: 1e-5, not 1e-05."""

    def __repr__(self) -> str:
        text = float.__repr__(self)
        mantissa, e, exponent = text.partition("e")
        return mantissa + e + exponent.replace("-0", "-").replace("+", "").lstrip("0") if e else text


class AsciiText(str):
    """Text that prints as ASCII, with escapes, so that a generated file looks the same in every editor."""

    __slots__ = ()

    def __repr__(self) -> str:
        return ascii(str(self))


def shortest(value: float, dtype: ir.DataType | None = ir.DataType.FLOAT) -> float:
    """Return the float with the fewest digits that is the same number in `dtype`.

    Only float32 is shortened: when torch computes in half precision, it keeps a Python scalar in float32, so a
    half-precision constant must be written exactly.
    """
    short = _shortened(value) if dtype == ir.DataType.FLOAT else value
    hold_same(short, value)
    return short


def _shortened(value: float) -> float:
    if math.isfinite(value) and float(np.float32(value)) == value:
        short = float(str(np.float32(value)))
        return short if abs(short) <= -_LOWEST else value  # rounded up past the largest float32
    return value


_LOWEST = float(np.finfo(np.float32).min)


def _number(value: float) -> ast.expr:
    if isinstance(value, float):
        if abs(value) == -_LOWEST:
            return quote("torch.finfo(torch.float32).min" if value < 0 else "torch.finfo(torch.float32).max")
        if math.isnan(value) or math.isinf(value):
            return quote("float(text)", text=str(value))
        value = NiceFloat(value)
    if value < 0 or (isinstance(value, float) and math.copysign(1, value) < 0):
        return ast.UnaryOp(ast.USub(), ast.Constant(-value if not isinstance(value, float) else NiceFloat(-value)))
    return ast.Constant(value)


def literal(value: Any) -> ast.expr:
    """Return a Python value as an expression: numbers, text, sequences, dims, dtypes and numpy scalars."""
    if isinstance(value, ast.expr):
        return value
    if value is None or isinstance(value, bool):
        return ast.Constant(value)
    if isinstance(value, str):
        return ast.Constant(value if value.isascii() else AsciiText(value))
    if isinstance(value, Sym):
        return SizeOf(value)
    if isinstance(value, ir.DataType):
        return quote("torch." + TORCH_DTYPES[value])
    if isinstance(value, (int, float)):
        return held(_number(value), value)
    if isinstance(value, np.generic):
        return literal(value.item())
    if isinstance(value, list):
        return ast.List([literal(v) for v in value], ast.Load())
    if isinstance(value, (tuple, np.ndarray)):
        return ast.Tuple([literal(v) for v in value], ast.Load())
    expression = getattr(value, "expr", None)  # an Arg of an operator function
    if isinstance(expression, ast.expr):
        return expression
    raise TypeError(f"no literal for {type(value).__name__}")


def value_of(tree: ast.AST) -> Any:
    """Return the value of a literal. `ast.literal_eval` does not take a sign before a `NiceFloat`."""
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return -value_of(tree.operand)
    if isinstance(tree, (ast.Tuple, ast.List)):
        return (tuple if isinstance(tree, ast.Tuple) else list)(map(value_of, tree.elts))
    return ast.literal_eval(tree)


@cache
def parsed(text: str) -> ast.expr:
    """Return the tree of an expression, always the same one, which nobody changes."""
    return ast.parse(text, mode="eval").body


def quote(template: str, **values: Any) -> ast.expr:
    """Return the expression in `template`, with each name in `values` replaced by its value."""
    literals = {name: literal(value) for name, value in values.items()}
    return rewrite(parsed(template), lambda n: literals.get(n.id) if isinstance(n, ast.Name) else None)


def tensor_of(owner: ast.expr, key: str) -> ast.expr:
    """Return the tensor of a layer by its state-dict key: `self.encoder.layers[0].norm1.bias`; "" is `owner` itself."""
    for part in key.split(".") if key else ():
        item = part.isdigit()
        owner = ast.Subscript(owner, literal(int(part)), ast.Load()) if item else ast.Attribute(owner, part, ast.Load())
    return owner


def last_step(tree: ast.expr) -> tuple[ast.expr, str] | None:
    """Return the owner and the last part of what `tensor_of` makes, else None."""
    match tree:
        case ast.Attribute(attr=part) | ast.Subscript(slice=ast.Constant(value=int(part))):
            return tree.value, str(part)
    return None


def call(function: str | ast.expr, *args: Any, **kwargs: Any) -> ast.expr:
    """Return `function(*args, **kwargs)` without arguments that are `OMIT` (positional ones only at the end)."""
    positional = list(args)
    while positional and positional[-1] is OMIT:
        positional.pop()
    return ast.Call(
        func=quote(function) if isinstance(function, str) else function,
        args=[literal(a) for a in positional],
        keywords=[ast.keyword(k, literal(v)) for k, v in kwargs.items() if v is not OMIT],
    )


_PLAIN = {"ctx", "id", "attr", "arg", "kind", "is_async", "conversion"}  # fields without nodes worth visiting
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {ast.Constant: ()}
_REVERSED: dict[type, tuple[str, ...]] = {}


def _fields(tree: ast.AST) -> tuple[str, ...]:
    """Return the fields of a node that hold nodes or lists of nodes."""
    fields = _FIELDS.get(type(tree))
    if fields is None:
        fields = _FIELDS[type(tree)] = tuple(name for name in tree._fields if name not in _PLAIN)
    return fields


@overload
def rewrite(tree: ast.expr, change: Change) -> ast.expr: ...
@overload
def rewrite(tree: Any, change: Change) -> Any: ...
def rewrite(tree: Any, change: Change) -> Any:
    """Replace nodes of `tree` by what `change` returns for them (None: keep).

    `tree` is not modified: nodes above a replaced one are copied, all others shared.
    """
    new = change(tree)
    if new is not None:
        return new
    copied = None
    for name in _fields(tree):
        field = getattr(tree, name, None)
        if isinstance(field, ast.AST):
            changed = rewrite(field, change)
            if changed is field:
                continue
        elif isinstance(field, list):
            changed = [rewrite(f, change) if isinstance(f, ast.AST) else f for f in field]
            if all(map(is_, changed, field)):
                continue
        else:
            continue
        if copied is None:
            copied = _copy(tree)
        setattr(copied, name, changed)
    return tree if copied is None else copied


def put(values: Mapping[str, ast.expr | str]) -> Change:
    """Return what puts expressions, or other values, in the place of values."""

    def change(node: ast.AST) -> ast.expr | None:
        replacement = values.get(node.value) if isinstance(node, Ref) else None
        return Ref(replacement) if isinstance(replacement, str) else replacement

    return change


def _copy(tree: ast.AST) -> ast.AST:
    copied = tree.__class__.__new__(tree.__class__)
    for name in tree._fields:
        setattr(copied, name, getattr(tree, name, None))
    for name in (REMARK, APART):
        if name in tree.__dict__:
            setattr(copied, name, getattr(tree, name))
    return copied


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node of an expression except `ctx` nodes, parents first, left to right."""
    stack: list[Any] = [tree]
    while stack:
        node = stack.pop()
        fields = _REVERSED.get(node.__class__)
        if fields is None:
            if not isinstance(node, ast.AST):
                continue  # None or a name in a list of nodes
            fields = _REVERSED[node.__class__] = _fields(node)[::-1]
        yield node
        for name in fields:
            field = getattr(node, name, None)
            if field.__class__ is list:
                stack.extend(reversed(field))
            elif field is not None:
                stack.append(field)


def refs(tree: ast.AST) -> Sequence[str]:
    """Return the ids of the values that an expression uses, in order, with repetitions.

    The result is cached in the expression, which is never modified.
    """
    ids: tuple[str, ...] | None = tree.__dict__.get("_refs")
    if ids is None:
        ids = tree.__dict__["_refs"] = tuple(n.value for n in walk(tree) if isinstance(n, Ref))
    return ids


def members(tree: ast.AST) -> list[Member]:
    """Return the members that an expression uses, in order, with repetitions."""
    return [n.member for n in walk(tree) if isinstance(n, MemberRef)]


def depth(tree: ast.AST, is_flat: bool = False) -> int:
    """Return the nesting depth of calls and operators in an expression (0 for a name or a literal).

    Args:
        tree: the expression.
        is_flat: the terms of a sum are on one level, as the factors of a product are, and a power or an item of a name
            is no deeper than the name.
    """
    if is_flat and isinstance(tree, ast.BinOp):
        left, right = depth(tree.left, True), depth(tree.right, True)
        if isinstance(tree.op, ast.Pow) and left == 0 and isinstance(tree.right, ast.Constant):
            return 0
        goes_on = isinstance(tree.left, ast.BinOp) and _rank(tree.left) == _rank(tree) != 0
        return max(left + (not goes_on), right + 1)
    inner = 0
    for name in _fields(tree):
        field = getattr(tree, name, None)
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST):
                inner = max(inner, depth(child, is_flat))
    if is_flat and inner == 0 and isinstance(tree, ast.Subscript):
        return 0
    return inner + isinstance(tree, (ast.Call, ast.BinOp, ast.Subscript))


def _rank(tree: ast.BinOp) -> int:
    """Return 1 for a sum, 2 for a product, 0 for another operator."""
    return 1 if isinstance(tree.op, ast.Add | ast.Sub) else 2 if isinstance(tree.op, ast.Mult | ast.Div) else 0


TORCH_NUMBERS = {
    "torch.finfo(torch.float32).min": float(np.finfo(np.float32).min),
    "torch.finfo(torch.float32).max": float(np.finfo(np.float32).max),
    "float('inf')": math.inf,
    "float('-inf')": -math.inf,
    "float('nan')": math.nan,
}


def hold_same(short: float, number: float) -> None:
    """Check that `short` equals `number`, exactly or rounded to float32. Raises `WrongTranslation`."""
    with np.errstate(over="ignore"):
        is_same = short is not None and (short == number or np.float32(short) == np.float32(number))
    if not is_same and not (number != number and short != short):
        raise WrongTranslation(f"the number {number!r} is shortened to {short!r}")


def held(tree: ast.expr, number: float) -> ast.expr:
    """Return `tree` after checking that its value is `number`, with the same type and sign (also of zero).

    Raises:
        WrongTranslation: it is another number, or its value is unknown.
    """
    value: float | None
    negated = isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub)
    digits = tree.operand if isinstance(tree, ast.UnaryOp) else tree
    if isinstance(digits, ast.Constant) and isinstance(digits.value, (int, float)):
        value = -digits.value if negated else digits.value
    else:
        value = TORCH_NUMBERS.get(ast.unparse(tree))
    if not isinstance(value, type(number)) or (value != number and not (value != value and number != number)):
        raise WrongTranslation(f"the number {number!r} is written as {ast.unparse(tree)}")
    if isinstance(value, float) and math.copysign(1, value) != math.copysign(1, number) and number == number:
        raise WrongTranslation(f"the number {number!r} is written with another sign")
    return tree


MIN_DIGITS = 6  # of a number that nobody typed
MAX_ROOT = 1 << 16  # the largest number under a root: a width
MAX_PARTS = 1000  # into how many parts a whole is divided
NAMED = {
    "math.pi": math.pi,
    "2 * math.pi": 2 * math.pi,
    "4 * math.pi": 4 * math.pi,
    "math.pi / 2": math.pi / 2,
    "math.pi / 4": math.pi / 4,
    "math.pi / 180": math.pi / 180,
    "180 / math.pi": 180 / math.pi,
    "1 / math.pi": 1 / math.pi,
    "math.sqrt(math.pi)": math.sqrt(math.pi),
    "math.sqrt(2 * math.pi)": math.sqrt(2 * math.pi),
    "math.sqrt(2 / math.pi)": math.sqrt(2 / math.pi),
    "math.log(2)": math.log(2),
    "math.log(10)": math.log(10),
    "math.log(10000)": math.log(10000),
    "math.log(2 * math.pi)": math.log(2 * math.pi),
    "0.5 * math.log(2 * math.pi)": 0.5 * math.log(2 * math.pi),
}
_BY_SINGLE = {float(np.float32(value)): (text, value) for text, value in NAMED.items()}


def computed(number: float) -> float:
    """Return the float64 of the formula for a float32 number, perhaps shortened; the number itself if there is none."""
    if not _is_long(number, MIN_DIGITS):
        return number
    single = float(np.float32(abs(number)))
    for _, value in _formulas(single):
        if float(np.float32(value)) == single:
            hold_same(value, single)
            return math.copysign(value, number)
    return number


def formula(node: ast.AST) -> ast.expr | None:
    """Return the formula for a constant that is exactly its float64; None for other constants and nodes."""
    value = node.value if isinstance(node, ast.Constant) else None
    if not isinstance(value, float) or not _is_long(value, 2 * MIN_DIGITS):
        return None
    return next((quote(text) for text, result in _formulas(value) if result == value), None)


def _is_long(number: float, digits: int) -> bool:
    """Return True if a number has at least so many significant digits."""
    return math.isfinite(number) and sum(map(str.isdigit, repr(number).partition("e")[0].lstrip("-0."))) >= digits


def _formulas(number: float) -> Iterator[tuple[str, float]]:
    """Yield the formulas that may give a positive number, with the values that Python computes."""
    named = _BY_SINGLE.get(float(np.float32(number)))
    if named is not None:
        yield named
    if 1 / MAX_PARTS <= number < 1:
        parts = round(1 / number)
        yield f"1 / {parts}", 1 / parts
    if 1 / MAX_ROOT < number * number < MAX_ROOT:
        square = round(number * number if number > 1 else 1 / (number * number))
        root = math.sqrt(square)
        yield (f"math.sqrt({square})", root) if number > 1 else (f"1 / math.sqrt({square})", 1 / root)
