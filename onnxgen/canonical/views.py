"""Views: how elements are arranged. A chain of reshapes and permutations is one pattern, as in einops: the axes of the
base are split into atoms, and the atoms are joined to the axes of the result in another order.

Views move towards the inputs of the network, through everything that is computed element by element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxgen.canonical.terms import (
    NOTHING,
    Monomial,
    Shape,
    Size,
    Term,
    Terms,
    number_in,
    once,
    plain,
    product,
    quotient,
    times,
)

Group = tuple[int, ...]


@dataclass(frozen=True)
class Pattern:
    """`atoms`: for each axis of the base, the sizes of its parts (none for a size of 1). `groups`: for each axis of the
    result, the numbers of the atoms that it joins; atoms are numbered in the order of the base.
    """

    atoms: tuple[tuple[Size, ...], ...]
    groups: tuple[Group, ...]

    @property
    def sizes(self) -> list[Size]:
        return [size for axis in self.atoms for size in axis]

    @property
    def shape(self) -> Shape:
        sizes = self.sizes
        return tuple(product(sizes[i] for i in group) for group in self.groups)

    def is_identity(self) -> bool:
        count = iter(range(len(self.sizes)))
        return self.groups == tuple(tuple(next(count) for _ in axis) for axis in self.atoms)

    def inverse(self) -> Pattern:
        sizes = self.sizes
        number = {old: new for new, old in enumerate(n for group in self.groups for n in group)}
        count = iter(range(len(sizes)))
        groups = tuple(tuple(number[next(count)] for _ in axis) for axis in self.atoms)
        return Pattern(tuple(tuple(sizes[n] for n in group) for group in self.groups), groups)

    def plain(self) -> Pattern:
        """Return it with as few atoms as there can be."""
        atoms, groups = [list(axis) for axis in self.atoms], [list(group) for group in self.groups]
        number = 0
        for axis in atoms:
            at = 0
            while at < len(axis):
                group = next(g for g in groups if number in g)
                place = group.index(number)
                if at + 1 < len(axis) and place + 1 < len(group) and group[place + 1] == number + 1:
                    axis[at] = product((axis[at], axis.pop(at + 1)))
                    del group[place + 1]
                    for each in groups:
                        each[:] = [n - (n > number) for n in each]
                else:
                    at, number = at + 1, number + 1
        return Pattern(tuple(map(tuple, atoms)), tuple(map(tuple, groups)))


def parts(axis: Size) -> tuple[Size, ...]:
    return () if axis == 1 else (axis,)


def permutation(shape: Shape, axes: Sequence[int]) -> Pattern:
    numbers, at = [], 0
    for size in shape:
        numbers.append(tuple(range(at, at + len(parts(size)))))
        at += len(parts(size))
    return Pattern(tuple(map(parts, shape)), tuple(numbers[a] for a in axes))


def refined(one: Sequence[Size], other: Sequence[Size]) -> tuple[list[list[Size]], list[list[Size]]] | None:
    """Split two lists of sizes with equal products into the same parts. Returns the parts of each size of each list."""
    first: list[list[Size]] = [[] for _ in one]
    second: list[list[Size]] = [[] for _ in other]
    i, j = len(one) - 1, len(other) - 1
    left, right = (one[i] if one else 1), (other[j] if other else 1)
    while i >= 0 and j >= 0:
        if left == right:
            part: Size = left
        elif quotient(left, right) is not None:
            part = right
        elif quotient(right, left) is not None:
            part = left
        else:
            return None
        if part != 1:
            first[i].insert(0, part)
            second[j].insert(0, part)
        left, right = quotient(left, part), quotient(right, part)
        if left == 1:
            i -= 1
            left = one[i] if i >= 0 else 1
        if right == 1:
            j -= 1
            right = other[j] if j >= 0 else 1
    if any(size != 1 for size in (*one[: i + 1], *other[: j + 1])) or left != 1 or right != 1:
        return None
    return first, second


def reshaping(shape: Shape, target: Shape) -> Pattern | None:
    """Return the pattern of a reshape, or None if axes are cut across."""
    split = refined(shape, target)
    if split is None:
        return None
    atoms, joined = split
    count = iter(range(sum(map(len, atoms))))
    return Pattern(tuple(map(tuple, atoms)), tuple(tuple(next(count) for _ in axis) for axis in joined))


def composed(first: Pattern, second: Pattern) -> Pattern | None:
    """Return the pattern of two views, one after the other."""
    sizes = first.sizes
    fine: dict[int, list[Size]] = {}  # the parts of each atom of the first
    numbers: list[list[tuple[int, int]]] = []  # for each atom of the second: atom of the first, part
    for group, axis in zip(first.groups, second.atoms, strict=True):
        split = refined([sizes[i] for i in group], axis)
        if split is None:
            return None
        places = []
        for number, pieces in zip(group, split[0], strict=True):
            fine[number] = pieces
            places += [(number, k) for k in range(len(pieces))]
        at = 0
        for pieces in split[1]:
            numbers.append(places[at : at + len(pieces)])
            at += len(pieces)
    atoms, index, count = [], {}, 0
    place = 0
    for axis in first.atoms:
        new: list[Size] = []
        for _ in axis:
            for k, size in enumerate(fine[place]):
                index[place, k] = count
                count += 1
                new.append(size)
            place += 1
        atoms.append(tuple(new))
    groups = tuple(tuple(index[p] for number in group for p in numbers[number]) for group in second.groups)
    return Pattern(tuple(atoms), groups)


class Views(Terms):
    """Terms, and views of them."""

    @once
    def rearranged(self, term: Term, pattern: Pattern) -> Term:
        pattern = pattern.plain()
        if pattern.is_identity() and pattern.shape == term.shape:
            return term
        if term.op == "view" and (both := composed(term.args[1], pattern)) is not None:
            return self.rearranged(term.args[0], both)
        if term.op in ("sum", "each") and (moved := self._through(term, pattern)) is not None:
            return moved
        if term.op == "cat" and self.thorough and (moved := self._through_joined(term, pattern)) is not None:
            return moved
        if term.op == "expand" and (inner := _restricted(term.args[0], term.shape, pattern)) is not None:
            return self.expanded(self.rearranged(term.args[0], inner), pattern.shape)
        if term.op == "expand" and self.thorough and (moved := self._through_expanded(term, pattern)) is not None:
            return moved
        if term.op in ("sum", "each") and any(len(axis) > 1 for axis in pattern.atoms):
            # what is split goes through always; what is joined stays outside
            apart = Pattern(pattern.atoms, tuple((i,) for i in range(len(pattern.sizes))))
            split = self.rearranged(term, apart) if apart != pattern else term
            if apart != pattern and split.op not in ("view", "reshape"):
                joined = Pattern(tuple((size,) for size in pattern.sizes), pattern.groups)
                return self.term("view", (split, joined), pattern.shape, term.dtype)
        if term.op == "expand" and self.thorough and 1 in term.shape:
            term, pattern = self._narrow(term, pattern)
        return self.term("view", (term, pattern), pattern.shape, term.dtype)

    def _narrow(self, term: Term, pattern: Pattern) -> tuple[Term, Pattern]:
        """Return an expansion without axes of size 1, and the same view of it."""
        base, shape = term.args[0], term.shape
        missing = len(shape) - len(base.shape)
        kept = [n for n, size in enumerate(shape) if size != 1]
        inner = self.reshaped(base, tuple(base.shape[n - missing] for n in kept if n >= missing))
        narrow = self.term("expand", (self.bare(inner),), tuple(shape[n] for n in kept), term.dtype)
        return narrow, Pattern(tuple(pattern.atoms[n] for n in kept), pattern.groups)

    def reshaped(self, term: Term, shape: Shape) -> Term:
        if term.shape == shape:
            return term
        pattern = reshaping(term.shape, shape)
        if pattern is not None:
            return self.rearranged(term, pattern)
        if term.op == "reshape":
            return self.reshaped(term.args[0], shape)
        return self.term("reshape", (term,), shape, term.dtype)

    def permuted(self, term: Term, axes: Sequence[int]) -> Term:
        return self.rearranged(term, permutation(term.shape, axes))

    @once
    def bare(self, term: Term) -> Term:
        """Return an operand that broadcasting takes for `term`: without expansion and leading sizes of 1."""
        if term.op == "expand":
            return self.bare(term.args[0])
        if term.shape and (number := number_in(term)) is not None:
            return self.constant(number, (), term.dtype)
        rank = next((i for i, size in enumerate(term.shape) if size != 1), len(term.shape))
        return self.reshaped(term, term.shape[rank:]) if rank else term

    def expanded(self, term: Term, shape: Shape) -> Term:
        if term.shape == shape:
            return term
        if term.op == "sum":
            return self.sum_of(self.items_of(term), shape, term.dtype)
        base = self.bare(term)
        if self.thorough and base.op == "view" and base.args[0].op == "expand":
            return self._expanded_again(base, shape)
        return self.term("expand", (base,), shape, term.dtype)

    def _expanded_again(self, view: Term, shape: Shape) -> Term:
        """Return an expansion of a view of an expansion as a view of one expansion."""
        inner, pattern = view.args
        missing = len(shape) - len(view.shape)
        sizes = [size for n, size in enumerate(shape) if n < missing or view.shape[n - missing] != size]
        count = len(pattern.sizes)
        numbers = iter(range(count, count + len(sizes)))
        groups = tuple(
            (next(numbers),) if n < missing or view.shape[n - missing] != size else pattern.groups[n - missing]
            for n, size in enumerate(shape)
        )
        base = inner.args[0]
        wide = self.reshaped(base, (*base.shape, *[1] * len(sizes)))
        more = self.term("expand", (wide,), (*inner.shape, *sizes), view.dtype)
        return self.rearranged(more, without_ones(Pattern((*pattern.atoms, *((s,) for s in sizes)), groups)))

    def mapped(self, term: Term, operand: Any, shape: Shape) -> Term:
        """Return a term computed element by element, with `operand(part)` for each of its operands."""
        if term.op == "sum":
            made = {f: operand(f) for m in self.items_of(term) for f, _ in m}
            if self.thorough and any(new.op == "sum" and old.op != "sum" for old, new in made.items()):
                return self.made_of(term, made, shape)
            items: dict[Any, Any] = {}
            for monomial, coefficient in self.items_of(term).items():
                new: Monomial = NOTHING
                for factor, exponent in monomial:  # several factors may become one
                    new = times(new, frozenset({(operand(factor), exponent)}))
                items[new] = items.get(new, 0) + coefficient
            return self.sum_of(items, shape, term.dtype)
        name, attributes, *operands = term.args
        return self.each(name, [*map(operand, operands)], shape, term.dtype, attributes)

    def made_of(self, term: Term, factors: Mapping[Term, Term], shape: Shape) -> Term:
        raise NotImplementedError

    def each(
        self, name: str, operands: Sequence[Term], shape: Shape, dtype: str, attributes: tuple[Any, ...] = ()
    ) -> Term:
        raise NotImplementedError

    def _through(self, term: Term, pattern: Pattern) -> Term | None:
        operands = [f for m in term.args[0] for f, _ in m[0]] if term.op == "sum" else term.args[2:]
        views: dict[Term, Pattern] = {}
        for operand in operands:
            view = _restricted(operand, term.shape, pattern)
            if view is None:
                return None
            views[operand] = view
        return self.mapped(term, lambda part: self.bare(self.rearranged(part, views[part])), pattern.shape)

    def _through_expanded(self, term: Term, pattern: Pattern) -> Term | None:
        """Return a view of an expansion as one that only joins axes: what it splits and turns goes inside."""
        flat = [n for group in pattern.groups for n in group]
        if flat == [*range(len(flat))] and all(len(axis) < 2 for axis in pattern.atoms):
            return None
        inner = self.rearranged(term, Pattern(pattern.atoms, tuple((n,) for n in flat)))
        if inner.op != "expand":
            return None
        numbers = iter(range(len(flat)))
        joined = Pattern(
            tuple((pattern.sizes[n],) for n in flat),
            tuple(tuple(next(numbers) for _ in group) for group in pattern.groups),
        )
        return self.rearranged(inner, joined)

    def _through_joined(self, term: Term, pattern: Pattern) -> Term | None:
        """Return a view of a concatenation as the concatenation of views, if others are joined to its axis."""
        pieces, axis = term.args
        if len(pattern.atoms[axis]) != 1:
            return None
        number = sum(map(len, pattern.atoms[:axis]))
        made = next(n for n, group in enumerate(pattern.groups) if number in group)
        flat = [n for group in pattern.groups for n in group]
        is_turned = flat != [*range(len(flat))]
        if pattern.groups[made][0] != number or (is_turned and len(pattern.groups[made]) == 1):
            return None

        def of_piece(size: Size) -> Pattern:
            atoms = tuple((size,) if n == axis else a for n, a in enumerate(pattern.atoms))
            return without_ones(Pattern(atoms, pattern.groups))

        return self.joined([self.rearranged(p, of_piece(p.shape[axis])) for p in pieces], made)

    @once
    def turned(self, term: Term) -> tuple[Term, Pattern] | None:
        """Return a term as a view of another one, in which the operand that the order of terms puts first is no view.

        So what is computed element by element has one arrangement, wherever a permutation of it stood.
        """
        if term.op == "view":
            return term.args
        if term.op == "cat" and self.thorough and term.args[1]:  # along its first axis
            axis, rank = term.args[1], len(term.shape)
            order_ = [axis, *(n for n in range(rank) if n != axis)]
            base = self.joined([self.permuted(piece, order_) for piece in term.args[0]], 0)
            back = permutation(base.shape, [order_.index(n) for n in range(rank)])
            return (base, back) if base.op == "cat" else None
        if term.op not in ("sum", "each"):
            return None
        found = self._pivot(term)
        if found is None or found[1].is_identity():
            return None
        base = self.rearranged(term, found[1].inverse())
        return self._joined_of(term, found[1]) if base.op == "view" else (base, found[1])

    def _joined_of(self, term: Term, pattern: Pattern) -> tuple[Term, Pattern] | None:
        """Return a term with an axis for each atom of a pattern that ends in its shape, and how they are joined."""
        sizes = pattern.sizes
        atoms = tuple(tuple(sizes[i] for i in group) for group in pattern.groups)
        count = sum(map(len, atoms))
        if all(len(axis) < 2 for axis in atoms):
            return None
        base = self.rearranged(term, Pattern(atoms, tuple((i,) for i in range(count))))
        numbers = iter(range(count))
        groups = tuple(tuple(next(numbers) for _ in axis) for axis in atoms)
        joined = Pattern(tuple((size,) for axis in atoms for size in axis), groups)
        return None if base.op in ("view", "reshape") else (base, joined)

    @once
    def _pivot(self, term: Term) -> tuple[Term, Pattern] | None:
        if term.op == "view":
            return term.args
        if term.op not in ("sum", "each"):
            return term, permutation(term.shape, range(len(term.shape)))
        parts_ = [part for part in dict.fromkeys(term.parts()) if part.shape == term.shape]
        found = [pivot for part in parts_ if (pivot := self._pivot(part)) is not None]
        return min(found, key=lambda pair: (pair[0].colour, pair[0].number, str(pair[1])), default=None)

    # ---- parts -------------------------------------------------------------------------------------------------------

    @once
    def sliced(self, term: Term, axis: int, start: Size, stop: Size, step: int = 1) -> Term:
        """Return elements start to stop of an axis. `stop` is at most the size."""
        size = term.shape[axis]
        if start == 0 and stop == size and step == 1:
            return term
        count = plain(stop - start) if step == 1 else _count(start, stop, step)
        shape = (*term.shape[:axis], count, *term.shape[axis + 1 :])
        bounds = (start, stop, step)
        if all(isinstance(b, int) for b in bounds) and isinstance(size, int):
            if (moved := self._moved(term, axis, bounds, shape)) is not None:
                return moved
        elif (
            self.thorough and step == 1 and (moved := self._moved_by_sizes(term, axis, start, stop, shape)) is not None
        ):
            return moved
        if term.op == "slice" and term.args[1] == axis and term.args[4] == 1:
            offset = term.args[2]
            return self.sliced(term.args[0], axis, plain(offset + start), plain(offset + stop), step)
        return self.term("slice", (term, axis, start, stop, step), shape, term.dtype)

    def _of_operands(self, term: Term, axis: int, bounds: tuple[Size, Size, int], shape: Shape) -> Term:
        """Return a part of what is computed element by element, of parts of its operands."""
        from_right = axis - len(term.shape)

        def part(operand: Term) -> Term:
            at = from_right + len(operand.shape)
            return operand if at < 0 or operand.shape[at] == 1 else self.bare(self.sliced(operand, at, *bounds))

        return self.mapped(term, part, shape)

    def _moved(self, term: Term, axis: int, bounds: tuple[int, int, int], shape: Shape) -> Term | None:
        if term.op in ("sum", "each"):
            return self._of_operands(term, axis, bounds, shape)
        if term.op == "view":
            return self._under_view(term, axis, bounds)
        if term.op in ("contract", "amax", "amin"):
            return self.slice_of_contraction(term, axis, bounds)
        if term.op == "cat":
            return self._of_joined(term, axis, bounds)
        return None

    def _moved_by_sizes(self, term: Term, axis: int, start: Size, stop: Size, shape: Shape) -> Term | None:
        if term.op in ("sum", "each"):
            return self._of_operands(term, axis, (start, stop, 1), shape) if term.shape[axis] != 1 else None
        if term.op != "view" or len(term.args[1].groups[axis]) != 1:
            return None
        base, pattern = term.args
        numbers = iter(range(len(pattern.sizes)))
        for place, atoms in enumerate(pattern.atoms):
            if [next(numbers) for _ in atoms] == [*pattern.groups[axis]]:
                cut = self.sliced(base, place, start, stop)
                atoms_of = ((cut.shape[place],) if k == place else a for k, a in enumerate(pattern.atoms))
                return self.rearranged(cut, without_ones(Pattern(tuple(atoms_of), pattern.groups)))
        return None

    def slice_of_contraction(self, term: Term, axis: int, bounds: tuple[int, int, int]) -> Term | None:
        raise NotImplementedError

    def _under_view(self, term: Term, axis: int, bounds: tuple[int, int, int]) -> Term | None:
        base, pattern = term.args
        group, sizes = pattern.groups[axis], pattern.sizes
        start, stop, step = bounds
        inner = product(sizes[i] for i in group[1:])
        if not group or not isinstance(inner, int) or (inner > 1 and (step != 1 or start % inner or stop % inner)):
            return None
        number = group[0]
        start, stop = start // inner, stop // inner
        at = 0
        for place, atoms in enumerate(pattern.atoms):
            if atoms and number == at:
                below = product(atoms[1:])
                if not isinstance(below, int) or (below > 1 and step != 1):
                    return None
                part = self.sliced(base, place, start * below, stop * below, step)
                new = Pattern(
                    tuple(
                        (_count(start, stop, step), *a[1:]) if k == place else a for k, a in enumerate(pattern.atoms)
                    ),
                    pattern.groups,
                )
                return self.rearranged(part, without_ones(new))
            if base.op == "contract" and at < number < at + len(atoms):
                return self.slice_of_joined(term, place, number - at, (start, stop, step))
            at += len(atoms)
        return None

    def slice_of_joined(self, view: Term, axis: int, atom: int, bounds: tuple[int, int, int]) -> Term | None:
        raise NotImplementedError

    def _of_joined(self, term: Term, axis: int, bounds: tuple[int, int, int]) -> Term | None:
        pieces, along = term.args
        if along != axis:
            return self.joined([self.sliced(piece, axis, *bounds) for piece in pieces], along)
        start, stop, step = bounds
        kept, at = [], 0
        for piece in pieces:
            size = piece.shape[axis]
            if not isinstance(size, int):
                return None
            low, high = max(start - at, 0), min(stop - at, size)
            if low < high:
                if step != 1 and (low, high) != (start - at, stop - at):
                    return None
                kept.append(self.sliced(piece, axis, low, high, step))
            at += size
        return self.joined(kept, axis) if kept else None

    def joined(self, pieces: Sequence[Term], axis: int) -> Term:
        """Return the concatenation of terms."""
        flat: list[Term] = []
        for piece in pieces:
            flat += piece.args[0] if piece.op == "cat" and piece.args[1] == axis else [piece]
        if self.thorough and (grid := self._grid(flat, axis)) is not None:
            return grid
        if len(flat) == 1:
            return flat[0]
        size = plain(sum(piece.shape[axis] for piece in flat))
        shape = (*flat[0].shape[:axis], size, *flat[0].shape[axis + 1 :])
        whole = self._whole(flat, axis, size)
        return self.term("cat", (tuple(flat), axis), shape, flat[0].dtype) if whole is None else whole

    def _grid(self, pieces: Sequence[Term], axis: int) -> Term | None:
        """Return concatenations of concatenations with the first axis outside."""
        inner: int = pieces[0].args[1] if len(pieces) > 1 and pieces[0].op == "cat" else axis
        if inner >= axis or any(piece.op != "cat" or piece.args[1] != inner for piece in pieces):
            return None
        rows: list[tuple[Term, ...]] = [piece.args[0] for piece in pieces]
        if len({tuple(part.shape[inner] for part in row) for row in rows}) > 1:
            return None
        return self.joined([self.joined(column, axis) for column in zip(*rows, strict=True)], inner)

    def _whole(self, pieces: Sequence[Term], axis: int, size: Size) -> Term | None:
        """Return what the pieces are all of, in order. The largest says what it may be; then its parts are compared."""
        counts = [piece.shape[axis] for piece in pieces]
        if not all(isinstance(count, int) for count in counts):
            return None
        number = counts.index(max(counts))
        whole = self.widened(pieces[number], axis, sum(counts[:number]), size)
        if whole is None:
            return None
        at = 0
        for piece, count in zip(pieces, counts, strict=True):
            if self.sliced(whole, axis, at, at + count) is not piece:
                return None
            at += count
        return whole

    @once
    def widened(self, term: Term, axis: int, start: int, size: int) -> Term | None:
        """Return a term of which this one may be the part from `start` on, or None.

        `size`: of its axis. Whoever calls this has to compare the part.
        """
        if term.op == "slice" and term.args[1] == axis and term.args[4] == 1 and isinstance(term.args[2], int):
            base, first = term.args[0], term.args[2] - start
            fits = first >= 0 and isinstance(base.shape[axis], int) and first + size <= base.shape[axis]
            return self.sliced(base, axis, first, first + size) if fits else None
        if term.op in ("sum", "each"):
            return self._widened_operands(term, axis, start, size)
        if term.op in ("contract", "amax", "amin"):
            return self.widened_contraction(term, axis, start, size)
        return self._widened_view(term, axis, start, size) if term.op == "view" else None

    def _widened_operands(self, term: Term, axis: int, start: int, size: int) -> Term | None:
        wide: dict[Term, Term] = {}
        for part in term.parts():
            at = axis - len(term.shape) + len(part.shape)
            whole = part if at < 0 or part.shape[at] == 1 else self.widened(part, at, start, size)
            if whole is None:
                return None
            wide[part] = whole
        return self.mapped(term, wide.__getitem__, (*term.shape[:axis], size, *term.shape[axis + 1 :]))

    def widened_contraction(self, term: Term, axis: int, start: int, size: int) -> Term | None:
        raise NotImplementedError

    def _widened_view(self, term: Term, axis: int, start: int, size: int) -> Term | None:
        """Return a view whose axis is one whole axis of its base, or the first part of one, and more of it."""
        base, pattern = term.args
        at = 0
        for place, atoms in enumerate(pattern.atoms):
            if atoms and pattern.groups[axis] == (at,):
                below = product(atoms[1:])
                whole = self.widened(base, place, start * below, size * below) if isinstance(below, int) else None
                new = tuple((size, *a[1:]) if n == place else a for n, a in enumerate(pattern.atoms))
                return None if whole is None else self.rearranged(whole, Pattern(new, pattern.groups))
            at += len(atoms)
        return None


def without_ones(pattern: Pattern) -> Pattern:
    """Return the pattern without atoms of size 1."""
    sizes = pattern.sizes
    numbers = {n: i for i, n in enumerate(n for n, size in enumerate(sizes) if size != 1)}
    atoms = tuple(tuple(size for size in axis if size != 1) for axis in pattern.atoms)
    return Pattern(atoms, tuple(tuple(numbers[n] for n in group if n in numbers) for group in pattern.groups))


def _count(start: int, stop: int, step: int) -> int:
    return max(0, -(-(stop - start) // step))


def _restricted(operand: Term, shape: Shape, pattern: Pattern) -> Pattern | None:
    """Return what a view of a result of this shape does to an operand that is broadcast; None if it can't be said."""
    missing = len(shape) - len(operand.shape)
    numbers: dict[int, int] = {}
    atoms, at, new = [], 0, 0
    for axis, parts_ in enumerate(pattern.atoms):
        here = axis >= missing and operand.shape[axis - missing] == shape[axis]
        if axis >= missing:
            if not here and operand.shape[axis - missing] != 1:
                return None
            atoms.append(parts_ if here else ())
        for _ in parts_:
            if here:
                numbers[at] = new
                new += 1
            at += 1
    groups = []
    for group in pattern.groups:
        present = [n in numbers for n in group]
        if any(present) and not all(present):
            return None
        groups.append(tuple(numbers[n] for n in group if n in numbers))
    return Pattern(tuple(atoms), tuple(groups))
