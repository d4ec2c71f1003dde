"""Checks that a number written as an expression, such as `torch.finfo(torch.float32).min`, has the right value."""

from __future__ import annotations

import ast
import math

import numpy as np

from onnxgen.errors import WrongTranslation

NAMED = {
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
        value = NAMED.get(ast.unparse(tree))
    if not isinstance(value, type(number)) or (value != number and not (value != value and number != number)):
        raise WrongTranslation(f"the number {number!r} is written as {ast.unparse(tree)}")
    if isinstance(value, float) and math.copysign(1, value) != math.copysign(1, number) and number == number:
        raise WrongTranslation(f"the number {number!r} is written with another sign")
    return tree
