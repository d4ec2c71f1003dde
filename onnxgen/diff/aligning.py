"""Which operators of two networks stand for each other.

Source: S. B. Needleman, C. D. Wunsch: A general method applicable to the search for similarities in the amino acid
sequence of two proteins (1970).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, TypeVar

GAP = 0.9  # the cost of an operator that only one has
OTHER_VALUES = 0.15  # the same operator with other weights
OTHER_NUMBERS = 0.4  # with other arguments, or weights of another shape
OTHER_FUNCTION = 0.8  # another operator of as many operands, both without weights
OTHER = 1.7  # any other pair: near the cost of one that was removed and one that was added
OTHER_PATH = 0.05  # of another module
NEAR = 1e-4  # of the largest number of a sketch: rounding
MAX_CELLS = 1_500_000  # of the table; larger networks are aligned by their longest common parts first

Operand = Any  # the number of a step, or ("input", its number)
Node = TypeVar("Node", bound=Hashable)


def by_need(roots: Iterable[Node], before: Callable[[Node], Iterable[Node]]) -> Iterator[Node]:
    """Yield the nodes that some nodes need, and these; operands (`before`) first."""
    done: set[Node] = set()
    todo = [(node, False) for node in reversed([*roots])]
    while todo:
        node, ready = todo.pop()
        if node in done:
            continue
        if ready:
            done.add(node)
            yield node
        else:
            todo.append((node, True))
            todo += [(n, False) for n in reversed([*before(node)]) if n not in done]


@dataclass
class Step:
    """An operator that is executed.

    Attributes:
        name: of the operator.
        given: its arguments, without tensors, by name.
        leaves: the parameters and buffers that it takes, each with its shape, by argument.
        digests: names for their elements.
        operands: the values that it takes.
        node: what it was read from; None for the outputs.
        path: the module that called it.
        sketch: a few numbers of its tensors, which are near for tensors that were rounded otherwise.
    """

    name: str
    given: tuple[tuple[str, str], ...]
    leaves: dict[str, tuple[str, tuple[int, ...]]]
    digests: tuple[str, ...]
    operands: list[Operand]
    node: Any
    path: str
    sketch: tuple[float, ...] = ()

    @property
    def shapes(self) -> tuple[Any, ...]:
        return tuple((name, shape) for name, (_, shape) in self.leaves.items())

    @property
    def token(self) -> Any:
        return self.name, self.given, self.shapes, len(self.operands)

    @property
    def label(self) -> str:
        return self.name.strip("_")


@dataclass
class Alignment:
    """Steps of two networks.

    Attributes:
        pairs: of those that stand for each other, by number.
        folded: of both, tensors with the norm that was folded into them.
    """

    ones: list[Step]
    others: list[Step]
    pairs: list[tuple[int | None, int | None]] = field(default_factory=list)
    folded: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})

    @property
    def cost(self) -> float:
        return sum(GAP if a is None or b is None else _cost(self.ones[a], self.others[b]) for a, b in self.pairs)


def aligned(ways: Iterable[tuple[list[Step], list[Step]]]) -> Alignment:
    """Return the cheapest alignment of two networks, each of which is given in one order or in several."""
    found: list[Alignment] = []
    for ones, others in ways:
        found.append(Alignment(ones, others, list(_pairs(ones, others, 0, 0))))
        if found[-1].cost < OTHER_NUMBERS:
            break
        found.append(with_equals(found[-1]))
    return min(found, key=lambda alignment: alignment.cost)


def with_equals(alignment: Alignment) -> Alignment:
    """Return an alignment in which steps with equal tensors stand for each other, also out of their order, and those
    that take what these make."""
    ones, others = alignment.ones, alignment.others
    partners_ = Partners(alignment)
    mine, theirs = (
        _by_key(steps, lambda s: (s.token, s.digests) if any(s.digests) else None) for steps in (ones, others)
    )
    for key, numbers in mine.items():
        if len(numbers) == len(theirs.get(key, ())) == 1:
            partners_.put(numbers[0], theirs[key][0])
    users = _by_key(others, lambda s: None if s.leaves else (s.token, tuple(s.operands)))
    for number, step in enumerate(ones):
        mapped = tuple(partners_.to.get(o) if isinstance(o, int) else o for o in step.operands)
        there = users.get((step.token, mapped), [])
        if mapped and None not in mapped and len(there) == 1 and not step.leaves:
            partners_.put(number, there[0])
    return Alignment(ones, others, _in_order(partners_.to, len(ones), len(others)), alignment.folded)


def _by_key(steps: Sequence[Step], key: Callable[[Step], Any]) -> dict[Any, list[int]]:
    """Return the numbers of steps by a key; those without one are left out."""
    found: dict[Any, list[int]] = {}
    for number, step in enumerate(steps):
        if (of := key(step)) is not None:
            found.setdefault(of, []).append(number)
    return found


class Partners:
    """Which step stands for which."""

    def __init__(self, alignment: Alignment) -> None:
        self.alignment = alignment
        self.to: dict[int, int] = {a: b for a, b in alignment.pairs if a is not None and b is not None}
        self.back = {b: a for a, b in self.to.items()}

    def put(self, a: int, b: int) -> None:
        """Let two steps stand for each other, and what stood for them, if these are alike."""
        if self.to.get(a) == b:
            return
        old_b, old_a = self.to.pop(a, None), self.back.pop(b, None)
        if old_b is not None:
            self.back.pop(old_b)
        if old_a is not None:
            self.to.pop(old_a)
        self.to[a], self.back[b] = b, a
        if old_a is not None and old_b is not None:
            ones, others = self.alignment.ones, self.alignment.others
            if ones[old_a].token == others[old_b].token:
                self.to[old_a], self.back[old_b] = old_b, old_a


def _in_order(to: Mapping[int, int], ones: int, others: int) -> list[tuple[int | None, int | None]]:
    """Return pairs, and what has no partner, in the order of the second network."""
    back = {b: a for a, b in to.items()}
    pairs: list[tuple[int | None, int | None]] = []
    alone = iter([a for a in range(ones) if a not in to])
    waiting = next(alone, None)
    for b in range(others):
        a = back.get(b)
        while waiting is not None and a is not None and waiting < a:
            pairs.append((waiting, None))
            waiting = next(alone, None)
        pairs.append((a, b))
    while waiting is not None:
        pairs.append((waiting, None))
        waiting = next(alone, None)
    return pairs


def _pairs(ones: Sequence[Step], others: Sequence[Step], i: int, j: int) -> Iterator[tuple[int | None, int | None]]:
    if len(ones) * len(others) <= MAX_CELLS:
        yield from ((a if a is None else a + i, b if b is None else b + j) for a, b in _table(ones, others))
        return
    mine, theirs = ([(s.token, s.digests) for s in side] for side in (ones, others))
    matcher = SequenceMatcher(None, mine, theirs, autojunk=False)
    for tag, a, a_, b, b_ in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(range(i + a, i + a_), range(j + b, j + b_))
        elif (a_ - a) * (b_ - b) <= MAX_CELLS:
            yield from _pairs(ones[a:a_], others[b:b_], i + a, j + b)
        else:
            yield from ((n, None) for n in range(i + a, i + a_))
            yield from ((None, n) for n in range(j + b, j + b_))


def _table(ones: Sequence[Step], others: Sequence[Step]) -> list[tuple[int | None, int | None]]:
    """Return the cheapest alignment. What both begin and end with is not in the table."""
    start, low = 0, min(len(ones), len(others))
    while start < low and _cost(ones[start], others[start]) == 0:
        start += 1
    end = 0
    while end < low - start and _cost(ones[-1 - end], others[-1 - end]) == 0:
        end += 1
    mine, theirs = ones[start : len(ones) - end], others[start : len(others) - end]
    rows = [[column * GAP for column in range(len(theirs) + 1)]]
    for number, a in enumerate(mine, 1):
        row = [number * GAP]
        before = rows[-1]
        for column, b in enumerate(theirs, 1):
            row.append(min(before[column - 1] + _cost(a, b), before[column] + GAP, row[-1] + GAP))
        rows.append(row)
    found: list[tuple[int | None, int | None]] = []
    i, j = len(mine), len(theirs)
    while i or j:
        if i and j and rows[i][j] == rows[i - 1][j - 1] + _cost(mine[i - 1], theirs[j - 1]):
            i, j = i - 1, j - 1
            found.append((start + i, start + j))
        elif i and (not j or rows[i][j] == rows[i - 1][j] + GAP):
            i -= 1
            found.append((start + i, None))
        else:
            j -= 1
            found.append((None, start + j))
    head: list[tuple[int | None, int | None]] = [(n, n) for n in range(start)]
    tail: list[tuple[int | None, int | None]] = [(len(ones) - end + n, len(others) - end + n) for n in range(end)]
    return head + found[::-1] + tail


def _cost(a: Step, b: Step) -> float:
    path = 0.0 if a.path == b.path else OTHER_PATH
    if a.name == b.name:
        if a.token == b.token:
            return path + (0 if a.digests == b.digests or are_near(a, b) else OTHER_VALUES)
        return path + OTHER_NUMBERS + (0 if a.shapes == b.shapes else OTHER_VALUES)
    if not a.leaves and not b.leaves and len(a.operands) == len(b.operands) and "output" not in (a.name, b.name):
        return path + OTHER_FUNCTION
    return path + OTHER


def are_near(a: Step, b: Step) -> bool:
    """Return True if the tensors of two steps are about the same, by their sketches."""
    largest = max(map(abs, (*a.sketch, *b.sketch)), default=0.0)
    return len(a.sketch) == len(b.sketch) and all(
        abs(x - y) <= NEAR * largest for x, y in zip(a.sketch, b.sketch, strict=True)
    )
