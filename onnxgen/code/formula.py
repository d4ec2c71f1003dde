"""Writes a number that a person computed the way it was computed: `math.sqrt(32)`, not 5.656854; `1 / 6`.

A file has only the result, rounded to float32. In the code it is a float64 that a formula gives and that rounds to the
very same float32; the formula itself is written at the end. So until then it is a number like any other.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

import numpy as np

from onnxgen.code.numbers import hold_same
from onnxgen.code.quote import quote

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
    return next((quote(text) for text, made in _formulas(value) if made == value), None)


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
