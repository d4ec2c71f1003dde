"""Comparisons, logic, and the choice between two tensors."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.code.quote import literal
from onnxgen.graph.gradients import INTEGERS
from onnxgen.graph.operators import op
from onnxgen.graph.traits import BROADCASTS, COMMUTES, COMPARISON, ELEMENTWISE, MOVES
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.lowering.from_sizes import Sized, formula
from onnxgen.ops.math import aligned, binary
from onnxgen.ops.rules import rules
from onnxgen.ops.wide import computed
from onnxgen.shapes.evaluate_math import equal as equal_dims
from onnxgen.shapes.evaluate_math import less

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
    _logical = op(_name, traits=[COMMUTES], numbers=_numbers, dims=_dims, neutral=_neutral, flat=INTEGERS)
    _logical(_logic(_template, _of_sizes))
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
