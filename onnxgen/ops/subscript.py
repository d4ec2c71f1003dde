"""Python's own indexing: `x[:, 0]`, `x[..., -1]`, `x[:, 1:-1]`."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from onnxgen.code.quote import literal
from onnxgen.lowering.arg import Arg
from onnxgen.shapes.dims import Dim

FULL = ast.Slice()


def subscript(x: Arg | ast.expr, items: Mapping[int, Any], rank: int | None = None) -> ast.expr:
    """Return `x[...]` with an item (a number, a tensor or a slice) for each given axis, counted from the front.

    A single item on the last axis of a tensor of rank 3 or more is written with an ellipsis.
    """
    last = max(items)
    if len(items) == 1 and rank is not None and rank > 2 and last == rank - 1:
        parts: list[ast.expr] = [ast.Constant(...), literal(items[last])]
    else:
        parts = [literal(items[i]) if i in items else FULL for i in range(last + 1)]
    inner = parts[0] if len(parts) == 1 else ast.Tuple(parts, ast.Load())
    return ast.Subscript(literal(x), inner, ast.Load())


def piece(start: Dim | ast.expr | None, end: Dim | ast.expr | None, step: int = 1) -> ast.Slice:
    """Return `start:end:step`; None is left out."""
    return ast.Slice(
        None if start is None else literal(start),
        None if end is None else literal(end),
        None if step == 1 else literal(step),
    )


def shown_axis(axis: int, rank: int | None) -> int:
    """Return the axis as a person writes it: -1 for the last of three or more."""
    return -1 if rank is not None and rank > 2 and axis == rank - 1 else axis
