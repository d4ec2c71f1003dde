"""Arithmetic on terms: sums of products, powers, and functions that are computed element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnxgen.canonical.contractions import Contractions
from onnxgen.canonical.terms import (
    FINITE,
    INTEGERS,
    NOTHING,
    PARTIAL,
    VIEWS,
    Monomial,
    Shape,
    Term,
    number_in,
    order,
    rounded,
    times,
)

LEAVES = frozenset({"parameter", "frozen", "input", "size", *VIEWS})
EXPANDED = 6  # products of a product of two sums that is written as one sum


class Algebra(Contractions):
    """Terms with arithmetic. Every function takes the shape and the dtype of its result."""

    def operand(self, term: Term, dtype: str) -> Term:
        """Return a term as an operand of arithmetic in a dtype."""
        term = self.bare(term)
        if term.dtype == dtype:
            return term
        return self.cast(term, dtype)

    def cast(self, term: Term, dtype: str) -> Term:
        if term.dtype == dtype:
            return term
        number = number_in(term)
        if number is not None and math.isfinite(number) and {term.dtype, dtype} <= WIDE:
            return self.constant(_stored(rounded(number, term.dtype), dtype), term.shape, dtype)
        if dtype == "bool" and self.thorough:
            return self.each("ne", [term, self.constant(0, (), term.dtype)], term.shape, dtype)
        if term.dtype == "bool" and self.thorough and (turned := self.negated(term)) is not None:
            return self.added([(self.constant(1, (), dtype), 1), (self.cast(turned, dtype), -1)], term.shape, dtype)
        return self.each("cast", [term], term.shape, dtype, (dtype,))

    def added(self, terms: Sequence[tuple[Term, float]], shape: Shape, dtype: str) -> Term:
        """Return a sum of terms, each multiplied by a number."""
        items: dict[Monomial, Any] = {}
        for term, factor in terms:
            for monomial, coefficient in self.items_of(self.operand(term, dtype)).items():
                items[monomial] = items.get(monomial, 0) + factor * coefficient
        return self.sum_of(items, shape, dtype)

    def multiplied(self, one: Term, other: Term, shape: Shape, dtype: str) -> Term:
        one, other = self.operand(one, dtype), self.operand(other, dtype)
        if self.thorough and (masked := self._masked(one, other, shape, dtype)) is not None:
            return masked
        left, right = self.items_of(one), self.items_of(other)
        if len(left) > 1 and len(right) > 1 and len(left) * len(right) > EXPANDED + 2 * self.thorough:
            (a, first), (b, second) = self.primitive(one), self.primitive(other)
            both = times(frozenset({(first, 1)}), frozenset({(second, 1)}))
            return self.sum_of({self.times(times(a[0], b[0]), both): a[1] * b[1]}, shape, dtype)
        items: dict[Monomial, Any] = {}
        left, right = left or {NOTHING: 0}, right or {NOTHING: 0}  # 0 times what is undefined is not 0
        for m, c in left.items():
            for n, d in right.items():
                both = self.times(m, n)
                items[both] = items.get(both, 0) + c * d
        return self.sum_of(items, shape, dtype)

    def _masked(self, one: Term, other: Term, shape: Shape, dtype: str) -> Term | None:
        """Return what is multiplied by a condition as a choice between it and 0."""
        for condition, value in ((one, other), (other, one)):
            is_cast = condition.op == "each" and condition.args[0] == "cast" and condition.args[2].dtype == "bool"
            if is_cast and "float" in dtype and number_in(value) is None and self.is_finite(value):
                return self.chosen(condition.args[2], value, self.constant(0, (), dtype), shape, dtype)
        return None

    def times(self, one: Monomial, other: Monomial) -> Monomial:
        """Return the product of two products, with one factor for all sizes."""
        both = times(one, other)
        sizes = [(f, e) for f, e in both if f.op == "size"]
        if len(sizes) < 2 and all(e == 1 for _, e in sizes):
            return both
        import sympy

        whole = sympy.cancel(sympy.prod(f.args[0] ** e for f, e in sizes))
        rest = frozenset((f, e) for f, e in both if f.op != "size")
        return rest if whole == 1 else rest | {(self.term("size", (whole,), (), "float32"), 1)}

    def primitive(self, term: Term) -> tuple[tuple[Monomial, float], Term]:
        """Return a sum as (what all its products have in common, a number) and the rest, whose largest number is 1.

        So the number does not depend on the names of parameters, unless the largest occurs with both signs.
        """
        items = self.items_of(term)
        if len(items) < 2:
            return (NOTHING, 1), term
        powers = [dict(m) for m in items]
        common = {f: min(p.get(f, 0) for p in powers) for f in powers[0]}
        common = {f: e for f, e in common.items() if e}
        shared = frozenset(common.items())
        rest = {frozenset((f, e - common.get(f, 0)) for f, e in m if e > common.get(f, 0)): c for m, c in items.items()}
        largest = max(abs(c) for c in rest.values())
        if largest == 0:  # products of nothing and what may be undefined
            return (NOTHING, 1), term
        first = min((m for m, c in rest.items() if abs(c) == largest), key=order)
        lead = rest[first] if term.dtype not in INTEGERS else 1
        return (shared, lead), self.sum_of(
            {m: c / lead for m, c in rest.items()} if lead != 1 else rest, term.shape, term.dtype
        )

    def powered(self, base: Term, exponent: float, shape: Shape) -> Term:
        """Return a power of floats."""
        dtype = base.dtype
        base = self.operand(base, dtype)
        if (number := number_in(base)) is not None and (number > 0 or exponent == int(exponent) and number):
            return self.constant(number**exponent, shape, dtype)
        if exponent == 0:
            return self.constant(1, shape, dtype)
        whole = exponent == int(exponent)
        if self.thorough and exponent == -1 and (argument := self._of_sigmoid(base)) is not None:
            return self.sigmoid(argument, shape)
        if whole and 0 < exponent <= 8:
            result = base
            for _ in range(int(exponent) - 1):
                result = self.multiplied(result, base, shape, dtype)
            return self.expanded(result, shape)
        (common, lead), rest = self.primitive(base)
        if common or lead == 1 or (lead < 0 and not whole):
            rest, lead = base, 1.0
        items = self.items_of(rest)
        if len(items) == 1 and rest.op == "sum":  # a product with a number
            ((monomial, coefficient),) = items.items()
            if coefficient > 0 and coefficient != 1:
                rest, lead = self.sum_of({monomial: 1}, base.shape, dtype), coefficient
        factor = lead**exponent
        power, count = self._power(rest, exponent)
        return self.sum_of({frozenset({(power, count)}): factor}, shape, dtype)

    def _power(self, base: Term, exponent: float) -> tuple[Term, int]:
        """Return a term and a positive integer power of it."""
        if base.op == "each" and base.args[0] == "power" and exponent == -1 and base.args[1][0] % 1:
            return self.each("power", [base.args[2]], base.shape, base.dtype, (-base.args[1][0],)), 1
        if exponent == -1 and (argument := self._of_sigmoid(base)) is not None:
            return self.each("sigmoid", [argument], base.shape, base.dtype), 1
        if exponent == int(exponent) and exponent < 0:
            return self.each("power", [base], base.shape, base.dtype, (-1.0,)), -int(exponent)
        return self.each("power", [base], base.shape, base.dtype, (float(exponent),)), 1

    def _of_sigmoid(self, base: Term) -> Term | None:
        """Return x of `1 + exp(-x)`."""
        items = self.items_of(base)
        if len(items) != 2 or items.get(NOTHING) != 1:
            return None
        ((monomial, coefficient),) = [(m, c) for m, c in items.items() if m]
        ((factor, count), *others) = monomial
        if others or count != 1 or coefficient != 1 or factor.op != "each" or factor.args[0] != "exp":
            return None
        return self.added([(factor.args[2], -1)], base.shape, base.dtype)

    def is_negative(self, term: Term) -> bool:
        """Whether a sum has negative coefficients alone: then it is written as -1 times another one."""
        items = self.items_of(term)
        return "float" in term.dtype and bool(items) and all(c < 0 for c in items.values())

    def sigmoid(self, x: Term, shape: Shape) -> Term:
        if self.thorough and self.is_negative(x):
            turned = self.each("sigmoid", [self.added([(x, -1)], x.shape, x.dtype)], shape, x.dtype)
            return self.added([(self.constant(1, (), x.dtype), 1), (turned, -1)], shape, x.dtype)
        return self.each("sigmoid", [x], shape, x.dtype)

    def positive_part(self, x: Term, shape: Shape) -> Term:
        """Return the larger one of x and 0; that of -x is that of x, less x."""
        zero = self.constant(0, (), x.dtype)
        if self.thorough and self.is_negative(x):
            turned = self.each("maximum", [self.added([(x, -1)], x.shape, x.dtype), zero], shape, x.dtype)
            return self.added([(turned, 1), (x, 1)], shape, x.dtype)
        return self.each("maximum", [x, zero], shape, x.dtype)

    def negated(self, condition: Term) -> Term | None:
        """Return the negation of a condition that is written as one."""
        if condition.op != "each" or condition.args[0] not in ("logical_not", "eq", "le"):
            return None
        name, _, *operands = condition.args
        if name == "logical_not":
            return operands[0]  # type: ignore[no-any-return]
        if name == "eq":
            return self.each("ne", operands, condition.shape, "bool")
        return self.each("lt", operands[::-1], condition.shape, "bool")

    def chosen(self, condition: Term, one: Term, other: Term, shape: Shape, dtype: str) -> Term:
        """Return one operand where a condition is true, and the other one elsewhere."""
        if self.thorough and (turned := self.negated(condition)) is not None:
            return self.chosen(turned, other, one, shape, dtype)
        if self.thorough and "float" in dtype:
            numbers = number_in(one), number_in(other)
            if all(n is not None and math.isfinite(n) for n in numbers):
                high, low = numbers
                return self.expanded(
                    self.added(
                        [(self.constant(low, (), dtype), 1), (self.cast(condition, dtype), high - low)],  # type: ignore[arg-type, operator]
                        condition.shape,
                        dtype,
                    ),
                    shape,
                )
            bent = self._bent(condition, one, other, shape, dtype)
            if bent is not None:
                return bent
            scale = self._scale(one) or self._scale(other)
            if scale not in (None, 1):
                one, other = (self.added([(o, 1 / scale)], o.shape, dtype) for o in (one, other))
                return self.added([(self.each("where", [condition, one, other], shape, dtype), scale)], shape, dtype)
        return self.each("where", [condition, one, other], shape, dtype)

    def _scale(self, term: Term) -> float | None:
        """Return the largest coefficient of a sum without its sign; None if there is none, or it is infinite."""
        largest: float = max((abs(c) for c in self.items_of(term).values()), default=0)
        return largest if 0 < largest < math.inf else None

    def _bent(self, condition: Term, one: Term, other: Term, shape: Shape, dtype: str) -> Term | None:
        """Return a choice by the sign of x whose sides meet at 0, such as a leaky ReLU, as `other + k * max(x, 0)`.

        That holds where both sides are a number or a parameter times x: at 0, it makes no difference which is chosen.
        """
        if condition.op != "each" or condition.args[0] != "lt" or condition.args[2].dtype != dtype:
            return None
        x = self.added([(condition.args[3], 1), (condition.args[2], -1)], condition.shape, dtype)
        if number_in(x) is not None:
            return None
        slopes = [self._quotient(side, x, shape, dtype) for side in (one, other)]
        if slopes[0] is None or slopes[1] is None:
            return None
        slope = self.added([(slopes[0], 1), (slopes[1], -1)], shape, dtype)
        part = self.multiplied(slope, self.positive_part(x, x.shape), shape, dtype)
        return self.added([(other, 1), (part, 1)], shape, dtype)

    def is_finite(self, *terms: Term) -> bool:
        """Whether terms are finite wherever the inputs and parameters are: nothing that they are made of has a pole."""
        todo, done = [*terms], set[Term]()
        while todo:
            term = todo.pop()
            if term in done:
                continue
            done.add(term)
            if term.op == "sum" and not all(math.isfinite(c) for _, c in term.args[0]):
                return False
            if term.op == "constant" and not term.args[1]:
                return False
            if (term.op == "each" and term.args[0] in PARTIAL) or (term.op == "call" and term.args[0] not in FINITE):
                return False
            if term.op not in ("sum", "each", "call", "constant", "contract", "amax", "amin", "cat", "slice", *LEAVES):
                return False
            todo += term.parts()
        return True

    def _quotient(self, whole: Term, x: Term, shape: Shape, dtype: str) -> Term | None:
        """Return k of `whole = k * x`, as a sum without quotients, or None."""
        items = self.items_of(x)
        first = min(items, key=order)
        made: dict[Monomial, Any] = {}
        for monomial, coefficient in self.items_of(whole).items():
            powers = dict(monomial)
            if all(powers.get(f, 0) >= e for f, e in first):
                for f, e in first:
                    powers[f] -= e
                made[frozenset((f, e) for f, e in powers.items() if e)] = coefficient / items[first]
        slope = self.sum_of(made, shape, dtype)
        if any(f.op not in LEAVES and (f.op not in VIEWS or f.args[0].op not in LEAVES) for m in made for f, _ in m):
            return None
        if not all(math.isfinite(c) for c in made.values()):
            return None
        same = self.multiplied(slope, x, shape, dtype) if made else self.constant(0, shape, dtype)
        return slope if self.items_of(same) == self.items_of(whole) else None

    def divided(self, one: Term, other: Term, shape: Shape, dtype: str) -> Term:
        other = self.operand(other, dtype)
        if number := number_in(other):
            return self.added([(one, 1 / number)], shape, dtype)
        return self.multiplied(one, self.powered(other, -1, other.shape), shape, dtype)

    def over_size(self, term: Term, size: Any) -> Term:
        """Return a term divided by a size."""
        if isinstance(size, int):
            return self.added([(term, 1 / size)], term.shape, term.dtype)
        part = frozenset({(self.term("size", (1 / size,), (), "float32"), 1)})
        items = {self.times(m, part): c for m, c in self.items_of(term).items()}
        return self.sum_of(items, term.shape, term.dtype)

    def each(
        self, name: str, operands: Sequence[Term], shape: Shape, dtype: str, attributes: tuple[Any, ...] = ()
    ) -> Term:
        """Return a function that is computed element by element."""
        operands = [self.bare(o) for o in operands]
        if name in COMPUTED and not attributes and (number := number_in(operands[0])) is not None:
            try:
                return self.constant(COMPUTED[name](number), shape, dtype)
            except (ValueError, OverflowError):
                pass
        if len(operands) == 1 and operands[0].op == "cat" and operands[0].shape == shape:
            pieces, axis = operands[0].args
            return self.joined([self.each(name, [p], p.shape, dtype, attributes) for p in pieces], axis)
        if name in SYMMETRIC:
            operands.sort(key=order)
        return self.term("each", (name, attributes, *operands), shape, dtype)

    def made_of(self, term: Term, factors: Mapping[Term, Term], shape: Shape) -> Term:
        """Return a sum of products with other factors."""
        products = []
        for monomial, coefficient in self.items_of(term).items():
            product = self.constant(1, (), term.dtype)
            for factor, exponent in sorted(monomial, key=order):
                for _ in range(exponent):
                    product = self.multiplied(product, factors[factor], shape, term.dtype)
            products.append((product, coefficient))
        return self.added(products, shape, term.dtype)

    def total(self, term: Term, axes: Sequence[int], keep: bool) -> Term:
        """Return the sum over axes."""
        if self.thorough and (made := self._total_of_sum(term, axes, keep)) is not None:
            return made
        labels = list(range(len(term.shape)))
        out = [label for label in labels if label not in axes]
        result = self.contracted([(term, labels)], out, dict(enumerate(term.shape)), term.dtype)
        return self.kept(result, term.shape, axes) if keep else result

    def _total_of_sum(self, term: Term, axes: Sequence[int], keep: bool) -> Term | None:
        """Return the sum over axes of a sum, if some of its products are the same all along these axes."""
        items, rank = self.items_of(term), len(term.shape)
        wide = [axis for axis in axes if term.shape[axis] != 1]
        if len(items) < 2 or "float" not in term.dtype or not wide:
            return None

        def is_still(monomial: Monomial) -> bool:
            ends = [(f.shape[a - rank] if a - rank >= -len(f.shape) else 1) for f, _ in monomial for a in wide]
            return all(size == 1 for size in ends)

        still = {m: c for m, c in items.items() if is_still(m)}
        if not still or len(still) == len(items):
            return None
        rest = self.sum_of({m: c for m, c in items.items() if m not in still}, term.shape, term.dtype)
        shape = tuple(1 if n in axes else size for n, size in enumerate(term.shape))
        once_ = self.sum_of(still, shape, term.dtype)
        for axis in axes:
            monomial, number = self.size(term.shape[axis])
            once_ = self.multiplied(once_, self.sum_of({monomial: number}, (), term.dtype), shape, term.dtype)
        both = self.added([(self.total(rest, axes, True), 1), (once_, 1)], shape, term.dtype)
        return both if keep else self.reshaped(both, tuple(s for n, s in enumerate(term.shape) if n not in axes))

    def kept(self, reduced: Term, shape: Shape, axes: Sequence[int]) -> Term:
        """Return a reduced term with size 1 in the place of each axis."""
        return self.reshaped(reduced, tuple(1 if i in axes else size for i, size in enumerate(shape)))

    def mean(self, term: Term, axes: Sequence[int], keep: bool) -> Term:
        result = self.total(term, axes, keep)
        for axis in axes:
            result = self.over_size(result, term.shape[axis])
        return result

    def extreme(self, name: str, term: Term, axes: Sequence[int], keep: bool) -> Term:
        """Return the largest or smallest element over axes (`name`: amax, amin)."""
        labels = list(range(len(term.shape)))
        out = [label for label in labels if label not in axes]
        result = self.contracted([(term, labels)], out, dict(enumerate(term.shape)), term.dtype, name)
        return self.kept(result, term.shape, axes) if keep else result

    def variance(self, term: Term, axes: Sequence[int], keep: bool, correction: float = 0) -> Term:
        centred = self.added([(term, 1), (self.mean(term, axes, True), -1)], term.shape, term.dtype)
        squares = self.multiplied(centred, centred, term.shape, term.dtype)
        if not correction:
            return self.mean(squares, axes, keep)
        count: Any = 1
        for axis in axes:
            count = count * term.shape[axis]
        return self.over_size(self.total(squares, axes, keep), count - correction)

    def normalised(self, term: Term, axes: Sequence[int], epsilon: float) -> Term:
        """Return a term with mean 0 and variance 1 over axes."""
        shape, dtype = term.shape, term.dtype
        centred = self.added([(term, 1), (self.mean(term, axes, True), -1)], shape, dtype)
        spread = self.variance(term, axes, True)
        spread = self.added([(spread, 1), (self.constant(epsilon, (), dtype), 1)], spread.shape, dtype)
        return self.multiplied(centred, self.powered(spread, -0.5, spread.shape), shape, dtype)

    def softmax(self, term: Term, axis: int) -> Term:
        shape, dtype = term.shape, term.dtype
        powers = self.exponents(term, axis)
        whole = self.total(powers, [axis], True)
        return self.multiplied(powers, self.powered(whole, -1, whole.shape), shape, dtype)

    def nothing_if_hidden(self, shares: Term, mask: Term) -> Term:
        """Return shares of attention: a row without any key is 0, and not NaN."""
        return self.each("nothing_for_nan", [shares], shares.shape, shares.dtype)

    def exponents(self, term: Term, axis: int) -> Term:
        largest = self.extreme("amax", term, [axis], True)
        return self.each(
            "exp", [self.added([(term, 1), (largest, -1)], term.shape, term.dtype)], term.shape, term.dtype
        )


def _stored(number: float, dtype: str) -> float:
    """Return a number as a cast to a dtype of integers makes it: cut off, and modulo its range."""
    if dtype not in INTEGERS:
        return number
    if dtype == "bool":
        return int(number != 0)
    bits: int = int(dtype.removeprefix("u").removeprefix("int"))
    whole: int = math.trunc(number) % 2**bits
    return whole - 2**bits if not dtype.startswith("u") and 2 * whole >= 2**bits else whole


WIDE = INTEGERS | {"float32", "float64"}  # between them, casts of numbers are computed
COMPUTED: dict[str, Callable[[float], float]] = {
    "exp": math.exp,
    "log": math.log,
    "tanh": math.tanh,
    "erf": math.erf,
    "sin": math.sin,
    "cos": math.cos,
    "abs": abs,
}
SYMMETRIC = frozenset({"maximum", "minimum", "eq", "ne", "logical_and", "logical_or", "bitwise_and", "bitwise_or"})
