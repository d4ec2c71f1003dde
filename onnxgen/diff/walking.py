"""Bind the leaves of one network to what another one has in their places, for a comparison.

Both are walked from their outputs to their inputs at once. Where the second has a parameter, or a part or a view of
one, it is bound to what the first has there: any value that depends on parameters alone. Where the two differ, the walk
goes on, so that one difference hides no others. What is bound is a proposal: the forms with these values decide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnxgen.canonical.algebra import Algebra
from onnxgen.canonical.terms import Monomial, Term, number_in
from onnxgen.canonical.views import Pattern, permutation

LEAVES = ("parameter", "frozen")
Pairs = list[tuple[Any, Any]]


@dataclass
class Piece:
    """A part of a leaf: the elements start to stop of an axis (None: all of it), and what they are."""

    axis: int | None
    start: int
    stop: int
    value: Term


@dataclass
class Binding:
    """What each leaf of the second network is, by the leaf; and pairs of terms that can't be the same."""

    pieces: dict[Term, list[Piece]] = field(default_factory=lambda: defaultdict(list))
    apart: Pairs = field(default_factory=list)


class Walk:
    """Walks two networks, whose terms were made by the same `Algebra`."""

    def __init__(self, terms: Algebra) -> None:
        self.terms, self.binding = terms, Binding()
        self.seen: set[tuple[Term, Term]] = set()
        self.still: dict[Term, bool] = {}

    def walk(self, one: Iterable[Any], other: Iterable[Any]) -> Binding:
        todo: Pairs = list(zip(one, other))
        while todo:
            todo += reversed(self._pair(*todo.pop()))
        return self.binding

    def is_still(self, term: Term) -> bool:
        """Return True if a term depends on no input."""
        known = self.still.get(term)
        if known is None:
            known = term.op not in ("input", "size") and all(self.is_still(part) for part in term.parts())
            self.still[term] = known
        return known

    def _pair(self, one: Any, other: Any) -> Pairs:
        """Compare two values, and return what is to be compared next."""
        if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
            return list(zip(one, other))
        if not isinstance(one, Term) or not isinstance(other, Term):
            if one != other:
                self.binding.apart.append((one, other))
            return []
        if one is other or (one, other) in self.seen:
            return []
        self.seen.add((one, other))
        if self.is_still(other):
            return self._bound(one, other)
        if "view" in (one.op, other.op) and one.op != other.op and "sum" not in (one.op, other.op):
            a, b = (t.args[0] if t.op == "view" and is_permutation(t) else t for t in (one, other))
            if (a, b) != (one, other):
                return [(a, b)]
        if other.op in ("sum", "view") and one.op != other.op:
            return self._sums(one, other) if "sum" in (one.op, other.op) else self._apart(one, other)
        if one.op != other.op:
            return self._apart(one, other)
        if one.op == "sum":
            return self._sums(one, other)
        if one.op in ("contract", "amax", "amin"):
            return self._contractions(one, other)
        if one.op == "each":
            return self._each(one, other)
        return list(zip(one.args, other.args)) if len(one.args) == len(other.args) else self._apart(one, other)

    def _apart(self, one: Any, other: Any) -> Pairs:
        self.binding.apart.append((one, other))
        return []

    # ---- leaves ------------------------------------------------------------------------------------------------------

    def _bound(self, one: Term, other: Term) -> Pairs:
        if not self.is_still(one):
            return self._apart(one, other)
        value, term, region = one, other, None
        while term.op not in LEAVES:
            if term.op == "view":
                pattern: Pattern = term.args[1]
                if value.shape != pattern.shape:
                    if sorted(map(str, value.shape)) != sorted(map(str, pattern.shape)):
                        return self._apart(one, other)
                    value = self.terms.reshaped(value, pattern.shape)
                value, term = self.terms.rearranged(value, pattern.inverse()), term.args[0]
            elif term.op == "slice" and term.args[4] == 1 and region is None:
                region = term.args[1:4]
                term = term.args[0]
            elif term.op == one.op and value is one and region is None:
                return self._still_sums(one, other) if one.op == "sum" else self._alike(one, other)
            else:
                return self._apart(one, other)
        wanted = term.shape
        if region is not None:
            wanted = tuple(region[2] - region[1] if i == region[0] else size for i, size in enumerate(term.shape))
        if value.shape != wanted:
            if [s for s in value.shape if s != 1] != [s for s in wanted if s != 1]:
                return self._apart(one, other)
            value = self.terms.reshaped(value, wanted)
        axis, start, stop = region or (None, 0, 0)
        pieces = self.binding.pieces[term]
        piece = Piece(axis, start, stop, value)
        if any((p.axis, p.start, p.stop) == (axis, start, stop) and p.value is not value for p in pieces):
            return self._apart(one, other)
        if piece not in pieces:
            pieces.append(piece)
        return []

    def _still_sums(self, one: Term, other: Term) -> Pairs:
        """Pair the products of sums of parameters: by what they are products of, and then by their order."""
        pairs: Pairs = []
        mine, theirs = (list(self.terms.items_of(term).items()) for term in (one, other))
        products = _paired(mine, theirs, lambda p: (p[1], *sorted((f.colour, e) for f, e in p[0])))
        if len(products) < max(len(mine), len(theirs)):
            return self._apart(one, other)
        for (a, _), (b, _) in products:
            pairs += [(f[0], g[0]) for f, g in _paired(list(a), list(b), lambda pair: (pair[0].colour, pair[1]))]
        return pairs

    def _alike(self, one: Term, other: Term) -> Pairs:
        return list(zip(one.args, other.args)) if len(one.args) == len(other.args) else self._apart(one, other)

    # ---- operations --------------------------------------------------------------------------------------------------

    def _each(self, one: Term, other: Term) -> Pairs:
        if one.args[:2] != other.args[:2] or len(one.args) != len(other.args):
            return self._apart(one, other)
        if one.args[0] in ("where", "power", "cast", "lt", "le"):
            return list(zip(one.args[2:], other.args[2:]))
        return self._by_colour(one.args[2:], other.args[2:], (one, other))

    def _by_colour(self, ones: Sequence[Term], others: Sequence[Term], both: tuple[Term, Term]) -> Pairs:
        """Pair operands whose order says nothing: still ones with still ones, by colour, and then by their order."""
        pairs: Pairs = []
        for is_still in (False, True):
            mine, theirs = ([t for t in side if self.is_still(t) == is_still] for side in (ones, others))
            if len(mine) != len(theirs):
                return self._apart(*both)
            pairs += _paired(mine, theirs, lambda t: t.colour)
        return pairs

    def _sums(self, one: Term, other: Term) -> Pairs:
        """Compare sums: products of values that depend on inputs, each with what it is multiplied by."""
        mine, theirs = self._grouped(one), self._grouped(other)
        pairs: Pairs = []
        keys = _paired(list(mine), list(theirs), lambda m: tuple(sorted((f.colour, e) for f, e in m)))
        if len(keys) < max(len(mine), len(theirs)):
            self._apart(one, other)
        for a, b in keys:
            factors = _paired(list(a), list(b), lambda pair: (pair[0].colour, pair[1]))
            if len(factors) < max(len(a), len(b)):
                self._apart(one, other)
            pairs += [(f[0], g[0]) for f, g in factors]
            pairs.append((mine[a], theirs[b]))
        return [(a, b) for a, b in pairs if not self._are_numbers(a, b)]

    def _are_numbers(self, one: Term, other: Term) -> bool:
        """Return True if both are numbers; other numbers are noted."""
        a, b = number_in(one), number_in(other)
        if a is None or b is None:
            return False
        if a != b:
            self.binding.apart.append((one, other))
        return True

    def _grouped(self, term: Term) -> dict[Monomial, Term]:
        """Return a sum's products of values that depend on inputs, each with its factor that does not."""
        groups: dict[Monomial, dict[Monomial, Any]] = defaultdict(dict)
        for monomial, coefficient in self.terms.items_of(term).items():
            moving = frozenset((f, e) for f, e in monomial if not self.is_still(f))
            groups[moving][monomial - moving] = coefficient
        result = {}
        for moving, items in groups.items():
            shapes = [f.shape for m in items for f, _ in m]
            shape: tuple[Any, ...] = ()
            for each in shapes:
                rank = max(len(shape), len(each))
                wide = [(1,) * (rank - len(s)) + s for s in (shape, each)]
                shape = tuple(b if a == 1 else a for a, b in zip(*wide, strict=True))
            result[moving] = self.terms.sum_of(items, shape, term.dtype)
        return result

    def _contractions(self, one: Term, other: Term) -> Pairs:
        """Compare contractions: operands by colour, then the axes of parameters by the labels of the others."""
        (mine, out, sizes), (theirs, out_, sizes_) = one.args, other.args
        if len(mine) != len(theirs):
            return self._apart(one, other)
        moving = [[o for o in side if not self.is_still(o[0])] for side in (mine, theirs)]
        still = [[o for o in side if self.is_still(o[0])] for side in (mine, theirs)]
        if len(moving[0]) != len(moving[1]):
            return self._apart(one, other)
        pairs: Pairs = []
        labels: dict[int, int] = {}
        for (a, axes), (b, axes_) in _paired(moving[0], moving[1], lambda o: o[0].colour):
            pairs.append((a, b))
            if (axes_of := order_of_axes(a, b)) is not None:
                for k, at in enumerate(axes_of):
                    labels.update(zip(axes_[k], axes[at]))
        taken = {*labels.values()}
        for mine_, theirs_ in [*zip(out, out_), *((n, m) for m in range(len(sizes_)) for n in range(len(sizes)))]:
            if theirs_ not in labels and mine_ not in taken and sizes[mine_] == sizes_[theirs_]:
                labels[theirs_] = mine_
                taken.add(mine_)
        for (a, axes), (b, axes_) in list(zip(*still)):
            wanted = [tuple(labels.get(n, -1) for n in group) for group in axes_]
            if sorted(wanted) == sorted(axes) and len(set(axes)) == len(axes):
                order = [axes.index(group) for group in wanted]
                a = self.terms.rearranged(a, permutation(a.shape, order))
            pairs.append((a, b))
        return pairs


def is_permutation(view: Term) -> bool:
    """Return True if a view only has the axes in another order."""
    pattern: Pattern = view.args[1]
    return all(len(atoms) == 1 for atoms in pattern.atoms) and all(len(group) == 1 for group in pattern.groups)


def order_of_axes(one: Term, other: Term) -> list[int] | None:
    """Return the axis of a term for each axis of another: the same ones, or else those of the same sizes."""
    if one.shape == other.shape:
        return list(range(len(one.shape)))
    sizes, wanted = list(map(str, one.shape)), list(map(str, other.shape))
    if sorted(sizes) != sorted(wanted) or len({*sizes}) < len(sizes):
        return None
    return [sizes.index(size) for size in wanted]


def _first(monomial: Monomial) -> int:
    return min((f.origin for f, _ in monomial), default=-1)


def _paired(ones: Sequence[Any], others: Sequence[Any], colour: Any) -> Pairs:
    """Return pairs: the same item with itself, then those of equal colours, and of what is left if it is as many.

    They are in the order in which terms were made.
    """
    both = {*ones} & {*others}
    pairs, left = [(item, item) for item in ones if item in both], []
    groups: dict[Any, list[Any]] = defaultdict(list)
    for item in sorted((o for o in others if o not in both), key=_made):
        groups[colour(item)].append(item)
    for item in sorted((o for o in ones if o not in both), key=_made):
        if groups[colour(item)]:
            pairs.append((item, groups[colour(item)].pop(0)))
        else:
            left.append(item)
    rest = sorted((item for group in groups.values() for item in group), key=_made)
    return pairs + (list(zip(left, rest)) if len(left) == len(rest) else [])


def _made(item: Any) -> int:
    if isinstance(item, Term):
        return item.origin
    if isinstance(item, frozenset):
        return _first(item)
    return _made(item[0])


def assembled(terms: Algebra, leaf: Term, pieces: Sequence[Piece]) -> Term | None:
    """Return what a leaf is, from its pieces, or None if they are not all of it."""
    whole = [p for p in pieces if p.axis is None]
    if whole:
        return whole[0].value
    axes = {p.axis for p in pieces}
    if len(axes) != 1:
        return None
    (axis,) = axes
    assert axis is not None
    at, parts = 0, []
    for piece in sorted(pieces, key=lambda p: p.start):
        if piece.start != at:
            return None
        parts.append(piece.value)
        at = piece.stop
    return terms.joined(parts, axis) if at == leaf.shape[axis] else None
