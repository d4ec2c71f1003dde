"""Lay one network over another: which parameters have to be equal to which values.

Both networks are walked from their outputs to their inputs at once. Where the second has a value that depends on
parameters alone, the first must have one, too: that is an equation. Where the two differ, that is noted, and the walk
goes on, so that one difference hides no others. Operands whose order says nothing are paired by the pairs that are
known, then by their colours (`colours.py`), then by their order.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from onnxgen.canonical.algebra import SYMMETRIC, Algebra
from onnxgen.canonical.colours import KINDS, Colours
from onnxgen.canonical.overlay import overlaid
from onnxgen.canonical.terms import INTEGERS, NOTHING, VIEWS, Monomial, Shape, Term, number_in, times

Pairs = list[tuple[Any, Any, Any]]  # of the first network, of the second, and the term of the second that they are in
FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
WHOLE = INTEGERS - {"bool"}
PERMUTED = 5  # operands that are paired in every order, if need be


@dataclass(eq=False)
class Equation:
    """Two values that must be the same, neither of which depends on inputs.

    Attributes:
        one, other: of the first network, and of the second.
        inside: the term of the second network that they are in.
    """

    one: Term
    other: Term
    inside: Term | None = None


@dataclass
class Laid:
    """What follows if one network lies over another.

    Attributes:
        equations: what parameters have to be.
        apart: pairs of terms that can't be the same, each with the term that they are in.
        hiding: masks that are the same only if each row of them shows something.
    """

    equations: list[Equation] = field(default_factory=list)
    apart: Pairs = field(default_factory=list)
    hiding: list[Term] = field(default_factory=list)


class Walk:
    """Walks two networks, whose terms were made by the same `Algebra`."""

    def __init__(
        self, terms: Algebra, one: Colours, other: Colours, same: Callable[[Tensor, Tensor], bool] = torch.equal
    ) -> None:
        """`same` compares values that depend on no parameter."""
        self.same = same
        self.terms, self.colours, self.laid = terms, (one, other), Laid()
        self.seen: set[tuple[Term, Term]] = set()
        self.partner: dict[Term, Term] = {}

    def walk(self, one: Iterable[Any], other: Iterable[Any]) -> Laid:
        todo: Pairs = [(a, b, None) for a, b in zip(one, other, strict=True)][::-1]
        while todo:
            todo += reversed(self._pair(*todo.pop()))
        return self.laid

    def is_still(self, term: Term) -> bool:
        return self.colours[0].is_still(term)

    def _apart(self, one: Any, other: Any, inside: Any = None) -> Pairs:
        self.laid.apart.append((one, other, other if isinstance(other, Term) and not self.is_still(other) else inside))
        return []

    def _pair(self, one: Any, other: Any, inside: Any) -> Pairs:
        """Compare two values, and return what is to be compared next."""
        if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
            return [(a, b, inside) for a, b in zip(one, other, strict=True)]
        if not isinstance(one, Term) or not isinstance(other, Term):
            is_same = one == other or {one, other} <= KINDS
            return [] if is_same else self._apart(one, other, inside)
        if (one, other) in self.seen or one is other:
            return []
        self.seen.add((one, other))
        if self.is_still(one) and self.is_still(other):
            self.laid.equations.append(Equation(one, other, inside))
            return []
        if self.is_still(one) or self.is_still(other):
            return self._apart(one, other, inside)
        if self._are_drawn_alike(one, other):
            return []
        self.partner.setdefault(self._base(other), self._base(one))
        return self._moving(*self._without_views(one, other), inside)

    def _are_drawn_alike(self, one: Term, other: Term) -> bool:
        """Return True if both depend on no parameter, and are the same for the drawn inputs."""
        if not (self.colours[0].is_free(one) and self.colours[1].is_free(other)) or "tuple" in (one.dtype, other.dtype):
            return False
        pairs = list(zip(self.colours[0].drawn(one), self.colours[1].drawn(other), strict=False))
        if not pairs or not all(self.same(a, b) for a, b in pairs):
            return False
        if any(bool(a.isinf().any()) != bool(b.isinf().any()) for a, b in pairs):
            self.laid.hiding += [one, other]
        return True

    def _base(self, term: Term) -> Term:
        while (base := self.colours[0].through(term)) is not None:
            term = base
        return term

    def _without_views(self, one: Term, other: Term) -> tuple[Term, Term]:
        """Return both without the views around the second."""
        while True:
            if other.op == "expand" or one.op == "expand":
                one, other = self.terms.bare(one), self.terms.bare(other)
            if other.op == "view" and (fitting := self._reshaped(one, other.args[1].shape)) is not None:
                one, other = self.terms.rearranged(fitting, other.args[1].inverse()), other.args[0]
            elif other.op == one.op == "reshape":
                one, other = one.args[0], other.args[0]
            elif _is_wider(other):
                other = other.args[2]
            elif _is_wider(one):
                one = one.args[2]
            else:
                break
        return one, other

    def _reshaped(self, term: Term, shape: Shape) -> Term | None:
        """Return a term with other axes of size 1."""
        if term.shape == shape:
            return term
        if [s for s in term.shape if s != 1] != [s for s in shape if s != 1]:
            return None
        return self.terms.reshaped(term, shape)

    def _moving(self, one: Term, other: Term, inside: Any) -> Pairs:
        if "sum" in (one.op, other.op):
            return self._sums(one, other)
        if other.op in ("contract", "amax", "amin"):
            return self._contractions(one, other)
        if one.op == "view" and other.op == "cat":
            return self._turned_cat(one, other)
        fitting = self._reshaped(one, other.shape)
        if fitting is None or one.op != other.op:
            return self._apart(one, other, inside)
        if other.op == "each":
            return self._each(one, other)
        if other.op == "input" and one is not other:
            return self._apart(one, other, inside)
        if len(one.args) != len(other.args):
            return self._apart(one, other, inside)
        return [(a, b, other) for a, b in zip(one.args, other.args, strict=True)]

    def _turned_cat(self, one: Term, other: Term) -> Pairs:
        """Compare a permutation of joined pieces with joined pieces."""
        base, pattern = one.args
        if base.op != "cat" or any(len(axis) > 1 for axis in (*pattern.atoms, *pattern.groups)):
            return self._apart(one, other)
        numbers = iter(range(len(pattern.sizes)))
        atoms = [next(numbers) if axis else None for axis in pattern.atoms]
        number = atoms[base.args[1]]
        if number is None or pattern.groups.index((number,)) != other.args[1]:
            return self._apart(one, other)
        if len(base.args[0]) != len(other.args[0]):
            return self._apart(one, other)
        pairs: Pairs = []
        for a, b in zip(base.args[0], other.args[0], strict=True):
            size = a.shape[base.args[1]]
            sizes = tuple((size,) if i == base.args[1] else axis for i, axis in enumerate(pattern.atoms))
            pairs.append((self.terms.rearranged(a, type(pattern)(sizes, pattern.groups)), b, other))
        return pairs

    # ---- operands without an order -----------------------------------------------------------------------------------

    def _each(self, one: Term, other: Term) -> Pairs:
        name = other.args[0]
        if one.args[:2] != other.args[:2]:
            return self._apart(one, other)
        if len(one.args) != len(other.args):
            return self._apart(one, other)
        if name not in SYMMETRIC:
            return [(a, b, other) for a, b in zip(one.args[2:], other.args[2:], strict=True)]
        pairs: Pairs = []
        for is_still in (False, True):
            mine, theirs = (
                [t for t in side if self.is_still(t) == is_still] for side in (one.args[2:], other.args[2:])
            )
            if len(mine) != len(theirs):
                return self._apart(one, other)
            pairs += [(a, b, other) for a, b in self._paired(mine, theirs)]
        return pairs

    def _paired(self, ones: Sequence[Term], others: Sequence[Term]) -> list[tuple[Term, Term]]:
        """Pair terms: those of one colour, and then what is left, in order."""
        left, pairs = sorted(ones, key=_made), []
        for level in range(5):
            rest = []
            for item in sorted(others, key=_made):
                found = next((a for a in left if self._is_like(a, item, level)), None)
                if found is None:
                    rest.append(item)
                else:
                    left.remove(found)
                    pairs.append((found, item))
            others = rest
        return pairs

    def _is_like(self, one: Term, other: Term, level: int) -> bool:
        mine, theirs = self.colours
        if _crosses(one, other):
            return level == 4
        if level == 0:
            return self.partner.get(self._base(other)) is self._base(one) and mine.inside(one) == theirs.inside(other)
        if level == 1:
            return mine.both(one) == theirs.both(other)
        if level == 2:
            return mine.inside(one) == theirs.inside(other)
        return level == 4 or _kind((one, 1)) == _kind((other, 1))

    # ---- sums --------------------------------------------------------------------------------------------------------

    def _sums(self, one: Term, other: Term) -> Pairs:
        """Compare sums: products of values that depend on inputs, each with what it is multiplied by."""
        mine, theirs = self.grouped(one), self.grouped(other)
        self._without_free(one, mine, theirs)
        zero = self.terms.constant(0, (), other.dtype)
        pairs: Pairs = [(mine.pop(NOTHING, zero), theirs.pop(NOTHING, zero), other)]
        if len(mine) != len(theirs):
            return [*pairs, *self._apart(one, other)]
        for a, b in self._products(list(mine), list(theirs)):
            factors = self._factors(a, b)
            if factors is None or (one.shape == other.shape and any(_crosses(f, g) for f, g in factors)):
                pairs += self._apart(one, other)
                continue
            scaled = self._scaled(mine[a], theirs[b], factors)
            pairs += scaled or [*((f, g, other) for f, g in factors), (mine[a], theirs[b], other)]
        return pairs

    # ---- attention whose scale is in a matrix ------------------------------------------------------------------------

    def _scaled(self, one: Term, other: Term, factors: Sequence[tuple[Term, Term]]) -> Pairs:
        """Compare attention whose scale, or the root of it, is in the weights of the file's queries or keys.

        Exporters multiply both by the root, and optimisers fold what they find behind a layer into its weights.
        """
        mine, theirs = number_in(one), number_in(other)
        if not mine or not theirs or len(factors) != 1:
            return []
        one, other = self._without_views(*factors[0])
        if other.op != "contract" or len(other.args[0]) != 2 or any(self.is_still(t) for t, _ in other.args[0]):
            return []
        size = math.prod(n for label, n in enumerate(other.args[2]) if label not in other.args[1])
        by = mine / theirs
        if not any(self.same(torch.tensor(by), torch.tensor(size**power)) for power in (0.25, 0.5)):
            return []
        marks = len(self.laid.apart)
        pairs = self._contractions(one, other)
        for number, (x, y, inside) in enumerate(pairs):
            if (times_ := self._multiplied(x, y, by, inside)) is not None:
                return [*pairs[:number], *times_, *pairs[number + 1 :]]
        del self.laid.apart[marks:]
        return []

    def _multiplied(self, one: Term, other: Term, by: float, inside: Any) -> Pairs | None:
        """Return pairs for `by` times what a layer with weights makes, where the layer takes the factor."""
        one, other = self._without_views(one, other)
        mine, theirs = self.grouped(one), self.grouped(other)
        zero = self.terms.constant(0, (), other.dtype)
        first, second = mine.pop(NOTHING, zero), theirs.pop(NOTHING, zero)
        pairs: Pairs = [(self.terms.added([(first, by)], first.shape, first.dtype), second, inside)]
        if len(mine) != 1 or len(theirs) != 1:
            return None
        (((a, x),), ((b, y),)) = mine.items(), theirs.items()
        factors = self._factors(a, b)
        if factors is None or len(factors) != 1:
            return None
        f, g = self._without_views(*factors[0])
        operands = self._contractions(f, g) if f.op == g.op == "contract" else []
        still = [number for number, (weight, _, _) in enumerate(operands) if self.is_still(weight)]
        if len(still) != 1:
            return None
        weight, unknown, where = operands[still[0]]
        operands[still[0]] = (self.terms.added([(weight, by)], weight.shape, weight.dtype), unknown, where)
        return [*pairs, (x, y, inside), *operands]

    def _without_free(self, term: Term, mine: dict[Monomial, Term], theirs: dict[Monomial, Term]) -> None:
        """Leave out what depends on no parameter, such as masks, if it is the same on both sides for drawn inputs."""
        wholes = []
        for side, groups in enumerate((mine, theirs)):
            free = [m for m, c in groups.items() if self.colours[side].has_no_leaves([c, *(f for f, _ in m)])]
            parts: list[tuple[Term, float]] = []
            for monomial in free:
                moving = self.terms.sum_of({monomial: 1}, together(f.shape for f, _ in monomial), term.dtype)
                by = groups[monomial]
                parts.append((self.terms.multiplied(moving, by, together((moving.shape, by.shape)), term.dtype), 1))
            if not any(free):
                return
            wholes.append((self.terms.added(parts, together(p.shape for p, _ in parts), term.dtype), free))
        if not self._are_drawn_alike(wholes[0][0], wholes[1][0]):
            return
        for groups, (_, free) in zip((mine, theirs), wholes, strict=True):
            for monomial in free:
                del groups[monomial]

    def _products(self, ones: list[Monomial], others: list[Monomial]) -> list[tuple[Monomial, Monomial]]:
        pairs: list[tuple[Monomial, Monomial]] = []
        ones, others = sorted(ones, key=_first), sorted(others, key=_first)
        for level in range(5):
            for b in list(others):
                found = next((a for a in ones if self._are_like(a, b, level)), None)
                if found is not None:
                    ones.remove(found)
                    others.remove(b)
                    pairs.append((found, b))
        return pairs

    def _are_like(self, one: Monomial, other: Monomial, level: int) -> bool:
        if level == 4:
            return True
        if sorted(e for _, e in one) != sorted(e for _, e in other):
            return False
        if level == 3:
            return sorted(map(_kind, one)) == sorted(map(_kind, other))
        if level == 0:
            partners = {(self.partner.get(self._base(f)), e) for f, e in other}
            return partners == {(self._base(f), e) for f, e in one}
        mine, theirs = self.colours
        if level == 1:
            return sorted((mine.both(f), e) for f, e in one) == sorted((theirs.both(f), e) for f, e in other)
        return sorted((mine.inside(f), e) for f, e in one) == sorted((theirs.inside(f), e) for f, e in other)

    def _factors(self, one: Monomial, other: Monomial) -> list[tuple[Term, Term]] | None:
        pairs: list[tuple[Term, Term]] = []
        for exponent in {e for _, e in (*one, *other)}:
            mine, theirs = ([f for f, e in side if e == exponent] for side in (one, other))
            if len(mine) != len(theirs):
                return None
            pairs += self._paired(mine, theirs)
        return pairs

    def grouped(self, term: Term) -> dict[Monomial, Term]:
        """Return a sum's products of values that depend on inputs, each with its factor that does not."""
        groups: dict[Monomial, dict[Monomial, Any]] = defaultdict(dict)
        for monomial, coefficient in self._spread(term):
            moving = frozenset((f, e) for f, e in monomial if not self.is_still(f))
            items = groups[moving]
            items[monomial - moving] = items.get(monomial - moving, 0) + coefficient
        result = {}
        for moving, items in groups.items():
            shape = together(f.shape for m in items for f, _ in m)
            result[moving] = self.terms.sum_of(items, shape, term.dtype)
        return result

    def _spread(self, term: Term) -> list[tuple[Monomial, Any]]:
        """Return the products of a sum; a sum that is multiplied by still values alone is spread out."""
        found: list[tuple[Monomial, Any]] = []
        todo = list(self.terms.items_of(term).items())
        while todo:
            monomial, coefficient = todo.pop(0)
            moving = [(f, e) for f, e in monomial if not self.is_still(f)]
            if len(moving) == 1 and moving[0][1] == 1 and moving[0][0].op == "sum":
                rest = monomial - {moving[0]}
                todo += [(times(rest, m), coefficient * c) for m, c in self.terms.items_of(moving[0][0]).items()]
            else:
                found.append((monomial, coefficient))
        return found

    # ---- contractions ------------------------------------------------------------------------------------------------

    def _contractions(self, one: Term, other: Term) -> Pairs:
        base, pattern = one.args if one.op == "view" else (one, None)
        if base.op != other.op or len(base.args[0]) != len(other.args[0]):
            return self._apart(one, other)
        if pattern is None and (one := self._reshaped(one, other.shape)) is None:  # type: ignore[assignment]
            return self._apart(base, other)
        mine, theirs = ([self.is_still(t) for t, _ in side.args[0]] for side in (base, other))
        if sum(mine) != sum(theirs):
            return self._apart(one, other)
        for order in self._orders(base, other, mine, theirs):
            pairs = overlaid(self.terms, base, pattern, other, order)
            if pairs is not None:
                return [(a, b, other) for a, b in pairs]
        return self._apart(one, other)

    def _orders(self, one: Term, other: Term, mine: list[bool], theirs: list[bool]) -> Iterable[list[tuple[int, int]]]:
        """Yield pairs of the operands' numbers: first those that are likeliest."""
        operands = [t for t, _ in one.args[0]], [t for t, _ in other.args[0]]
        moving = [i for i, still in enumerate(mine) if not still], [i for i, still in enumerate(theirs) if not still]
        still = [i for i, s in enumerate(mine) if s], [i for i, s in enumerate(theirs) if s]
        if max(map(len, (*moving, *still))) > PERMUTED:
            yield [*zip(*moving, strict=True), *zip(*still, strict=True)]
            return
        found = []
        for order in itertools.permutations(moving[0]):
            pairs = list(zip(order, moving[1], strict=True))
            both = [(operands[0][a], operands[1][b]) for a, b in pairs]
            ranks = [next(level for level in range(5) if self._is_like(x, y, level)) for x, y in both]
            found.append((max(ranks, default=0), sum(ranks), pairs))
        for _, _, pairs in sorted(found, key=lambda each: each[:2]):
            for order in itertools.permutations(still[0]):
                yield [*pairs, *zip(order, still[1], strict=True)]


def _is_wider(term: Term) -> bool:
    """Return True for a cast from floats to floats, or from integers to integers."""
    if term.op != "each" or term.args[0] != "cast":
        return False
    return any(term.dtype in kind and term.args[2].dtype in kind for kind in (FLOATS, WHOLE))


def together(shapes: Iterable[Shape]) -> Shape:
    """Return the shape that shapes are broadcast to."""
    shape: Shape = ()
    for each in shapes:
        rank = max(len(shape), len(each))
        wide = [(1,) * (rank - len(s)) + tuple(s) for s in (shape, each)]
        shape = tuple(b if a == 1 else a for a, b in zip(*wide, strict=True))
    return shape


def _crosses(one: Term, other: Term) -> bool:
    """Return True if each of two operands has an axis that the other leaves to broadcasting."""
    mine, theirs = ({n - len(t.shape) for n, size in enumerate(t.shape) if size != 1} for t in (one, other))
    return bool(mine - theirs) and bool(theirs - mine)


def _kind(factor: tuple[Term, int]) -> str:
    term, exponent = factor
    while term.op in VIEWS:
        term = term.args[0]
    return f"{term.op} {term.args[0] if term.op in ('each', 'call') else ''} {exponent}"


def _first(monomial: Monomial) -> int:
    return min((f.origin for f, _ in monomial), default=-1)


def _made(term: Term) -> int:
    return term.origin
