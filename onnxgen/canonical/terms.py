"""Terms: the values of a network in one canonical form, each of them one object.

A term is an operation on other terms, with its shape and dtype. Equal terms are the same object, so two programs that
were brought to terms by the same `Terms` compute the same function if their results are the same objects. Numbers are
real numbers here: rounding is not modelled. Sizes are integers, or sympy expressions of the sizes of inputs.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import sympy

Size: TypeAlias = Any  # int | sympy.Expr
Shape: TypeAlias = tuple[Size, ...]


class Term:
    """One operation and its operands.

    Attributes:
        number: in the order in which terms were made.
        colour: the same for terms that are equal but for views and the names of leaves.
        origin: the number of the first term that it is made of element by element; views don't change it.
        is_partial: whether an element may be undefined where inputs and parameters are finite.
    """

    __slots__ = ("_parts", "args", "colour", "dtype", "is_partial", "number", "op", "origin", "shape")

    def __init__(self, op: str, args: tuple[Any, ...], shape: Shape, dtype: str, number: int) -> None:
        self.op, self.args, self.shape, self.dtype, self.number = op, args, shape, dtype, number
        is_leaf = op in ("parameter", "frozen")
        self.colour: int = args[0].colour if op in VIEWS else _digest(("leaf", shape) if is_leaf else (op, args))
        self._parts: tuple[Term, ...] | None = None
        inside = [*_unordered(args)]
        by_element = inside if op in ELEMENTWISE or op in VIEWS else []
        self.origin: int = min((part.origin for part in by_element), default=number)
        is_own = (op == "each" and args[0] in PARTIAL) or (op == "call" and args[0] not in FINITE)
        self.is_partial: bool = is_own or any(part.is_partial for part in inside)

    def __repr__(self) -> str:
        return f"<{self.op} {self.number} {list(self.shape)}>"

    def parts(self) -> tuple[Term, ...]:
        """The terms that it is made of, in order; a factor of a sum as often as it occurs."""
        if self._parts is None:
            self._parts = tuple(terms_in(self.args))
        return self._parts


VIEWS = frozenset({"view", "reshape", "expand"})
# Functions of single elements that are undefined somewhere. A power is a root, or a quotient.
PARTIAL = frozenset({"power", "log", "log2", "log10", "log1p", "asin", "acos", "tan"})
# What is finite for finite operands. Of other functions that is not known.
FINITE = frozenset(
    {"conv", "max_pool", "avg_pool", "enlarged", "softplus", "pad", "flip", "causal", "aten::index.Tensor"}
)
ELEMENTWISE = frozenset({"sum", "each"})


def _digest(value: Any) -> int:
    """Return a number that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(_text(value).encode(), digest_size=8).digest(), "big")


def _text(value: Any) -> str:
    if isinstance(value, Term):
        return f"#{value.colour}"
    if isinstance(value, tuple):
        return f"({','.join(map(_text, value))})"
    if isinstance(value, frozenset):
        return f"{{{','.join(sorted(map(_text, value)))}}}"
    return str(value)


def terms_in(value: Any) -> Iterable[Term]:
    """Yield the terms in an argument, one level deep."""
    if isinstance(value, Term):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from terms_in(item)
    elif isinstance(value, frozenset):
        for item in sorted(value, key=order):
            yield from terms_in(item)


def _unordered(value: Any) -> Iterator[Term]:
    """Yield the terms in an argument, in any order."""
    if isinstance(value, Term):
        yield value
    elif isinstance(value, (tuple, frozenset)):
        for item in value:
            yield from _unordered(item)


def order(value: Any) -> Any:
    """A key that sorts what a set of a term holds: monomials with their coefficients, factors with their exponents."""
    if isinstance(value, Term):
        return (0, value.colour, value.origin, value.number)
    if isinstance(value, tuple):
        return (1, len(value), tuple(order(v) for v in value))
    if isinstance(value, frozenset):
        return (2, len(value), tuple(sorted(order(v) for v in value)))
    return (3, str(value))


# A product: each factor with its exponent, a positive integer. A sum: each product with its coefficient.
Monomial: TypeAlias = frozenset[tuple[Term, int]]
Sum: TypeAlias = Mapping[Monomial, Any]
NOTHING: Monomial = frozenset()
SMALLEST, LARGEST = 2.0**-126, 2.0**127  # of normal numbers of float32
FOLDED = 2.0**46  # what is left of the 53 bits of float64: the rest may be rounded where numbers were folded
INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"})


Function = TypeVar("Function", bound=Callable[..., Any])


def once(function: Function) -> Function:
    """Let a method compute its result once for the same arguments: terms share their parts, so it meets them again."""

    @functools.wraps(function)
    def kept(self: Terms, *args: Any, **kwargs: Any) -> Any:
        key = (function.__name__, *args, *kwargs.items())
        if key not in self.results:
            self.results[key] = function(self, *args, **kwargs)
        return self.results[key]

    return kept  # type: ignore[return-value]


class Terms:
    """Makes terms, each once."""

    def __init__(self, thorough: bool = False) -> None:
        """`thorough`: whether operators with weights become sums and products where they can: what is alike then has
        one form more often, and who looks for the layers of a network finds fewer.
        """
        self.thorough = thorough
        self._known: dict[Hashable, Term] = {}
        self.elements: dict[Term, Any] = {}  # tensors of constants
        self.results: dict[Hashable, Any] = {}
        self._numbers: dict[Hashable, float] = {}
        self.asked: set[Any] = set()  # sizes of which an operator asks whether they are 1: here, they are not

    def term(self, op: str, args: tuple[Any, ...], shape: Shape, dtype: str) -> Term:
        """Return the term of an operation."""
        key = (op, args, shape, dtype)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Term(op, args, shape, dtype, len(self._known))
        return found

    def near(self, number: float, dtype: str = "float32") -> float:
        """Return the number that stands for all numbers that are the same in a dtype.

        So what was rounded while numbers were folded in float64 makes no difference, but the next number of the dtype
        is another one.
        """
        if math.isnan(number):
            return math.nan  # one object: it is equal to itself
        if math.isinf(number) or number == int(number):
            return float(number)
        key = rounded(number, dtype)
        return self._numbers.setdefault((dtype == "float64", key), float(key) if key == int(key) else number)

    # ---- sums of products --------------------------------------------------------------------------------------------

    def sum_of(self, items: Sum, shape: Shape, dtype: str) -> Term:
        """Return the term of a sum of products. A product of one factor alone is that factor."""
        exact = dtype in INTEGERS
        kept = {m: (c if exact else self.near(c, dtype)) for m, c in items.items() if c != 0 or _has_poles(m)}
        if len(kept) == 1:
            ((monomial, coefficient),) = kept.items()
            if coefficient == 1 and len(monomial) == 1:
                ((factor, exponent),) = monomial
                if exponent == 1 and factor.shape == shape and factor.dtype == dtype:
                    return factor
                if exponent == 1 and factor.dtype == dtype and self.thorough:
                    return self.term("expand", (factor,), shape, dtype)
        return self.term("sum", (frozenset(kept.items()),), shape, dtype)

    def constant(self, number: float, shape: Shape, dtype: str) -> Term:
        """Return a tensor of one number, as the dtype stores it."""
        if dtype in INTEGERS and isinstance(number, float):
            if not math.isfinite(number):
                return self.term("call", ("full", str(number)), shape, dtype)
            number = int(number != 0) if dtype == "bool" else math.trunc(number)
        return self.sum_of({NOTHING: number}, shape, dtype)

    def items_of(self, term: Term) -> Sum:
        """Return a term as a sum of products."""
        return dict(term.args[0]) if term.op == "sum" else {frozenset({(term, 1)}): 1}

    def size(self, size: Size) -> tuple[Monomial, float]:
        """Return a size as a product and a coefficient."""
        if isinstance(size, int) or size.is_Integer:
            return NOTHING, int(size)
        return frozenset({(self.term("size", (size,), (), "float32"), 1)}), 1


def rounded(number: float, dtype: str) -> float:
    """Return a number as float32 stores it; in float64, without its last bits. Very large and small ones are kept."""
    if dtype in INTEGERS or number == int(number):
        return number
    if dtype == "float64":
        fraction, exponent = math.frexp(number)
        return math.ldexp(round(fraction * FOLDED), exponent) / FOLDED
    if not SMALLEST < abs(number) < LARGEST:
        return number
    return float(struct.unpack("f", struct.pack("f", number))[0])


def number_in(term: Term) -> float | None:
    """Return the number of which all elements are, or None."""
    if term.op != "sum" or len(term.args[0]) > 1:
        return None
    for monomial, coefficient in term.args[0]:
        return coefficient if not monomial else None
    return 0


def _has_poles(monomial: Monomial) -> bool:
    """Return True if a product may be undefined where its factors are finite: 0 / x is no 0 where x is 0."""
    return any(exponent <= 0 or factor.is_partial for factor, exponent in monomial)


def times(one: Monomial, other: Monomial) -> Monomial:
    """Return the product of two products. Sizes are multiplied with each other."""
    powers: dict[Term, int] = dict(one)
    for factor, exponent in other:
        powers[factor] = powers.get(factor, 0) + exponent
    return frozenset(powers.items())


def without_ones(shape: Shape) -> Shape:
    """Return a shape without axes of size 1. What has the same is the same elements in the same order."""
    return tuple(size for size in shape if size != 1)


def is_size(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, sympy.Expr) and not value.is_Float)


def quotient(size: Size, divisor: Size) -> Size | None:
    """Return `size / divisor` if that is an integer for all sizes, else None."""
    if isinstance(size, int) and isinstance(divisor, int):
        return size // divisor if divisor and size % divisor == 0 else None
    result = sympy.cancel(sympy.sympify(size) / sympy.sympify(divisor))
    if sympy.denom(sympy.together(result)) != 1:
        return None
    return plain(result)


def plain(size: Any) -> Size:
    """Return a size as an int, if it is one, else as a sympy expression."""
    if isinstance(size, int):
        return size
    expression = sympy.sympify(size)
    return int(expression) if expression.is_Integer else expression


def product(sizes: Iterable[Size]) -> Size:
    result: Size = 1
    for size in sizes:
        result = result * size
    return plain(sympy.expand(result)) if not isinstance(result, int) else result
