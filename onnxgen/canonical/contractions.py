"""Contractions: sums of products over axes, as `torch.einsum` writes them. Matrix products, linear layers and sums are
contractions of operands whose axes are labelled; views of operands become labels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnxgen.canonical.terms import NOTHING, Monomial, Shape, Size, Sum, Term, product, times
from onnxgen.canonical.views import Pattern, Views, refined, without_ones

Labels = list[tuple[int, ...]]  # of each axis: the labels that it joins, none for a size of 1
Operand = tuple[Term, Labels]


class Work:
    """The operands of one contraction, while views and products are taken apart.

    Attributes:
        sizes: of all labels.
        out: the labels of the result's axes.
        summed: the labels that are summed over.
        operands: what is multiplied.
        turned: the operands that views were taken off.
        number, scalars: what the result is multiplied by.
    """

    def __init__(self, operands: Sequence[tuple[Term, Sequence[int]]], out: Sequence[int], sizes: Mapping[int, Size]):
        self.sizes = dict(sizes)
        self.out: Labels = [self._of(i) for i in out]
        self.operands: list[Operand] = [(t, [self._of(i) for i in axes]) for t, axes in operands]
        self.summed = {n for _, axes in self.operands for labels in axes for n in labels} - {
            *itertools.chain(*self.out)
        }
        self.turned: set[Term] = set()  # each arrangement is tried once
        self.number: float = 1
        self.scalars: Monomial = NOTHING

    def _of(self, label: int) -> tuple[int, ...]:
        return () if self.sizes[label] == 1 else (label,)

    def new(self, size: Size) -> int:
        label = max(self.sizes) + 1
        self.sizes[label] = size
        return label

    def split(self, label: int, pieces: Sequence[Size]) -> None:
        """Replace a label by several."""
        new = tuple(self.new(size) for size in pieces)
        if label in self.summed:
            self.summed = (self.summed - {label}) | {*new}
        for axes in (self.out, *(axes for _, axes in self.operands)):
            axes[:] = [replaced(labels, (label,), new) for labels in axes]

    def under_view(self, number: int, base: Term, pattern: Pattern) -> bool:
        """Replace an operand that is a view by its base, labelled. Returns False if labels and axes are cut across."""
        axes = self.operands[number][1]
        sizes = pattern.sizes
        for group, labels in zip(pattern.groups, list(axes), strict=True):
            split = refined([sizes[i] for i in group], [self.sizes[n] for n in labels])
            if split is None:
                return False
            for label, pieces in zip(labels, split[1], strict=True):
                if len(pieces) > 1:
                    self.split(label, pieces)
        of_atom: list[list[int]] = [[] for _ in sizes]
        for group, labels in zip(pattern.groups, self.operands[number][1], strict=True):
            split = refined([sizes[i] for i in group], [self.sizes[n] for n in labels])
            assert split is not None
            rest = iter(labels)
            for atom, pieces in zip(group, split[0], strict=True):
                of_atom[atom] = [next(rest) for _ in pieces]
        atoms = iter(of_atom)
        self.operands[number] = (base, [tuple(n for _ in axis for n in next(atoms)) for axis in pattern.atoms])
        return True

    def flattened(self, number: int) -> None:
        """Replace an operand that is a contraction itself by its operands."""
        term, axes = self.operands.pop(number)
        operands, out, sizes = term.args
        outer = dict(zip(out, axes, strict=True))
        for label in {*range(len(sizes))} - {*out}:
            outer[label] = (self.new(sizes[label]),)
            self.summed |= {*outer[label]}
        made = [(o, [tuple(n for i in labels for n in outer[i]) for labels in each]) for o, each in operands]
        self.operands[number:number] = made

    def factored(self, number: int, monomial: Monomial, rest: Sequence[Term]) -> None:
        """Replace an operand by the factors of a product, and terms of the operand's shape."""
        term, axes = self.operands.pop(number)
        for factor, exponent in monomial:
            if factor.op == "size":
                self.scalars = times(self.scalars, frozenset({(factor, exponent)}))
            else:
                copies = [(factor, _aligned(factor.shape, term.shape, axes)) for _ in range(exponent)]
                self.operands[number:number] = copies
        self.operands[number:number] = [(t, list(axes)) for t in rest]


class Contractions(Views):
    """Terms with contractions."""

    def multiplied(self, one: Term, other: Term, shape: Shape, dtype: str) -> Term:
        raise NotImplementedError

    def primitive(self, term: Term) -> tuple[tuple[Monomial, float], Term]:
        raise NotImplementedError

    def contracted(
        self,
        operands: Sequence[tuple[Term, Sequence[int]]],
        out: Sequence[int],
        sizes: Mapping[int, Size],
        dtype: str,
        name: str = "contract",
    ) -> Term:
        """Return the sum, over all labels that are not in `out`, of the products of the operands.

        Args:
            operands: each with a label for each of its axes; an axis of size 1 may have the label of another size.
            out: the labels of the result's axes.
            sizes: of the labels.
            dtype: of the result.
            name: another one (amax) reduces its one operand in that way.
        """
        shape = tuple(sizes[i] for i in out)
        work = Work(operands, out, sizes)
        for term, axes in work.operands:  # broadcast axes
            axes[:] = [() if size == 1 else labels for size, labels in zip(term.shape, axes, strict=True)]
        while any(self._step(work, i, name) for i in range(len(work.operands))) or (
            self.thorough and name == "contract" and any(self._reduced(work, i) for i in range(len(work.operands)))
        ):
            pass
        work.operands = [self._without_ones(*operand) for operand in work.operands]
        scale: Sum = {work.scalars: work.number}
        used = {n for _, axes in work.operands for labels in axes for n in labels}
        result = self.sum_of(scale, (), dtype)
        for label in sorted(work.summed - used) if name == "contract" else ():  # nothing depends on it any more
            monomial, number = self.size(work.sizes[label])
            result = self.multiplied(result, self.sum_of({monomial: number}, (), dtype), (), dtype)
        inside = [o for o in work.operands if work.summed & {*itertools.chain(*o[1])}]
        factors = [self._placed(t, a, work) for t, a in work.operands if not work.summed & {*itertools.chain(*a)}]
        if inside:
            factors.append(self._made(work, inside, dtype, name))
        for factor in factors:
            result = self.multiplied(result, factor, _broadcast(result.shape, factor.shape), dtype)
        return self.expanded(result, shape)

    def _without_ones(self, term: Term, axes: Labels) -> Operand:
        """Return a computed operand without its axes of size 1: they have no labels."""
        kept = [n for n, size in enumerate(term.shape) if size != 1]
        if term.op not in ("sum", "each") or len(kept) == len(term.shape):
            return term, axes
        flat = self.reshaped(term, tuple(term.shape[n] for n in kept))
        return (flat, [axes[n] for n in kept]) if flat.op in ("sum", "each") else (term, axes)

    def _step(self, work: Work, number: int, name: str) -> bool:
        """Take one operand apart. Returns False if there is nothing to do."""
        term, axes = work.operands[number]
        if term.op == "expand":
            work.operands[number] = (term.args[0], _aligned(term.args[0].shape, term.shape, axes))
            return True
        turned = self.turned(term)
        if turned is not None and turned[0] not in work.turned and work.under_view(number, *turned):
            work.turned.add(term)  # two arrangements may each be a view of the other: one turn is enough
            return True
        if term.op == "contract" and name == "contract" and self.thorough and _is_inlined(term, work):
            work.flattened(number)
            return True
        if term.op != "sum" or name != "contract":
            return False
        if len(term.args[0]) < 2:
            ((monomial, coefficient),) = term.args[0] or ((NOTHING, 0),)
            work.number *= coefficient
            work.factored(number, monomial, [])
            return True
        (common, coefficient), rest = self.primitive(term)
        if not common and coefficient == 1:
            return False
        work.number *= coefficient
        work.factored(number, common, [rest])
        return True

    def _reduced(self, work: Work, number: int) -> bool:
        """Sum an operand over the labels that no other one has. Returns False if there are none."""
        term, axes = work.operands[number]
        mine = [*itertools.chain(*axes)]
        others = {n for i, (_, a) in enumerate(work.operands) if i != number for labels in a for n in labels}
        own = [n for n in mine if n in work.summed and n not in others]
        if len(work.operands) < 2 or not own or len({*mine}) < len(mine):
            return False
        flat = self.reshaped(term, tuple(work.sizes[n] for n in mine))
        whole = self.total(flat, [i for i, n in enumerate(mine) if n in own], False)
        work.operands[number] = (whole, [(n,) for n in mine if n not in own])
        work.summed -= {*own}
        return True

    def total(self, term: Term, axes: Sequence[int], keep: bool) -> Term:
        raise NotImplementedError

    def _placed(self, term: Term, axes: Labels, work: Work) -> Term:
        """Return a term whose axes have labels with its axes where the result has them."""
        labels = [*itertools.chain(*axes)]
        if len({*labels}) < len(labels):  # a diagonal
            return self._made(work, [(term, axes)], term.dtype)
        number = {label: i for i, label in enumerate(labels)}
        atoms = tuple(tuple(work.sizes[n] for n in each) for each in axes)
        if all(len([n for n in group if n in number]) in (0, len(group)) for group in work.out):
            groups = tuple(tuple(number[n] for n in group if n in number) for group in work.out)
            return self.bare(self.rearranged(term, Pattern(atoms, groups)))
        spread = [*itertools.chain(*work.out)]
        apart = Pattern(atoms, tuple((number[n],) if n in number else () for n in spread))
        wide = self.expanded(self.rearranged(term, apart), tuple(work.sizes[n] for n in spread))
        return self.reshaped(wide, tuple(product(work.sizes[n] for n in group) for group in work.out))

    def _made(self, work: Work, inside: list[Operand], dtype: str, name: str = "contract") -> Term:
        """Return the contraction itself, its axes where the result has them."""
        inside, parts = _joined(work, inside)
        ranked: list[Any] = []
        for arrangement in _arrangements(inside):
            names: dict[int, int] = {}
            for label in itertools.chain(*(labels for _, axes in arrangement for labels in axes)):
                names.setdefault(label, len(names))
            key = tuple((t, tuple(tuple(names[n] for n in labels) for labels in axes)) for t, axes in arrangement)
            ranked.append((tuple(labels for _, labels in key), len(ranked), key, names))
        _, _, key, names = min(ranked)
        kept = [n for n in names if not work.summed & {*parts.get(n, (n,))}]
        shape = tuple(work.sizes[n] for n in kept)
        sizes = tuple(work.sizes[n] for n in names)
        term = self.term(name, (key, tuple(names[n] for n in kept), sizes), shape, dtype)
        return self._placed(term, [parts.get(n, (n,)) for n in kept], work)

    def slice_of_contraction(self, term: Term, axis: int, bounds: tuple[int, int, int]) -> Term | None:
        """Return a part of a result as the contraction of parts of the operands."""
        operands, out, sizes = term.args
        label, (start, stop, step) = out[axis], bounds
        new = dict(enumerate(sizes))
        new[label] = max(0, -(-(stop - start) // step))
        flat = []
        for operand, axes in operands:
            for at, labels in enumerate(axes):
                if label not in labels:
                    continue
                inner = product(sizes[n] for n in labels[1:])
                if labels[0] != label or not isinstance(inner, int) or (len(labels) > 1 and step != 1):
                    return None
                operand = self.sliced(operand, at, start * inner, stop * inner, step)
            labels = [n for n in itertools.chain(*axes) if new[n] != 1]  # several labels become several axes
            flat.append((self.reshaped(operand, tuple(new[n] for n in labels)), labels))
        return self.contracted(flat, out, new, term.dtype, term.op)

    def widened_contraction(self, term: Term, axis: int, start: int, size: int) -> Term | None:
        """Return a contraction with more of one axis, of operands that have more of it."""
        operands, out, sizes = term.args
        label, new = out[axis], dict(enumerate(sizes))
        new[label] = size
        flat = []
        for operand, axes in operands:
            for at, labels in enumerate(axes):
                if label in labels:
                    inner = product(sizes[n] for n in labels[1:])
                    if labels[0] != label or not isinstance(inner, int):
                        return None
                    whole = self.widened(operand, at, start * inner, size * inner)
                    if whole is None:
                        return None
                    operand = whole
            labels = [*itertools.chain(*axes)]  # several labels become several axes
            flat.append((self.reshaped(operand, tuple(new[n] for n in labels)), labels))
        return self.contracted(flat, out, new, term.dtype, term.op)

    def slice_of_joined(self, view: Term, axis: int, atom: int, bounds: tuple[int, int, int]) -> Term | None:
        """Return a view of a contraction of which a part of one atom of an axis is taken."""
        (operands, out, sizes), pattern = view.args[0].args, view.args[1]
        label, atoms, (start, stop, step) = out[axis], pattern.atoms[axis], bounds
        count = max(0, -(-(stop - start) // step))
        pieces = tuple(range(len(sizes), len(sizes) + len(atoms)))
        new = {**dict(enumerate(sizes)), **dict(zip(pieces, atoms, strict=True))}
        flat = []
        for operand, axes in operands:
            labels = [*itertools.chain(*(replaced(tuple(each), (label,), pieces) for each in axes))]
            if len({*labels}) < len(labels):
                return None
            operand = self.reshaped(operand, tuple(new[n] for n in labels))
            if pieces[atom] in labels:
                operand = self.sliced(operand, labels.index(pieces[atom]), *bounds)
            labels = [n for n in labels if n != pieces[atom] or count != 1]
            flat.append((self.reshaped(operand, tuple(count if n == pieces[atom] else new[n] for n in labels)), labels))
        new[pieces[atom]] = count
        made = self.contracted(flat, replaced(tuple(out), (label,), pieces), new, view.dtype)
        apart = [
            axis_ for n, each in enumerate(pattern.atoms) for axis_ in ([(a,) for a in each] if n == axis else [each])
        ]
        apart[axis + atom] = (new[pieces[atom]],)
        return self.rearranged(made, without_ones(Pattern(tuple(apart), pattern.groups)))


def _is_inlined(term: Term, work: Work) -> bool:
    """Whether a contraction inside another one is taken apart. A sum of one operand is not: it comes first."""
    return len(term.args[0]) > 1 or len(work.operands) == 1


def replaced(labels: tuple[int, ...], old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    """Return labels with all of one stretch replaced by another."""
    for i in range(len(labels) - len(old) + 1):
        if labels[i : i + len(old)] == old:
            return (*labels[:i], *new, *replaced(labels[i + len(old) :], old, new))
    return labels


def _aligned(shape: Shape, whole: Shape, axes: Labels) -> Labels:
    """Return the labels of an operand's axes that is broadcast to a whole; those of size 1 have none."""
    missing = len(whole) - len(shape)
    return [axes[missing + i] if size == whole[missing + i] else () for i, size in enumerate(shape)]


def _broadcast(one: Shape, other: Shape) -> Shape:
    rank = max(len(one), len(other))
    one, other = (1,) * (rank - len(one)) + one, (1,) * (rank - len(other)) + other
    return tuple(b if a == 1 else a for a, b in zip(one, other, strict=True))


def _joined(work: Work, inside: list[Operand]) -> tuple[list[Operand], dict[int, tuple[int, ...]]]:
    """Join labels that stand behind each other wherever one of them stands. Returns what the new labels are made of."""
    made: dict[int, tuple[int, ...]] = {}
    summed = set(work.summed)
    while True:
        follow: dict[int, set[int | None]] = {}
        before: dict[int, set[int | None]] = {}
        for labels in itertools.chain(*(axes for _, axes in inside)):
            for one, other in zip((None, *labels), (*labels, None), strict=True):
                if one is not None:
                    follow.setdefault(one, set()).add(other)
                if other is not None:
                    before.setdefault(other, set()).add(one)
        for one, others in follow.items():
            (other, *more) = others
            if other is not None and not more and before[other] == {one} and (one in summed) == (other in summed):
                break
        else:
            return inside, made
        new = work.new(product((work.sizes[one], work.sizes[other])))
        made[new] = (*made.get(one, (one,)), *made.get(other, (other,)))
        summed |= {new} if one in summed else set()
        inside = [(t, [replaced(labels, (one, other), (new,)) for labels in axes]) for t, axes in inside]


def _arrangements(inside: list[Operand]) -> Iterator[list[Operand]]:
    """Yield the operands by the order of their terms; equal terms in every order, if there are few."""
    inside = sorted(inside, key=lambda pair: (pair[0].colour, pair[0].number))
    groups = [list(group) for _, group in itertools.groupby(inside, key=lambda pair: pair[0].number)]
    if sum(len(g) for g in groups if len(g) > 1) > 4:
        yield inside
        return
    for choice in itertools.product(*(itertools.permutations(group) for group in groups)):
        yield [pair for group in choice for pair in group]
