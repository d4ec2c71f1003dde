"""Expressions: Python's `ast` all the way, written as the PyTorch that they become.

`quote("F.relu(x)", x=value)` parses the template once and puts the given values where their names stand. Names, numbers
and text from an ONNX file can therefore only ever become a literal or a placeholder node, never syntax.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxgen.code.numbers import held, hold_same
from onnxgen.errors import WrongTranslation
from onnxgen.shapes.dims import Sym

if TYPE_CHECKING:
    from onnxgen.code.module_def import Member


class Ref(ast.expr):
    """The value with this id; becomes a local variable's name when a class is laid out."""

    _fields = ()

    def __init__(self, value: str) -> None:
        super().__init__()
        self.value = value


class SizeOf(ast.expr):
    """A symbolic dim as a Python int; becomes `x.shape[1]` of a tensor that is at hand where it stands."""

    _fields = ()

    def __init__(self, dim: Sym) -> None:
        super().__init__()
        self.dim = dim


class DeviceOf(ast.expr):
    """The device to compute on; becomes `x.device` of a tensor that is at hand where it stands."""

    _fields = ()


class MemberRef(ast.expr):
    """A parameter, buffer or submodule; becomes `self.conv1`, or what leads there from the class where it stands."""

    _fields = ()

    def __init__(self, member: Member) -> None:
        super().__init__()
        self.member = member


class _Omit:
    def __repr__(self) -> str:
        return "OMIT"


OMIT = _Omit()


def unless(value: Any, default: Any) -> Any:
    """`value`, or `OMIT` when it is what torch takes anyway: `call` leaves such arguments out.

    Raises:
        WrongTranslation: an option is lost here.
    """
    made = OMIT if value == default else value
    if made is not (OMIT if value == default else value):
        raise WrongTranslation(f"the option {value!r} of the default {default!r} is written as {made!r}")
    return made


class NiceFloat(float):
    """A float that prints as a person writes it: 1e-5, not 1e-05."""

    def __repr__(self) -> str:
        text = float.__repr__(self)
        mantissa, e, exponent = text.partition("e")
        return mantissa + e + exponent.replace("-0", "-").replace("+", "").lstrip("0") if e else text


class AsciiText(str):
    """Text that prints as ASCII, whatever it holds: a generated file looks the same to every editor and reviewer."""

    __slots__ = ()

    def __repr__(self) -> str:
        return ascii(str(self))


TORCH_DTYPES = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.DOUBLE: "float64",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
    ir.DataType.INT8: "int8",
    ir.DataType.INT16: "int16",
    ir.DataType.INT32: "int32",
    ir.DataType.INT64: "int64",
    ir.DataType.UINT8: "uint8",
    ir.DataType.UINT16: "uint16",
    ir.DataType.UINT32: "uint32",
    ir.DataType.UINT64: "uint64",
    ir.DataType.BOOL: "bool",
    ir.DataType.COMPLEX64: "complex64",
    ir.DataType.COMPLEX128: "complex128",
    ir.DataType.FLOAT8E4M3FN: "float8_e4m3fn",
    ir.DataType.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    ir.DataType.FLOAT8E5M2: "float8_e5m2",
    ir.DataType.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    # torch has no such types: their values travel in the next wider one
    ir.DataType.INT4: "int8",
    ir.DataType.INT2: "int8",
    ir.DataType.UINT4: "uint8",
    ir.DataType.UINT2: "uint8",
    ir.DataType.FLOAT4E2M1: "float32",
    ir.DataType.FLOAT8E8M0: "float32",
}


def shortest(value: float, dtype: ir.DataType | None = ir.DataType.FLOAT) -> float:
    """The float with the fewest digits that is the same number in `dtype`.

    Only float32 is shortened: torch keeps a Python scalar in float32 when it computes in half precision, so a
    half-precision constant must be written with its exact value.
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
    """A Python value as an expression: numbers, text, sequences, dims, dtypes and numpy scalars."""
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
    made = getattr(value, "expr", None)  # an Arg of an operator function
    if isinstance(made, ast.expr):
        return made
    raise TypeError(f"no literal for {type(value).__name__}")


@cache
def _template(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def quote(template: str, **values: Any) -> ast.expr:
    """The expression that `template` spells, with each name that is in `values` replaced by that value."""
    made = {name: literal(value) for name, value in values.items()}
    found: ast.expr = rewrite(_template(template), lambda n: made.get(n.id) if isinstance(n, ast.Name) else None)
    return found


def tensor_of(owner: ast.expr, key: str) -> ast.expr:
    """The tensor of a layer by its state-dict key, `self.fc.quantize.scale`; without a key what is there itself."""
    for part in key.split(".") if key else ():
        owner = ast.Attribute(owner, part, ast.Load())
    return owner


def call(function: str | ast.expr, *args: Any, **kwargs: Any) -> ast.expr:
    """`function(*args, **kwargs)`; arguments that are `OMIT` are left out (positional ones only from the end)."""
    positional = list(args)
    while positional and positional[-1] is OMIT:
        positional.pop()
    return ast.Call(
        func=quote(function) if isinstance(function, str) else function,
        args=[literal(a) for a in positional],
        keywords=[ast.keyword(k, literal(v)) for k, v in kwargs.items() if v is not OMIT],
    )


# Fields that hold text or numbers, and the one object that stands for reading a name: no nodes to look into.
_PLAIN = {"ctx", "id", "attr", "arg", "kind", "is_async", "conversion"}


_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {ast.Constant: ()}


def _fields(tree: ast.AST) -> tuple[str, ...]:
    """The fields of a node that hold nodes, or lists of them."""
    found = _FIELDS.get(type(tree))
    if found is None:
        found = _FIELDS[type(tree)] = tuple(name for name in tree._fields if name not in _PLAIN)
    return found


def rewrite(tree: Any, change: Callable[[ast.AST], ast.expr | None]) -> Any:
    """`tree` with nodes replaced by what `change` makes of them (None: keep). It is never modified itself: nodes above
    a replaced one are copied, all others shared."""
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


def _copy(tree: ast.AST) -> ast.AST:
    copied = tree.__class__.__new__(tree.__class__)
    for name in tree._fields:
        setattr(copied, name, getattr(tree, name, None))
    return copied


def walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node of an expression but what says that names are read (`ctx`), parents first, left to right."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        yield node
        for name in reversed(_fields(node)):
            field = getattr(node, name, None)
            if isinstance(field, ast.AST):
                stack.append(field)
            elif isinstance(field, list):
                stack.extend(f for f in reversed(field) if isinstance(f, ast.AST))


def refs(tree: ast.AST) -> Sequence[str]:
    """The ids of the values that an expression uses, in order, with repetitions.

    Remembered with the expression, which is never modified: every stage and every level of scopes asks again.
    """
    found: tuple[str, ...] | None = tree.__dict__.get("_refs")
    if found is None:
        found = tree.__dict__["_refs"] = tuple(n.value for n in walk(tree) if isinstance(n, Ref))
    return found


def depth(tree: ast.AST) -> int:
    """How deep calls and operators are nested in an expression (a name or a literal is 0)."""
    inner = 0
    for name in _fields(tree):
        field = getattr(tree, name, None)
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST):
                inner = max(inner, depth(child))
    return inner + isinstance(tree, (ast.Call, ast.BinOp, ast.Subscript))
