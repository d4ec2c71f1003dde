"""Division of integer expressions: exact where one divides the other, else a call in normal form."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable

from onnxgen.shapes.expression import (
    Atom,
    Call,
    Dim,
    Monomial,
    Sym,
    build,
    call,
    nonnegative,
    order,
    terms_of,
    times,
)

MAX_STEPS = 256  # in one polynomial division


def _plain(dim: Dim) -> Dim:
    """Convert numpy integers to Python integers. Raises `TypeError` for anything that is not an integer or dim."""
    return dim if isinstance(dim, Sym) else operator.index(dim)


def _over(a: Monomial, b: Monomial) -> Monomial | None:
    """Return the monomial a/b, or None if b does not divide a."""
    powers = dict(a)
    for atom, power in b:
        left = powers.pop(atom, 0) - power
        if left < 0:
            return None
        if left:
            powers[atom] = left
    return tuple(sorted(powers.items(), key=lambda item: item[0].key)) if powers else ()


def _share(monomial: Monomial, coefficient: int, factor: int, exact: bool) -> int:
    """Return a coefficient divided by `factor`, rounded down for constants, else toward zero."""
    if exact and coefficient % factor:
        return 0
    if not monomial or (coefficient < 0) == (factor < 0):
        return coefficient // factor
    return -(-coefficient // factor)


def _divide(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """Divide polynomials: return (q, r) with a == q*b + r, where the leading term of b divides no term of r."""
    (lead, factor), *rest = terms_of(b)
    left = dict(terms_of(a))
    quotient: dict[Monomial, int] = {}
    remainder: dict[Monomial, int] = {}
    for _ in range(MAX_STEPS):
        if not left:
            break
        monomial, coefficient = min(left.items(), key=order)
        del left[monomial]
        ratio = _over(monomial, lead)
        q = _share(monomial, coefficient, factor, bool(rest))
        if ratio is None or not q:
            remainder[monomial] = coefficient
            continue
        quotient[ratio] = q
        if coefficient - q * factor:
            remainder[monomial] = coefficient - q * factor
        for m, c in rest:
            lower = times(m, ratio)
            value = left.get(lower, 0) - q * c
            if value:
                left[lower] = value
            else:
                left.pop(lower, None)
    else:
        return 0, a
    return build(quotient), build(remainder)


def exact_div(a: Dim, b: Dim) -> Dim | None:
    """Return `a / b` if b divides a for every value of the symbols (b nonzero), or None if that is not provable."""
    if isinstance(b, int) and b == 0:
        return None
    quotient, remainder = _divide(a, b)
    return quotient if isinstance(remainder, int) and remainder == 0 else None


def _common(terms: Iterable[tuple[Monomial, int]]) -> tuple[Monomial, int]:
    """Return the greatest monomial and integer that divide every term."""
    powers: dict[Atom, int] | None = None
    number = 0
    for monomial, coefficient in terms:
        number = math.gcd(number, coefficient)
        here = dict(monomial)
        powers = here if powers is None else {a: min(p, here[a]) for a, p in powers.items() if a in here}
    return tuple(sorted((powers or {}).items(), key=lambda item: item[0].key)), number or 1


def floordiv(a: Dim, b: Dim) -> Dim:
    """Return `a // b`, rounded toward minus infinity as in Python.

    Whole multiples of b come out of the division; nested divisions by positive ints merge. Exact for every b != 0.
    Raises `ZeroDivisionError` if b is the int 0, `TooComplex`.
    """
    a, b = _plain(a), _plain(b)
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError("a dim divided by zero")
        if isinstance(a, int):
            return a // b
        if b < 0:
            return floordiv(-a, -b)
    quotient, remainder = _divide(a, b)
    if isinstance(b, Sym) and len(b.terms) > 1 and remainder != 0:
        quotient, remainder = 0, a
    if isinstance(remainder, int) and (remainder == 0 or isinstance(b, int)):
        return quotient + (remainder // b if remainder else 0)
    return quotient + _quotient_atom(remainder, b)


def _quotient_atom(a: Dim, b: Dim) -> Dim:
    """Return `a // b` when no whole multiple of b is left: cancel common factors, merge nested divisions."""
    monomial, number = _common([*terms_of(a), *terms_of(b)])
    if monomial or number != 1:
        shared = build({monomial: number})
        return floordiv(_divide(a, shared)[0], _divide(b, shared)[0])
    if isinstance(b, int) and isinstance(a, Sym):
        if a.terms[0][1] < 0:  # floor(-n / b) == -floor((n + b - 1) / b)
            return -floordiv(b - 1 - a, b)
        inner = _merged(a, b)
        if inner is not None:
            return inner
    return call("floordiv", a, b)


def _merged(a: Sym, b: int) -> Dim | None:
    """Return `(x + k*c)//(b*c)` if a is `x//c + k` with positive ints b and c, which equals `a // b`; else None."""
    (monomial, coefficient), *rest = a.terms
    if coefficient != 1 or len(monomial) != 1 or monomial[0][1] != 1 or (rest and (rest[0][0] or len(rest) > 1)):
        return None
    atom = monomial[0][0]
    if not isinstance(atom, Call) or atom.function != "floordiv":
        return None
    x, c = atom.args
    if not isinstance(c, int) or c <= 0 or isinstance(x, float):
        return None
    return floordiv(x + (rest[0][1] if rest else 0) * c, b * c)


def int_div(a: Dim, b: Dim) -> Dim:
    """Return `a / b` truncated toward zero, as ONNX Div. Raises `ZeroDivisionError` for the int 0, or `TooComplex`."""
    a, b = _plain(a), _plain(b)
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b) if (a < 0) != (b < 0) else a // b
    exact = exact_div(a, b)
    if exact is not None:
        return exact
    if nonnegative(a) and nonnegative(b):
        return floordiv(a, b)
    return call("int_div", a, b)


def _residue(monomial: Monomial, coefficient: int, b: int) -> int:
    """Return a coefficient modulo b: a constant in [0, b), others the nearest to zero (`-s % 8` keeps its sign)."""
    low = coefficient % b
    return low - b if monomial and abs(low - b) < abs(low) else low


def modulo(a: Dim, b: Dim) -> Dim:
    """Return `a % b` with the sign of b, as in Python. Raises `ZeroDivisionError` for the int 0, or `TooComplex`."""
    a, b = _plain(a), _plain(b)
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError("a dim modulo zero")
        a = build({m: _residue(m, c, b) for m, c in terms_of(a)})
        if isinstance(a, int):
            return a % b
    elif exact_div(a, b) is not None:
        return 0
    return call("mod", a, b)
