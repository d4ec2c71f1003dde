"""Tensor dims as exact integer expressions: `Dim = int | Sym`.

A `Sym` is a polynomial with integer coefficients over *atoms*, kept in one normal form, so that equal expressions
compare (and hash) equal: `(a*b)//b == a`, `s + 1 - 1 == s`, `(h - 1)//2 + 1 == (h + 1)//2`. A polynomial without
atoms is a plain `int`. An atom is a `Symbol` (a dim that only the caller's tensors know) or a `Call` (a function
that no polynomial expresses). `==` is equality of normal forms: `False` means "not provably equal".

Functions of a `Call`, all on exact integers:

    floordiv(a, b)       Python's `a // b`
    mod(a, b)            Python's `a % b`
    min(a, ...), max(a, ...)
    int_div(a, b)        division truncated toward zero (ONNX Div on integers), where operands may be negative
    scale_size(n, f)     int(floor(float32(n) * float32(f))): a size scaled in float32 (ONNX Resize)

Expressions are bounded in size; arithmetic that would pass the bound raises `TooComplex`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral
from typing import TypeAlias

MAX_TERMS = 64  # terms of one polynomial
MAX_DEGREE = 16  # total degree of one term
MAX_KEY = 2000  # characters of one call, written out
MAX_INT = 2**63


class TooComplex(ArithmeticError):
    """An expression grew past what is worth writing into source; callers treat the dim as unknown."""


class Symbol:
    """A dim that is known only at run time; compares equal by `name` alone.

    Attributes:
        name: the file's `dim_param`, raw, or a made-up `"{value}.{axis}"`.
        source: (value name, axis) where it was first seen; None if it belongs to no value.
    """

    __slots__ = ("key", "name", "source")

    def __init__(self, name: str, source: tuple[str, int] | None = None) -> None:
        self.name = name
        self.source = source
        self.key = repr(name)  # quoted, so that no name looks like a call

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbol) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Symbol({self.key}, {self.source})"


class Call:
    """A function applied to dims (or float constants), see the module's list; compares by function and arguments."""

    __slots__ = ("args", "function", "key")

    def __init__(self, function: str, args: tuple[Dim | float, ...]) -> None:
        self.function = function
        self.args = args
        self.key = f"{function}({','.join(map(_key, args))})"
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
        """The expression written out, without ambiguity; the order of arguments is the order of keys."""
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

    def __str__(self) -> str:
        return _text(self)

    def __repr__(self) -> str:
        return f"Sym({_text(self)})"


Dim: TypeAlias = int | Sym


def symbol(name: str, source: tuple[str, int] | None = None) -> Sym:
    """The dim called `name`."""
    return Sym(((((Symbol(name, source), 1),), 1),))


def call(function: str, *args: Dim | float) -> Sym:
    """The dim `function(*args)`, as it is: nothing is simplified. Raises `TooComplex`."""
    return Sym(((((Call(function, args), 1),), 1),))


def _is_dim(value: object) -> bool:
    return isinstance(value, (int, Sym, Integral))


def _key(value: Dim | float) -> str:
    return value.key if isinstance(value, Sym) else repr(value)


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(dim, Sym):
        return dim.terms
    return (((), int(dim)),) if dim else ()


def _order(term: tuple[Monomial, int]) -> tuple[int, list[tuple[str, int]]]:
    return -sum(p for _, p in term[0]), [(a.key, -p) for a, p in term[0]]


def _build(terms: Mapping[Monomial, int], nonnegative: bool = False) -> Dim:
    """The normal form of a sum of terms. Raises `TooComplex` past the bounds."""
    kept = [(m, c) for m, c in terms.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    if len(kept) > MAX_TERMS or any(abs(c) >= MAX_INT for _, c in kept):
        raise TooComplex("a dim with too many terms or too large a coefficient")
    kept.sort(key=_order)
    if -_order(kept[0])[0] > MAX_DEGREE:
        raise TooComplex(f"a dim of degree over {MAX_DEGREE}")
    return Sym(tuple(kept), nonnegative)


def _add(a: Sym, b: Dim, sign: int) -> Dim:
    terms = dict(a.terms)
    for monomial, coefficient in _terms(b):
        terms[monomial] = terms.get(monomial, 0) + sign * coefficient
    return _build(terms, sign > 0 and nonnegative(a) and nonnegative(b))


def _times(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: item[0].key))


def _multiply(a: Sym, b: Dim) -> Dim:
    terms: dict[Monomial, int] = {}
    for m, c in a.terms:
        for n, d in _terms(b):
            monomial = _times(m, n)
            terms[monomial] = terms.get(monomial, 0) + c * d
    return _build(terms, nonnegative(a) and nonnegative(b))


# ---------------------------------------------------------------------------------------------------- division


def _over(a: Monomial, b: Monomial) -> Monomial | None:
    """The monomial a/b; None if b does not divide a."""
    powers = dict(a)
    for atom, power in b:
        left = powers.pop(atom, 0) - power
        if left < 0:
            return None
        if left:
            powers[atom] = left
    return tuple(sorted(powers.items(), key=lambda item: item[0].key)) if powers else ()


def _share(monomial: Monomial, coefficient: int, factor: int, exact: bool) -> int:
    """How often `factor` goes into a coefficient: constants round down, others toward zero (so `-s` stays `-s`)."""
    if exact and coefficient % factor:
        return 0
    if not monomial or (coefficient < 0) == (factor < 0):
        return coefficient // factor
    return -(-coefficient // factor)


def _divide(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """Polynomial division: (q, r) with a == q*b + r, where r has no term that the leading term of b divides."""
    (lead, factor), *rest = _terms(b)
    left = dict(_terms(a))
    quotient: dict[Monomial, int] = {}
    remainder: dict[Monomial, int] = {}
    for _ in range(4 * MAX_TERMS):
        if not left:
            break
        monomial, coefficient = min(left.items(), key=_order)
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
            lower = _times(m, ratio)
            value = left.get(lower, 0) - q * c
            if value:
                left[lower] = value
            else:
                left.pop(lower, None)
    else:
        return 0, a
    return _build(quotient), _build(remainder)


def exact_div(a: Dim, b: Dim) -> Dim | None:
    """`a / b` where b divides a for every value of the symbols (b nonzero); None where that is not provable."""
    if isinstance(b, int) and b == 0:
        return None
    quotient, remainder = _divide(a, b)
    return quotient if isinstance(remainder, int) and remainder == 0 else None


def _common(terms: Iterable[tuple[Monomial, int]]) -> tuple[Monomial, int]:
    """The greatest monomial and integer that divide every term."""
    powers: dict[Atom, int] | None = None
    number = 0
    for monomial, coefficient in terms:
        number = math.gcd(number, coefficient)
        here = dict(monomial)
        powers = here if powers is None else {a: min(p, here[a]) for a, p in powers.items() if a in here}
    return tuple(sorted((powers or {}).items(), key=lambda item: item[0].key)), number or 1


def floordiv(a: Dim, b: Dim) -> Dim:
    """`a // b`, rounded toward minus infinity, as Python does.

    Whole multiples of b come out of the division; nested divisions by positive ints merge. Exact for every b != 0.
    Raises `ZeroDivisionError` if b is the int 0, `TooComplex`.
    """
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError("a dim divided by zero")
        if isinstance(a, int):
            return a // b
        if b < 0:
            return floordiv(-a, -b)
    assert isinstance(a, Sym) or isinstance(b, Sym)
    quotient, remainder = _divide(a, b)
    if isinstance(b, Sym) and len(b.terms) > 1 and remainder != 0:
        quotient, remainder = 0, a
    if isinstance(remainder, int) and (remainder == 0 or isinstance(b, int)):
        return quotient + (remainder // b if remainder else 0)
    return quotient + _quotient_atom(remainder, b)


def _quotient_atom(a: Dim, b: Dim) -> Dim:
    """`a // b` where nothing comes out whole any more: shared factors cancel, nested divisions merge."""
    monomial, number = _common([*_terms(a), *_terms(b)])
    if monomial or number != 1:
        shared = _build({monomial: number})
        return floordiv(_divide(a, shared)[0], _divide(b, shared)[0])
    if isinstance(b, int) and isinstance(a, Sym):
        if a.terms[0][1] < 0:  # floor(-n / b) == -floor((n + b - 1) / b)
            return -floordiv(b - 1 - a, b)
        inner = _merged(a, b)
        if inner is not None:
            return inner
    return call("floordiv", a, b)


def _merged(a: Sym, b: int) -> Dim | None:
    """`(x//c + k)//b == (x + k*c)//(b*c)` for positive ints b and c; None where a is not of that form."""
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
    """`a / b` truncated toward zero: ONNX Div on integers. Raises `ZeroDivisionError` (b the int 0), `TooComplex`."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b) if (a < 0) != (b < 0) else a // b
    exact = exact_div(a, b)
    if exact is not None:
        return exact
    if nonnegative(a) and nonnegative(b):
        return floordiv(a, b)
    return call("int_div", a, b)


def _residue(monomial: Monomial, coefficient: int, b: int) -> int:
    """A coefficient modulo b: a constant in [0, b), others the one nearest to zero (`-s % 8` keeps its sign)."""
    low = coefficient % b
    return low - b if monomial and abs(low - b) < abs(low) else low


def modulo(a: Dim, b: Dim) -> Dim:
    """`a % b` with the sign of b, as Python does. Raises `ZeroDivisionError` if b is the int 0, `TooComplex`."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError("a dim modulo zero")
        a = _build({m: _residue(m, c, b) for m, c in _terms(a)})
        if isinstance(a, int):
            return a % b
    elif exact_div(a, b) is not None:
        return 0
    return call("mod", a, b)


# ------------------------------------------------------------------------------------------------ order and facts


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
    """Whether the dim is >= 0 for every value of its symbols (which are >= 0), as far as it can be proven."""
    if not isinstance(dim, Sym):
        return dim >= 0
    if dim._nonnegative is None:
        dim._nonnegative = all(c > 0 and all(p % 2 == 0 or _nonnegative_atom(a) for a, p in m) for m, c in dim.terms)
    return dim._nonnegative


def as_size(dim: Dim) -> Dim:
    """The same dim, taken as >= 0 from here on because it is the length of an axis of some tensor."""
    return dim if not isinstance(dim, Sym) or nonnegative(dim) else Sym(dim.terms, nonnegative=True)


def known_equal(a: Dim, b: Dim) -> bool:
    """Whether a == b for every value of the symbols, as far as it can be proven."""
    return a == b


def known_less(a: Dim, b: Dim) -> bool:
    """Whether a < b for every value of the symbols, as far as it can be proven."""
    return nonnegative(b - a - 1)


def known_different(a: Dim, b: Dim) -> bool:
    """Whether a != b for every value of the symbols, as far as it can be proven."""
    return known_less(a, b) or known_less(b, a)


def _extreme(function: str, dims: tuple[Dim, ...]) -> Dim:
    flat: list[Dim] = []
    for dim in dims:
        atom = dim.terms[0][0][0][0] if isinstance(dim, Sym) and dim == _only_call(dim, function) else None
        flat.extend(a for a in atom.args if not isinstance(a, float)) if isinstance(atom, Call) else flat.append(dim)
    kept: list[Dim] = []
    for dim in flat:
        if any(_beats(function, other, dim) for other in kept):
            continue
        kept = [other for other in kept if not _beats(function, dim, other)] + [dim]
    return kept[0] if len(kept) == 1 else call(function, *sorted(kept, key=_key))


def _only_call(dim: Sym, function: str) -> Sym | None:
    """`dim` itself if it is nothing but one call of `function`, else None."""
    (monomial, coefficient), *rest = dim.terms
    if rest or coefficient != 1 or len(monomial) != 1 or monomial[0][1] != 1:
        return None
    atom = monomial[0][0]
    return dim if isinstance(atom, Call) and atom.function == function else None


def _beats(function: str, a: Dim, b: Dim) -> bool:
    return nonnegative(b - a if function == "min" else a - b)


def dim_min(*dims: Dim) -> Dim:
    """The least of the dims; those that provably are not it are left out."""
    return _extreme("min", dims)


def dim_max(*dims: Dim) -> Dim:
    """The greatest of the dims; those that provably are not it are left out."""
    return _extreme("max", dims)


def scale_size(n: Dim, scale: float) -> Dim:
    """`int(floor(float32(n) * float32(scale)))`, n >= 0: the size that ONNX Resize computes from a scale."""
    scale = float32(scale)
    if isinstance(n, int):
        return math.floor(float32(float32(n) * scale))
    if scale > 0 and math.frexp(scale)[0] == 0.5:  # a power of two scales every size below 2**24 exactly
        return n * int(scale) if scale >= 1 else floordiv(n, int(1 / scale))
    return call("scale_size", n, scale)


def float32(value: float) -> float:
    """The nearest float32, as a Python float. The product of two float32 is exact before this rounds it once."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def product(dims: Iterable[Dim]) -> Dim:
    """The product of the dims; 1 for none."""
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


# ------------------------------------------------------------------------------------------------ walk, evaluate


def atoms(dim: Dim | float) -> Iterator[Atom]:
    """Every atom of the dim once per occurrence, arguments of calls before the call."""
    for monomial, _ in dim.terms if isinstance(dim, Sym) else ():
        for atom, _ in monomial:
            if isinstance(atom, Call):
                for arg in atom.args:
                    yield from atoms(arg)
            yield atom


def symbols(dim: Dim) -> dict[str, Symbol]:
    """The symbols of the dim by name."""
    return {atom.name: atom for atom in atoms(dim) if isinstance(atom, Symbol)}


def apply(function: str, *args: Dim | float) -> Dim:
    """The dim `function(*args)` in normal form: the function's name as in `Call`. Raises `KeyError` for others."""
    if function == "scale_size":
        n, scale = args
        assert not isinstance(n, float)
        return scale_size(n, float(scale) if not isinstance(scale, Sym) else math.nan)
    dims = [a for a in args if not isinstance(a, float)]
    if function in ("min", "max"):
        return _extreme(function, tuple(dims))
    a, b = dims
    return {"floordiv": floordiv, "mod": modulo, "int_div": int_div}[function](a, b)


def substitute(dim: Dim, mapping: Mapping[str, Dim]) -> Dim:
    """The dim with symbols replaced: `mapping` goes from symbol name to what takes its place."""
    if not isinstance(dim, Sym):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        for atom, power in monomial:
            term = term * product([_substitute_atom(atom, mapping)] * power)
        total = total + term
    return as_size(total) if nonnegative(dim) else total


def _substitute_atom(atom: Atom, mapping: Mapping[str, Dim]) -> Dim:
    if isinstance(atom, Symbol):
        found = mapping.get(atom.name)
        return Sym(((((atom, 1),), 1),)) if found is None else found
    return apply(atom.function, *(a if isinstance(a, float) else substitute(a, mapping) for a in atom.args))


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The dim as a number, given every symbol's value by name. Raises `KeyError` if one is missing."""
    result = substitute(dim, values)
    if isinstance(result, Sym):
        raise KeyError(", ".join(symbols(result)))
    return result


# ---------------------------------------------------------------------------------------------------------- text


def _text(dim: Dim | float) -> str:
    if not isinstance(dim, Sym):
        return str(dim)
    parts: list[str] = []
    for monomial, coefficient in _tidy(dim):
        alone = len(monomial) == 1 and (coefficient == 1 or (coefficient == -1 and bool(parts)))
        body = "*".join(_atom_text(a, alone) if p == 1 else f"{_atom_text(a, False)}**{p}" for a, p in monomial)
        number = abs(coefficient)
        body = str(number) if not body else body if number == 1 else f"{number}*{body}"
        if not parts:
            parts.append(f"-{body}" if coefficient < 0 else body)
        else:
            parts.append(f"{'-' if coefficient < 0 else '+'} {body}")
    return " ".join(parts)


def _tidy(dim: Sym) -> tuple[tuple[Monomial, int], ...]:
    """The terms for reading: `(h + 1)//2 - 1` becomes `(h - 1)//2` (the constant goes into a division)."""
    *terms, (last, constant) = dim.terms
    if last:
        return dim.terms
    for i, (monomial, coefficient) in enumerate(terms):
        if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1 and isinstance(monomial[0][0], Call):
            function, args = monomial[0][0].function, monomial[0][0].args
            if function == "floordiv" and isinstance(args[1], int) and not isinstance(args[0], float):
                moved = Call(function, (args[0] + constant * args[1], args[1]))
                return (*terms[:i], (((moved, 1),), 1), *terms[i + 1 :])
    return dim.terms


def _atom_text(atom: Atom, alone: bool) -> str:
    if isinstance(atom, Symbol):
        return atom.name
    if atom.function in ("floordiv", "mod"):
        left, right = (_text(a) if _simple(a) else f"({_text(a)})" for a in atom.args)
        text = f"{left}{'//' if atom.function == 'floordiv' else ' % '}{right}"
        return text if alone else f"({text})"
    return f"{atom.function}({', '.join(map(_text, atom.args))})"


def _simple(dim: Dim | float) -> bool:
    """Whether the text of the dim needs no parentheses as an operand of a division."""
    if not isinstance(dim, Sym):
        return True
    (monomial, coefficient), *rest = dim.terms
    if rest or coefficient != 1 or len(monomial) != 1 or monomial[0][1] != 1:
        return False
    atom = monomial[0][0]
    return isinstance(atom, Symbol) or atom.function not in ("floordiv", "mod")
