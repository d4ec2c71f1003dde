"""Writes evenly spaced floats as one expression: `torch.linspace(0.0, 1.0, 9)`, `(torch.arange(8) + 0.5) / 8`.

Each operation on the counts is IEEE arithmetic, which torch and numpy round alike. `torch.linspace` is two of them, and
torch rounds them together on some processors. So it is written where both ways give the same bits, or where the bits
are loaded from the sidecar anyway.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.quote import quote, shortest

if TYPE_CHECKING:
    from onnxgen.code.literals import Form

TYPES = {ir.DataType.FLOAT: 1 << 24, ir.DataType.DOUBLE: 1 << 53}  # all integers up to this one are exact
MAX_SPACED = 1 << 20  # elements of a vector that are compared with many formulas
# the numbers that are multiplied, of a count x
COUNTS = (("x", 1, 0.0), ("x + 0.5", 1, 0.5), ("2 * x + 1", 2, 1.0), ("-x", -1, 0.0))


def linspace(start: float, end: float, count: int, fused: bool) -> NDArray[np.float32]:
    """Return the elements of torch.linspace on the CPU, `fused` if it rounds product and sum together.

    It counts from both ends: aten/src/ATen/native/cpu/RangeFactoriesKernel.cpp.
    """
    first, last = np.float32(start), np.float32(end)
    step = np.float32(last - first) / np.float32(count - 1)
    at = np.arange(count)
    is_first = at < count // 2
    steps = np.where(is_first, at, count - 1 - at).astype(np.float32)
    base, signed = np.where(is_first, first, last), np.where(is_first, step, -step)
    if not fused:
        return np.asarray(base + signed * steps, np.float32)
    product = signed.astype(np.float64) * steps  # exact
    total = base + product
    back = total - product
    lost = (base - back) + (product - (total - back))  # what rounding the sum lost: it must not be rounded twice
    inexact = (lost != 0) & (total.view(np.int64) % 2 == 0)
    rounded: NDArray[np.float64] = np.where(inexact, np.nextafter(total, np.copysign(np.inf, lost)), total)
    return rounded.astype(np.float32)


def spaced(array: NDArray[Any], form: Form) -> ast.expr | None:
    """Return the shortest expression for evenly spaced floats, or None."""
    if form.dtype not in TYPES or not 4 <= array.size <= MAX_SPACED or not np.isfinite(array).all():
        return None
    step = (float(array[-1]) - float(array[0])) / (array.size - 1)
    even = array[0] + np.arange(array.size) * step
    reach = float(np.abs(array[[0, -1]]).max())
    if step == 0 or float(np.abs(array - even).max()) > 8 * np.finfo(array.dtype).eps * reach:
        return None
    with np.errstate(all="ignore"):
        found = [*_multiples(array, step, form), *_linspace(array, form)]
    return min(found, key=lambda made: made[0])[1] if found else None


def _linspace(array: NDArray[Any], form: Form) -> Iterator[tuple[int, ast.expr]]:
    if form.dtype != ir.DataType.FLOAT:
        return
    start, end = (shortest(float(x)) for x in array[[0, -1]])
    ways = [linspace(start, end, array.size, fused) for fused in (False, True)]
    same = [(way == array) & (np.signbit(way) == np.signbit(array)) for way in ways]
    if (same[0] & same[1]).all() or (form.is_loaded and (same[0] | same[1]).all()):
        made = form.call("torch.linspace", *map(form.number, array[[0, -1]]), array.size, implied=ir.DataType.FLOAT)
        yield _cost(start, end), made


def _multiples(array: NDArray[Any], step: float, form: Form) -> Iterator[tuple[int, ast.expr]]:
    """Yield the counts times a number, or divided by a whole one, perhaps plus another number."""
    kind = array.dtype.type
    counts = form.call("torch.arange", array.size, implied=ir.DataType.FLOAT)  # times a float it is of that type
    for template, factor, first in COUNTS:
        numbers = (np.arange(array.size) * factor + first).astype(kind)
        one = step / factor
        ways = [(f"({template}) * s", numbers * kind(s), s) for s in _rounded(one, kind)]
        whole = round(1 / one) if abs(one) < 1 else 0
        if abs(whole) > 1 and abs(whole * one - 1) < 1e-5:
            ways.append((f"({template}) / s", numbers / kind(whole), whole))
        for way, values, s in ways:
            offset = float(array[0]) - float(values[0])
            for c in {0.0, *_rounded(offset, kind)} if abs(offset) > abs(step) / 1000 else {0.0}:
                if same_bits(values + kind(c) if c else values, array):
                    number = s if isinstance(s, int) else form.number(kind(s))
                    text = way if c == 0 else f"{way} + c" if c > 0 else f"{way} - c"
                    made = quote(text, x=counts, s=number, c=form.number(kind(abs(c))))
                    usual = 4 if s == array.size and isinstance(s, int) else 0  # the centres of as many pixels
                    yield _cost(s, *([c, 0.0] if c else []), first) - usual, made


def same_bits(made: NDArray[Any], array: NDArray[Any]) -> bool:
    """True if all elements are equal, and no zero has the other sign."""
    return bool((made == array).all() and (np.signbit(made) == np.signbit(array)).all())


def _rounded(number: float, kind: Any) -> set[float]:
    """Return a number in a type, and with fewer digits where that is nearly the same."""
    near = {float(kind(f"{number:.{digits}g}")) for digits in range(1, 8)}
    return {float(kind(number)), *(n for n in near if abs(n - number) < 1e-5 * abs(number))}


def _cost(*numbers: float) -> int:
    return sum(len(repr(shortest(float(np.float32(n))))) for n in numbers)
