"""A number that is written, `torch.finfo(torch.float32).min`, is the number that was meant."""

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
    """`short` is `number` in float32: exactly, or when rounded to it.

    Raises:
        WrongTranslation: it is another number, or none.
    """
    with np.errstate(over="ignore"):
        is_same = short is not None and (short == number or np.float32(short) == np.float32(number))
    if not is_same and not (number != number and short != short):
        raise WrongTranslation(f"the number {number!r} is shortened to {short!r}")


def held(tree: ast.expr, number: float) -> ast.expr:
    """`tree`, which is `number`: of its type, and with its sign, where it is zero, too.

    Raises:
        WrongTranslation: it is another number, or nobody knows which.
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
