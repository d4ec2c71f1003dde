"""Element types: conversions, and arithmetic on unsigned integers, which torch has few kernels for.

Arithmetic on uint16, uint32 and uint64 is done in a wider signed type. int64 wraps as uint64 does,
so sums and products of uint64 are exact, too. Where the *order* of uint64 matters, the helper
`ordered` maps it onto int64 in the same order, and `unordered` maps back.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import DeviceOf, literal, unless
from onnxgen.errors import INFER
from onnxgen.graph.operators import BITS as BITS_REASON
from onnxgen.graph.operators import TYPE, op
from onnxgen.graph.traits import ELEMENTWISE, KEEPS_SIGN, PASSES_ON, SAME, TEXTS
from onnxgen.lowering.builder import UNKNOWN_SHAPE, Arg, Builder
from onnxgen.lowering.from_sizes import Sized, as_float, formula
from onnxgen.ops.rules import rules
from onnxgen.weights.dtypes import TORCH_DTYPES

WIDER = {
    ir.DataType.UINT16: ir.DataType.INT32,
    ir.DataType.UINT32: ir.DataType.INT64,
    ir.DataType.UINT64: ir.DataType.INT64,
}
BITS = {  # signed types of the same size, for operators that only move elements (scatter, gather, flip)
    ir.DataType.UINT16: ir.DataType.INT16,
    ir.DataType.UINT32: ir.DataType.INT32,
    ir.DataType.UINT64: ir.DataType.INT64,
}
SIGNED = {ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64}
INTEGERS = {dtype for dtype in ir.DataType if dtype.is_integer()}


def is_integer(b: Builder, x: Arg) -> bool:
    """Return True if x has integers. Raises a problem if its type is unknown."""
    if x.dtype is None:
        raise b.error(f"the type of input {x.name} is unknown", UNKNOWN_SHAPE)
    return x.dtype in INTEGERS


def computed(
    b: Builder,
    dtype: ir.DataType | None,
    formula: Callable[..., ast.expr],
    *operands: Any,
    order: bool = False,
    back: bool = True,
) -> ast.expr:
    """Return `formula(*operands)`, computed in a wider type if torch cannot compute in `dtype`.

    Args:
        dtype: of the operands, and of the result if `back`.
        operands: tensors (`Arg`) or numbers (`b.numbers`).
        order: the formula compares; for uint64 the operands must not be numbers then (see `compared`).
        back: the result has the operands' type; else it is a bool or an index.
    """
    if dtype not in WIDER:
        return formula(*operands)
    ordered = order and dtype == ir.DataType.UINT64
    template = "ordered(x)" if ordered else "x.to(d)"
    wide = [b(template, x=o, d=WIDER[dtype]) if isinstance(o, (Arg, ast.Subscript)) else o for o in operands]
    result = formula(*wide)
    if not back:
        return result
    return b("unordered(x)", x=result) if ordered else b("x.to(d)", x=result, d=dtype)


def moved(
    b: Builder, x: Arg | ast.expr, dtype: ir.DataType | None, move: Callable[[Arg | ast.expr], ast.expr]
) -> ast.expr:
    """Return `move(x)`, which only moves elements, computed in a type that torch has kernels for."""
    if dtype not in BITS:
        return move(x)
    return b("y.view(d)", y=move(b("x.view(s)", x=x, s=BITS[dtype])), d=dtype)


def flipped(b: Builder, x: Arg | ast.expr, dtype: ir.DataType | None, axes: int | tuple[int, ...]) -> ast.expr:
    """Reverse x along an axis, or several."""
    return moved(b, x, dtype, lambda x: b("x.flip(axes)", x=x, axes=axes))


def compared(b: Builder, *operands: Arg) -> list[Any]:
    """Return the operands of a formula that compares: numbers as from `b.numbers`, but tensors for uint64."""
    if any(o.dtype == ir.DataType.UINT64 for o in operands):
        return list(operands)
    return b.numbers(*operands)


T = ir.DataType
METHODS = {
    T.FLOAT: "x.float()",
    T.DOUBLE: "x.double()",
    T.FLOAT16: "x.half()",
    T.BFLOAT16: "x.bfloat16()",
    T.INT64: "x.long()",
    T.INT32: "x.int()",
    T.BOOL: "x.bool()",
}
# The largest finite number of the types to which Cast saturates (https://onnx.ai/onnx/technical/float8.html).
FLOAT8_MAX = {T.FLOAT8E4M3FN: 448.0, T.FLOAT8E4M3FNUZ: 240.0, T.FLOAT8E5M2: 57344.0, T.FLOAT8E5M2FNUZ: 57344.0}
# Types that torch lacks, whose values are kept in a wider type. Of integers: their bits, and whether they are signed.
WIDE_FLOATS = (T.FLOAT4E2M1, T.FLOAT8E8M0)
SMALL = {T.INT4: (4, True), T.INT2: (2, True), T.UINT4: (4, False), T.UINT2: (2, False)}


def converted(
    b: Builder, x: Any, source: T | None, target: T, saturate: bool = True, round_mode: str = "up"
) -> ast.expr:
    """Convert `x` from the type `source` to `target`; `saturate` and `round_mode` as in `cast`."""
    if source == target:
        return literal(x)
    if T.STRING in (source, target):
        return _text(b, x, source, target)
    for dtype in (source, target):
        if dtype is not None and dtype not in TORCH_DTYPES:
            raise b.error(f"torch has no type {dtype.name.lower()}", "use float8e5m2 or a wider type")
    if source in FLOAT8_MAX:  # torch converts these to and from floating point only
        x, source = b("x.float()", x=x), T.FLOAT
    if target in SMALL:
        return _small(b, x, source, *SMALL[target], target)
    if target in WIDE_FLOATS:
        x = x if source == T.FLOAT else b("x.float()", x=x)
        if target == T.FLOAT4E2M1:
            return b("float4(x)", x=x)
        return b.call("float8_e8m0", x, unless(round_mode, "up"), saturate=unless(saturate, True))
    if target in FLOAT8_MAX:
        return _float8(b, x, source, target, saturate)
    if source is not None and TORCH_DTYPES[source] == TORCH_DTYPES[target]:
        return literal(x)
    return b(METHODS[target], x=x) if target in METHODS else b("x.to(d)", x=x, d=target)


def as_float32(b: Builder, x: Arg) -> ast.expr:
    return x.expr if x.dtype == T.FLOAT else b("x.float()", x=x)


def _text(b: Builder, x: Any, source: T | None, target: T) -> ast.expr:
    """Convert numbers to strings, or strings to numbers, as onnxruntime does."""
    other = target if source == T.STRING else source
    if other is None or other not in TORCH_DTYPES or other in (T.COMPLEX64, T.COMPLEX128):
        raise b.error("torch can't cast between strings and numbers of this type", "cast before or after the network")
    if target == T.STRING:
        return b("numbers_as_text(x)", x=b("x.float()", x=x) if other in FLOAT8_MAX else x)
    if target.is_floating_point():
        return converted(b, b.call("floats_in", x, DeviceOf()), T.DOUBLE, target)
    signed = unless(target in SIGNED or target in (T.INT4, T.INT2), True)
    return converted(b, b.call("integers_in", x, DeviceOf(), signed=signed), T.INT64, target)


def _float8(b: Builder, x: Any, source: T | None, target: T, saturate: bool) -> ast.expr:
    if source is None or not source.is_floating_point():
        x = b("x.float()", x=x)
    if saturate:
        x = b("x.clamp(low, high)", x=x, low=-FLOAT8_MAX[target], high=FLOAT8_MAX[target])
    elif target == T.FLOAT8E4M3FN:  # some versions of torch saturate; the number after 448 would be 480
        x = b("x.masked_fill(x.abs() > 464.0, nan)", x=x, nan=float("nan"))
    return b("x.to(d)", x=x, d=target)


def _small(b: Builder, x: Any, source: T | None, bits: int, signed: bool, target: T) -> ast.expr:
    """Keep the lowest bits of an integer. Floats are truncated first, as ONNX says (onnxruntime rounds them)."""
    if source in SMALL and SMALL[source][0] < bits and (signed or not SMALL[source][1]):
        return b("x.to(d)", x=x, d=target)
    sign = 1 << bits - 1
    template = "(((x.to(torch.int16) & mask) ^ sign) - sign).to(d)" if signed else "(x.to(torch.int16) & mask).to(d)"
    return b(template, x=x, mask=(1 << bits) - 1, sign=sign, d=target)


@op("Cast", traits=[TEXTS, ELEMENTWISE, SAME, PASSES_ON, KEEPS_SIGN], **rules("cast"))
def cast(b: Builder, input: Arg, *, to: int, saturate: int = 1, round_mode: str = "up") -> ast.expr | Sized:
    """Convert to another type; floats are truncated to integers.

    `saturate` is for float8, `round_mode` for float8e8m0. ONNX does not define how numbers that do not fit an integer
    type are converted; torch and onnxruntime do what C does.
    """
    return _from_sizes(b, input, T(to)) or converted(b, input, input.dtype, T(to), bool(saturate), round_mode)


def _from_sizes(b: Builder, x: Arg, to: T) -> ast.expr | Sized | None:
    """Return numbers and truth values that are computed from sizes in another type."""
    if to == T.BOOL:
        return formula("x" if x.dtype == T.BOOL else "x != 0", x)
    if x.dtype == T.BOOL:
        return formula("int(x)", x) if to in (T.INT32, T.INT64) else None
    sizes = as_float(x, to)
    if sizes is None and x.is_sized and x.sized is not None and to in (T.FLOAT, T.DOUBLE, T.FLOAT16, T.BFLOAT16):
        exact = x.dtype in (T.INT32, T.INT64)  # a float of one type is rounded to that before it gets another one
        return b("torch.tensor(v, dtype=d, device=dev)", v=x.sized.listed(), d=to, dev=DeviceOf()) if exact else None
    return sizes


@op(
    "CastLike", traits=[TEXTS, ELEMENTWISE, SAME, KEEPS_SIGN], **rules("cast_like", reads=1), flat={"target_type": TYPE}
)
def cast_like(b: Builder, input: Arg, target_type: Arg, *, saturate: int = 1, round_mode: str = "up") -> ast.expr:
    if target_type.dtype is None:
        raise b.error("the type to cast to is unknown", INFER)
    return converted(b, input, input.dtype, target_type.dtype, bool(saturate), round_mode)


@op("BitCast", flat=BITS_REASON)
def bit_cast(b: Builder, input: Arg, *, to: int) -> ast.expr:
    """Reinterpret the bits as another type of the same size."""
    for dtype in (input.dtype, T(to)):
        if dtype is None or dtype not in TORCH_DTYPES or dtype in SMALL or dtype in WIDE_FLOATS:
            raise b.error(
                f"torch has no type {dtype.name.lower() if dtype else ''} to reinterpret the bits as",
                "use a wider type",
            )
    return b("x.view(d)", x=input, d=T(to))
