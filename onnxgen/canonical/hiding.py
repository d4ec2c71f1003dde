"""Masks of attention, and the queries of which they hide every key.

There, spellings of a mask differ: torch gives 0 for a mask of bool, NaN for -inf, and a mean of all values for a large
negative number. Everywhere else they are one function: what is hidden has a share of 0, since exp of such a number is
none that float64 can hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from onnxgen.canonical.algebra import Algebra
from onnxgen.canonical.binding import Laid
from onnxgen.canonical.colours import Colours
from onnxgen.canonical.matching import below
from onnxgen.canonical.terms import Monomial, Term, number_in, once
from onnxgen.canonical.values import LEAVES, Unknown, Values

ASSUMED = "every query has a key that its mask shows: where a mask hides all of them, the two differ"
HIDING = -1e4  # numbers as low as this hide what is in their place from a softmax


class Showing(Algebra):
    """Terms in which each query has a key. What a choice hides from a softmax is hidden as by a sum.

    `noted`: what is another function for a query without a key, each with the mask.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[Term, Term]] = []

    def exponents(self, term: Term, axis: int) -> Term:
        return super().exponents(self._added(term), axis)

    @once
    def _added(self, term: Term) -> Term:
        """Return a term in which hiding numbers are not chosen, but added."""
        parts = [(self._choice(m, c), m, c) for m, c in self.items_of(term).items()]
        if all(choice is None for choice, *_ in parts):
            return term
        added: list[tuple[Term, float]] = []
        for choice, monomial, coefficient in parts:
            if choice is None:
                added.append((self.sum_of({monomial: coefficient}, term.shape, term.dtype), 1))
            else:
                mask, shown = choice
                self.noted.append((term, mask))
                added += [(self._added(shown), coefficient), (mask, 1)]
        return self.added(added, term.shape, term.dtype)

    def _choice(self, monomial: Monomial, coefficient: float) -> tuple[Term, Term] | None:
        """Return the mask to add to what is shown, and what is shown, if that is what a product is."""
        if len(monomial) != 1:
            return None
        ((term, exponent),) = monomial
        if exponent != 1 or term.op != "each" or term.args[0] != "where" or coefficient <= 0:
            return None
        _, _, condition, one, other = term.args
        if any(part.op in LEAVES for part in below([condition])):
            return None
        for shown, hidden in ((one, other), (other, one)):
            number = number_in(hidden)
            if number is not None and number * coefficient <= HIDING and number_in(shown) is None:
                zero, low = (self.constant(n, (), term.dtype) for n in (0, number * coefficient))
                sides = (zero, low) if shown is one else (low, zero)
                return self.each("where", [condition, *sides], condition.shape, term.dtype), shown
        return None

    def nothing_if_hidden(self, shares: Term, mask: Term) -> Term:
        self.noted.append((shares, mask))
        return shares

    def taken(self) -> list[tuple[Term, Term]]:
        """Return what was noted since the last time."""
        noted, self.noted = self.noted, []
        return noted


class Hiding:
    """What was assumed of masks."""

    def __init__(
        self,
        terms: Algebra,
        noted: tuple[Sequence[tuple[Term, Term]], Sequence[tuple[Term, Term]]],
        colours: tuple[Colours, Colours],
        laid: Laid,
    ) -> None:
        """`noted`: of both networks. If they note the same shares, nothing is assumed of these."""
        self.terms, self.masks = terms, list(laid.hiding)
        found = [sorted(c.inside(shares) for shares, _ in side) for side, c in zip(noted, colours, strict=True)]
        if found[0] != found[1]:
            self.masks += [mask for side in noted for _, mask in side]
        known = Values(terms, {})
        self.masks = [mask for mask in dict.fromkeys(self.masks) if not _holds(known, mask)]

    def holds(self, inputs: Mapping[Term, Tensor]) -> bool:
        """Whether each mask shows each query a key, for these inputs."""
        values = Values(self.terms, inputs)
        return all(_holds(values, mask) for mask in self.masks)

    def hides(self, inputs: Sequence[Mapping[Term, Tensor]]) -> bool:
        """Whether each mask hides something, for some of these inputs. Else nothing was compared."""
        every = [Values(self.terms, each) for each in inputs]
        return all(any(not bool(_shown(values, mask).all()) for values in every) for mask in self.masks)


def _shown(values: Values, mask: Term) -> Tensor:
    value = values.of(mask)
    shown = value > HIDING if value.is_floating_point() else value.bool()
    return shown.reshape(shown.shape or (1,))


def _holds(values: Values, mask: Term) -> bool:
    try:
        return bool(_shown(values, mask).any(-1).all())
    except Unknown:
        return False
