"""Colours of the values of a network, by what they are made of and by what is made of them.

They leave out whatever weights can make up for: parameters, constants, and what a value is multiplied by or added to.
So two networks whose norms are folded in one of them, or whose matrices are stored in another layout, have the same
colours.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from onnxgen.canonical.algebra import SYMMETRIC
from onnxgen.canonical.matching import below
from onnxgen.canonical.terms import INTEGERS, VIEWS, Term, product, terms_in
from onnxgen.canonical.values import LEAVES, Unknown, Values

STILL = "still"
ROUNDS = 3  # of looking from the outputs and from the inputs
KINDS = frozenset({None, "float16", "bfloat16", "float32", "float64", *INTEGERS})  # types, as arguments of an operator


class Colours:
    """Colours of terms."""

    def __init__(self, roots: Sequence[Any], draws: Sequence[Values] = ()) -> None:
        """`draws`: values of the inputs. What depends on no parameter is compared by what it is for these."""
        self.draws = draws
        self.free: dict[Term, bool] = {}
        self.still: dict[Term, bool] = {}
        self.made: dict[Term, str] = {}
        self.terms = below(roots)
        for term in self.terms:
            self.inside(term)
        self.shared = self._shared()
        self.refined: dict[Term, str] = {}
        for _ in range(ROUNDS):
            self.refined = self._above(roots, self._mixed())

    def is_still(self, term: Term) -> bool:
        """Return True if a term depends on no input."""
        known = self.still.get(term)
        if known is None:
            known = term.op not in ("input", "size") and all(self.is_still(part) for part in term.parts())
            self.still[term] = known
        return known

    def is_free(self, term: Term) -> bool:
        """Return True if a term depends on inputs, and on no parameter."""
        return not self.is_still(term) and self.has_no_leaves([term])

    def has_no_leaves(self, terms: Iterable[Term]) -> bool:
        """Return True if terms depend on no parameter."""
        for term in terms:
            if term not in self.free:
                self.free[term] = term.op not in LEAVES and self.has_no_leaves(term.parts())
            if not self.free[term]:
                return False
        return True

    def drawn(self, term: Term) -> list[Tensor]:
        """Return what a term is for the drawn inputs; nothing if that can't be computed."""
        try:
            return [values.of(term) for values in self.draws]
        except Unknown:
            return []

    def inside(self, term: Term) -> str:
        """Return the colour of a term by what it is made of."""
        if term not in self.made:
            self.made[term] = self._inside(term)
        return self.made[term]

    def both(self, term: Term) -> str:
        """Return the colour of a term by what it is made of, and by what is made of it."""
        while (base := self.through(term)) is not None:
            term = base
        return self.refined.get(term) or self.inside(term)

    def through(self, term: Term) -> Term | None:
        """Return the value that a term is a view of, or that it multiplies or adds something still to."""
        if self.is_still(term):
            return None
        if term.op in VIEWS or term.op == "detach" or (term.op == "each" and term.args[0] == "cast"):
            return next(iter(term.parts()))
        if term.op != "sum":
            return None
        moving = {frozenset((f, e) for f, e in monomial if not self.is_still(f)) for monomial, _ in term.args[0]}
        moving -= {frozenset()}
        if len(moving) != 1:
            return None
        (((factor, exponent), *others),) = moving
        return factor if exponent == 1 and not others else None

    def _inside(self, term: Term) -> str:
        if self.is_still(term):
            return STILL
        if term.op in VIEWS:
            return self.inside(term.args[0])
        if "float" not in term.dtype and term.dtype != "tuple" and term.op != "input" and self.is_free(term):
            if drawn := self.drawn(term):
                return digest(str([_elements(value) for value in drawn]))
        if (base := self.through(term)) is not None:
            return self.inside(base)
        if term.op == "sum":
            return self._sum(term)
        if term.op in ("contract", "amax", "amin"):
            moving = sorted(self.inside(part) for part, _ in term.args[0] if not self.is_still(part))
            return digest(f"{term.op} {moving} {product(term.shape)}")
        if term.op == "each" and term.args[0] in SYMMETRIC:
            return digest(f"{term.args[0]} {sorted(map(self.inside, term.args[2:]))}")
        size = "" if term.op == "each" and self.is_free(term) else product(term.shape)  # a mask may be broadcast
        return digest(f"{term.op} {self._text(term.args, term.op == 'call')} {size}")

    def _sum(self, term: Term) -> str:
        return digest(f"sum {sorted({str(self.product(monomial)) for monomial, _ in term.args[0]} - {'[]'})}")

    def product(self, monomial: Iterable[tuple[Term, int]]) -> list[tuple[str, int]]:
        """Return the colours of the factors of a product that depend on inputs."""
        found: dict[str, int] = defaultdict(int)
        for factor, exponent in monomial:
            if not self.is_still(factor):
                found[self.inside(factor)] += exponent
        return sorted(found.items())

    def _text(self, value: Any, sizes: bool) -> str:
        if isinstance(value, Term):
            return f"{self.inside(value)} {sizes_of(value) if sizes and self.is_still(value) else ''}"
        if isinstance(value, tuple):
            return f"({','.join(self._text(v, sizes) for v in value)})"
        return "" if value in KINDS else str(value)

    def _shared(self) -> dict[Term, list[Term]]:
        """Return, for each value, the parameters that it takes and that others take, too."""
        takes = {t: [] if self.is_still(t) else _leaves_of(t, self.is_still) for t in self.terms}
        count: dict[Term, int] = defaultdict(int)
        for leaves in takes.values():
            for leaf in leaves:
                count[leaf] += 1
        return {term: [leaf for leaf in leaves if count[leaf] > 1] for term, leaves in takes.items()}

    def _mixed(self) -> dict[Term, str]:
        """Return colours by what values are made of, and by who shares parameters, in colours of the last round."""
        users: dict[Term, list[str]] = defaultdict(list)
        for term, leaves in self.shared.items():
            for leaf in leaves:
                users[leaf].append(self.refined.get(term, self.inside(term)))
        result: dict[Term, str] = {}
        for term in self.terms:
            if self.is_still(term):
                continue
            if (base := self.through(term)) is not None:
                result[term] = result[base]
                continue
            parts = sorted(result[part] for part in term.parts() if not self.is_still(part))
            shared = sorted(str(sorted(users[leaf])) for leaf in self.shared[term])
            result[term] = digest(f"{self.refined.get(term, self.inside(term))} {parts} {shared}")
        return result

    def _above(self, roots: Sequence[Any], colours: Mapping[Term, str]) -> dict[Term, str]:
        """Return colours by what is made of values, too."""
        uses: dict[Term, list[str]] = defaultdict(list)
        for number, root in enumerate(roots):
            for term in terms_in(root):
                uses[term].append(f"output {number}")
        result: dict[Term, str] = {}
        for term in reversed(self.terms):
            if (base := self.through(term)) is not None:
                uses[base] += uses[term]
                continue
            if self.is_still(term):
                continue
            result[term] = digest(f"{colours[term]} {sorted(uses[term])}")
            ordered = term.op in ("call", "cat", "item") or (term.op == "each" and term.args[0] not in SYMMETRIC)
            for place, part in enumerate(term.parts()):
                if not self.is_still(part):
                    uses[part].append(f"{place if ordered else ''} {result[term]}")
        return result


def _leaves_of(term: Term, is_still: Callable[[Term], bool]) -> list[Term]:
    """Return the parameters that a value takes itself, in values that depend on no input."""
    return [t for t in below([p for p in term.parts() if is_still(p)]) if t.op in LEAVES]


def _elements(value: Tensor) -> list[list[int]]:
    """Return what the elements of a value are, in any order of its axes, without those along which it is the same."""
    value = value.to(torch.int64)
    for axis in reversed(range(value.dim())):
        if value.shape[axis] and bool((value == value.narrow(axis, 0, 1)).all()):
            value = value.select(axis, 0)
    sums = [value.movedim(axis, 0).flatten(1).sum(1) if value.dim() > 1 else value for axis in range(value.dim())]
    return sorted(each.sort().values.tolist() for each in (value.flatten(), *sums))


def sizes_of(term: Term) -> str:
    return str(sorted(str(size) for size in term.shape if size != 1))


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=9).hexdigest()
