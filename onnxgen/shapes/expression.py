"""Integer expressions in normal form: atoms, sums, products and quotients (see `shapes.dims`).

A division is exact where one expression divides the other, else a call in normal form.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import TypeAlias

MAX_TERMS = 64  # terms of one polynomial
MAX_DEGREE = 16  # total degree of one term
MAX_KEY = 2000  # characters of one call as text
MAX_INT = 2**63


class TooComplex(ArithmeticError):
    """An expression grew too large to be written into source. Callers treat the dim as unknown."""


class Symbol:
    """A dim that is known only at run time; compares equal by `name` alone.

    Attributes:
        name: the file's `dim_param`, unchanged, or a generated `"{value}.{axis}"`.
        source: (value name, axis) of its first occurrence; None if it belongs to no value.
        selected: it counts what an operator found or selected, of which there may be nothing.
    """

    __slots__ = ("key", "name", "selected", "source")

    def __init__(self, name: str, source: tuple[str, int] | None = None, selected: bool = False) -> None:
        self.name = name
        self.source = source
        self.selected = selected
        self.key = repr(name)  # quoted, so that a name cannot look like a call

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbol) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Symbol({self.key}, {self.source})"


class Call:
    """A function of `shapes.dims` applied to dims or float constants; compares by function and arguments."""

    __slots__ = ("args", "function", "key")

    def __init__(self, function: str, args: tuple[Dim | float, ...]) -> None:
        self.function = function
        self.args = args
        self.key = f"{function}({','.join(map(key_of, args))})"
        if len(self.key) > MAX_KEY:
            raise TooComplex(f"a dim of more than {MAX_KEY} characters")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Call({self.function!r}, {self.args!r})"


Atom: TypeAlias = Symbol | Call
Monomial: TypeAlias = tuple[tuple[Atom, int], ...]  # atoms with their powers, sorted by key; () is the constant


class Sym:
    """An integer expression that is not a constant; immutable. Make one with `symbol` or `call`; + - * // % combine.

    Attributes:
        terms: (monomial, coefficient) pairs, highest degree first, the constant last; coefficients are never 0.
    """

    __slots__ = ("_hash", "_key", "_nonnegative", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...], nonnegative: bool = False) -> None:
        self.terms = terms
        self._hash = hash(terms)
        self._key: str | None = None
        self._nonnegative: bool | None = True if nonnegative else None

    @property
    def key(self) -> str:
        """Return the expression written out unambiguously. It defines the order of arguments."""
        if self._key is None:
            self._key = "+".join(
                "*".join([str(c), *(a.key if p == 1 else f"{a.key}^{p}" for a, p in m)]) for m, c in self.terms
            )
        return self._key

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Sym) and self._hash == other._hash and self.terms == other.terms)

    def __hash__(self) -> int:
        return self._hash

    def __bool__(self) -> bool:
        raise TypeError(f"whether {self} is zero is known only at run time")

    def __add__(self, other: Dim) -> Dim:
        return _add(self, other, 1) if _is_dim(other) else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        return _add(self, other, -1) if _is_dim(other) else NotImplemented

    def __rsub__(self, other: Dim) -> Dim:
        return _add(self._negated(), other, 1) if _is_dim(other) else NotImplemented

    def __mul__(self, other: Dim) -> Dim:
        return _multiply(self, other) if _is_dim(other) else NotImplemented

    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return self._negated()

    def _negated(self) -> Sym:
        return Sym(tuple((m, -c) for m, c in self.terms))

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other) if _is_dim(other) else NotImplemented

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self) if _is_dim(other) else NotImplemented

    def __mod__(self, other: Dim) -> Dim:
        return modulo(self, other) if _is_dim(other) else NotImplemented

    def __rmod__(self, other: Dim) -> Dim:
        return modulo(other, self) if _is_dim(other) else NotImplemented

    def __str__(self) -> str:  # the text builds on sums and products, so it is imported on first use
        from onnxgen.shapes.dims import readable

        return readable(self)

    def __repr__(self) -> str:
        return f"Sym({self})"


Dim: TypeAlias = int | Sym


def symbol(name: str, source: tuple[str, int] | None = None, selected: bool = False) -> Sym:
    """Return the dim called `name`."""
    return Sym(((((Symbol(name, source, selected), 1),), 1),))


def call(function: str, *args: Dim | float) -> Sym:
    """Return the dim `function(*args)` without simplification. Raises `TooComplex`."""
    return Sym(((((Call(function, args), 1),), 1),))


def _is_dim(value: object) -> bool:
    return isinstance(value, (int, Sym, Integral))


def key_of(value: Dim | float) -> str:
    return value.key if isinstance(value, Sym) else repr(value)


def terms_of(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(dim, Sym):
        return dim.terms
    return (((), int(dim)),) if dim else ()


def order(term: tuple[Monomial, int]) -> tuple[int, list[tuple[str, int]]]:
    return -sum(p for _, p in term[0]), [(a.key, -p) for a, p in term[0]]


def build(terms: Mapping[Monomial, int], nonnegative: bool = False) -> Dim:
    """Return the normal form of a sum of terms. Raises `TooComplex` past the bounds."""
    kept = [(m, c) for m, c in terms.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    if len(kept) > MAX_TERMS or any(abs(c) >= MAX_INT for _, c in kept):
        raise TooComplex("a dim with too many terms or too large a coefficient")
    kept.sort(key=order)
    if -order(kept[0])[0] > MAX_DEGREE:
        raise TooComplex(f"a dim of degree over {MAX_DEGREE}")
    return Sym(tuple(kept), nonnegative)


def _add(a: Sym, b: Dim, sign: int) -> Dim:
    terms = dict(a.terms)
    for monomial, coefficient in terms_of(b):
        terms[monomial] = terms.get(monomial, 0) + sign * coefficient
    return build(terms, sign > 0 and nonnegative(a) and nonnegative(b))


def times(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: item[0].key))


def _multiply(a: Sym, b: Dim) -> Dim:
    terms: dict[Monomial, int] = {}
    for m, c in a.terms:
        for n, d in terms_of(b):
            monomial = times(m, n)
            terms[monomial] = terms.get(monomial, 0) + c * d
    return build(terms, nonnegative(a) and nonnegative(b))


def _nonnegative_atom(atom: Atom) -> bool:
    if isinstance(atom, Symbol):
        return True
    args = [a >= 0 if isinstance(a, float) else nonnegative(a) for a in atom.args]
    if atom.function == "max":
        return any(args)
    if atom.function == "mod":
        return args[1]
    return atom.function in ("min", "floordiv", "int_div", "scale_size") and all(args)


def nonnegative(dim: Dim) -> bool:
    """Return True if dim >= 0 is proven for every value of its symbols (which are >= 0)."""
    if not isinstance(dim, Sym):
        return dim >= 0
    if dim._nonnegative is None:
        dim._nonnegative = all(c > 0 and all(p % 2 == 0 or _nonnegative_atom(a) for a, p in m) for m, c in dim.terms)
    return dim._nonnegative


def as_size(dim: Dim) -> Dim:
    """Return the same dim, assumed to be >= 0 from now on because it is the length of an axis."""
    return dim if not isinstance(dim, Sym) or nonnegative(dim) else Sym(dim.terms, nonnegative=True)


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
