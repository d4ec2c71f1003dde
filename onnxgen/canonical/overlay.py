"""Lay one contraction over another: the labels of one become those of the other."""

from __future__ import annotations

from collections.abc import Sequence

from onnxgen.canonical.algebra import Algebra
from onnxgen.canonical.terms import Size, Term
from onnxgen.canonical.views import Pattern, refined


class Side:
    """A contraction whose labels may be split: of the result, and of each operand, in the order of its elements."""

    def __init__(self, term: Term, pattern: Pattern | None) -> None:
        operands, out, sizes = term.args
        self.splits = 0
        self.sizes: dict[int, Size] = dict(enumerate(sizes))
        self.operands = [[n for group in axes for n in group] for _, axes in operands]
        self.out = list(out)
        if pattern is not None:
            self._arrange(pattern)

    def _arrange(self, pattern: Pattern) -> None:
        """Put the labels of the result in the order of a view of it."""
        atoms = [sizes for sizes in pattern.atoms if sizes]
        for label, sizes in zip(list(self.out), atoms, strict=True):
            self.split(label, sizes)
        self.out = [self.out[n] for group in pattern.groups for n in group]

    def split(self, label: int, sizes: Sequence[Size]) -> list[int]:
        """Replace a label by several."""
        if len(sizes) < 2:
            return [label]
        self.splits += 1
        new = list(range(max(self.sizes) + 1, max(self.sizes) + 1 + len(sizes)))
        self.sizes.update(zip(new, sizes, strict=True))
        for labels in (self.out, *self.operands):
            labels[:] = [n for old in labels for n in (new if old == label else [old])]
        return new


def overlaid(
    terms: Algebra, one: Term, pattern: Pattern | None, other: Term, order: Sequence[tuple[int, int]]
) -> list[tuple[Term, Term]] | None:
    """Return pairs of operands that must be the same, if a view of a contraction is another contraction.

    Args:
        pattern: of the view, if there is one.
        order: which operand of the one stands for which of the other.

    Returns:
        the pairs, with the axes of the first as the second has them; or None if the labels don't fit.
    """
    found = [_overlaid(terms, one, pattern, other, each) for each in (order[::-1], order)]
    fitting = [each for each in found if each is not None]
    return min(fitting, key=lambda each: each[0])[1] if fitting else None


def _overlaid(
    terms: Algebra, one: Term, pattern: Pattern | None, other: Term, order: Sequence[tuple[int, int]]
) -> tuple[int, list[tuple[Term, Term]]] | None:
    """Do so by aligning labels in the order of the operands. Returns how many labels were split, too."""
    mine, theirs = Side(one, pattern), Side(other, None)
    known: dict[int, int] = {}  # labels of the other: those of the one
    if not _aligned(mine, mine.out, theirs, theirs.out, known):
        return None
    for a, b in order:
        if not _aligned(mine, mine.operands[a], theirs, theirs.operands[b], known):
            return None
    pairs = []
    for a, b in order:
        labels, wanted = mine.operands[a], [known[n] for n in theirs.operands[b]]
        if sorted(labels) != sorted(wanted) or len(set(labels)) < len(labels):
            return None
        term, goal = one.args[0][a][0], other.args[0][b][0]
        sizes = tuple(mine.sizes[n] for n in labels)
        apart = terms.reshaped(term, sizes)
        turned = terms.permuted(apart, [labels.index(n) for n in wanted])
        pairs.append((terms.reshaped(turned, goal.shape), goal))
    return mine.splits + theirs.splits, pairs


def _sorted_like(sizes: list[Size], labels: list[int], wanted: list[Size]) -> list[int]:
    """Return labels in the order of the sizes that are wanted, if these are the sizes; else as they were."""
    rest = list(zip(sizes, labels, strict=True))
    found = []
    for size in wanted:
        label = next((pair for pair in rest if pair[0] == size), None)
        if label is None:
            return labels
        rest.remove(label)
        found.append(label[1])
    return labels if rest else found


def _aligned(mine: Side, one: list[int], theirs: Side, other: list[int], known: dict[int, int]) -> bool:
    """Give each label of `other` its label of `one`: those that are known, and then the others in order."""
    ours = set(known.values())
    for _ in range(8):
        left = [n for n in one if n not in ours]
        right = [n for n in other if n not in known]
        if {known[n] for n in other if n in known} != {n for n in one if n in ours}:
            return False
        left = _sorted_like([mine.sizes[n] for n in left], left, [theirs.sizes[n] for n in right])
        split = refined([mine.sizes[n] for n in left], [theirs.sizes[n] for n in right])
        if split is None:
            return False
        parts = [(mine, label, sizes) for label, sizes in zip(left, split[0], strict=True) if len(sizes) > 1]
        parts += [(theirs, label, sizes) for label, sizes in zip(right, split[1], strict=True) if len(sizes) > 1]
        if not parts:
            known.update(zip(right, left, strict=True))
            return len(left) == len(right)
        for side, label, sizes in parts:
            side.split(label, sizes)
    return False
