"""Arithmetic on uint16, uint32 and uint64, for which torch has few kernels: it is done in a wider signed type.

int64 wraps as uint64 does, so sums and products of uint64 are exact, too. Where the *order* of uint64 matters, the
helper `ordered` maps it onto int64 in the same order, and `unordered` maps back.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from onnxgen.lowering.arg import UNKNOWN_SHAPE, Arg
from onnxgen.lowering.builder import Builder

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
    made = formula(*wide)
    if not back:
        return made
    return b("unordered(x)", x=made) if ordered else b("x.to(d)", x=made, d=dtype)


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
