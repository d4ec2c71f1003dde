"""Integer expressions in normal form: atoms, sums and products. See `shapes.dims` for an overview."""

from __future__ import annotations

from collections.abc import Mapping
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

    # Division and text build on sums and products, so they are imported on first use.

    def __floordiv__(self, other: Dim) -> Dim:
        from onnxgen.shapes.division import floordiv

        return floordiv(self, other) if _is_dim(other) else NotImplemented

    def __rfloordiv__(self, other: Dim) -> Dim:
        from onnxgen.shapes.division import floordiv

        return floordiv(other, self) if _is_dim(other) else NotImplemented

    def __mod__(self, other: Dim) -> Dim:
        from onnxgen.shapes.division import modulo

        return modulo(self, other) if _is_dim(other) else NotImplemented

    def __rmod__(self, other: Dim) -> Dim:
        from onnxgen.shapes.division import modulo

        return modulo(other, self) if _is_dim(other) else NotImplemented

    def __str__(self) -> str:
        from onnxgen.shapes.dim_text import readable

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
