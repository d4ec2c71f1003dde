"""Counts the ways in which a regular expression can match: Python's `re` tries them one by one, RE2 all at once.

The positions of a pattern's letters are the states of an automaton (Glushkov's), with the number of ways from one to
the next. `check_linear` follows all texts at once. If no text has more than a few ways at any of its letters, `re`
takes time linear in the text. Assertions are assumed to hold, so the count is an upper bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

Ranges = list[tuple[int, int]]  # code points, sorted and disjoint
Ways = dict[int, int]  # by position

MAX_WAYS = 512  # of a text at one of its letters
MAX_POSITIONS, MAX_EDGES, MAX_STEPS = 5_000, 100_000, 500_000  # of an automaton, and of following it
TOO_LARGE = "the pattern is too large"


class TooManyWays(ValueError):
    """`re` could need more than linear time, or it would take too long to find out."""


@dataclass(frozen=True)
class Pattern:
    """A pattern: a letter (`ranges`), or all `parts` one after the other, or `either` of them.

    It is repeated `low` to `high` times (None: without limit). `asserts`: it tests the surrounding text.
    """

    ranges: Ranges | None = None
    parts: tuple[Pattern, ...] = ()
    either: bool = False
    low: int = 1
    high: int | None = 1
    asserts: bool = False


@dataclass
class _Part:
    """A part of the automaton: its first and last positions, and in how many ways it matches the empty text."""

    first: Ways = field(default_factory=dict)
    last: Ways = field(default_factory=dict)
    empty: int = 1


class _Automaton:
    def __init__(self) -> None:
        self.letters: list[Ranges] = []
        self.follow: list[Counter[int]] = []
        self.edges = self.parts = 0

    def of(self, pattern: Pattern) -> _Part:
        if pattern.low == pattern.high == 1:
            return self._once(pattern)
        made = _Part()
        if pattern.high is None:
            made = self._once(pattern)
            self._connect(made.last, made.first)
            made = _Part(made.first, made.last, made.empty + 1)
        for _ in range(0 if pattern.high is None else pattern.high - pattern.low):  # x{0,2} is (x(x)?)?
            made = self._after(self._once(pattern), made)
            made.empty += 1
        for _ in range(pattern.low):
            made = self._after(self._once(pattern), made)
        return made

    def _once(self, pattern: Pattern) -> _Part:
        self.parts += 1
        if self.parts > MAX_EDGES:  # a repeated part without letters
            raise TooManyWays(TOO_LARGE)
        if pattern.ranges is not None:
            self.letters.append(pattern.ranges)
            self.follow.append(Counter())
            if len(self.letters) > MAX_POSITIONS:
                raise TooManyWays(TOO_LARGE)
            position = {len(self.letters) - 1: 1}
            return _Part(position, position, 0)
        made = _Part(empty=0 if pattern.either else 1)
        for part in map(self.of, pattern.parts):
            if pattern.either:
                made = _Part(_sum(made.first, part.first), _sum(made.last, part.last), made.empty + part.empty)
            else:
                made = self._after(made, part)
        return made

    def _after(self, one: _Part, other: _Part) -> _Part:
        self._connect(one.last, other.first)
        first = _sum(one.first, other.first, one.empty)
        return _Part(first, _sum(other.last, one.last, other.empty), min(one.empty * other.empty, MAX_WAYS + 1))

    def _connect(self, last: Ways, first: Ways) -> None:
        self.edges += len(last) * len(first)
        if self.edges > MAX_EDGES:
            raise TooManyWays(TOO_LARGE)
        for position, ways in last.items():
            for other, more in first.items():
                self.follow[position][other] += ways * more


def _sum(one: Ways, other: Ways, times: int = 1) -> Ways:
    """Return the ways of `one` plus `times` the ways of `other`."""
    found = dict(one)
    for position, ways in other.items() if times else ():
        found[position] = min(found.get(position, 0) + times * ways, MAX_WAYS + 1)
    return found


def check_linear(pattern: Pattern) -> None:
    """Raise `TooManyWays` unless `re` matches a whole text against a pattern in linear time."""
    automaton = _Automaton()
    start = automaton.of(pattern)
    kinds = letter_kinds(automaton.letters)
    waiting, seen, steps = [start.first], {frozenset(start.first.items())}, 0
    while waiting:
        reached = waiting.pop()
        for kind in kinds:
            found = {position: ways for position, ways in reached.items() if position in kind}
            if sum(found.values()) + start.empty > MAX_WAYS:
                raise TooManyWays(
                    "a text may match the pattern in very many ways, which Python's `re` tries one by one"
                )
            after: Counter[int] = Counter()
            for position, ways in found.items():
                steps += len(automaton.follow[position])
                for other, more in automaton.follow[position].items():
                    after[other] += ways * more
            steps += len(reached)
            if steps > MAX_STEPS:
                raise TooManyWays(TOO_LARGE)
            key = frozenset(after.items())
            if after and key not in seen:
                seen.add(key)
                waiting.append(dict(after))


def letter_kinds(letters: Sequence[Ranges]) -> set[frozenset[int]]:
    """Return the sets of positions that a single letter can match."""
    where: dict[int, list[tuple[int, bool]]] = {}
    for position, ranges in enumerate(letters):
        for low, high in ranges:
            where.setdefault(low, []).append((position, True))
            where.setdefault(high + 1, []).append((position, False))
    kinds: set[frozenset[int]] = set()
    inside: set[int] = set()
    for code in sorted(where):
        for position, begins in sorted(where[code], key=lambda event: event[1]):  # ends first: ranges are disjoint
            (inside.add if begins else inside.discard)(position)
        kinds.add(frozenset(inside))
    if sum(map(len, kinds)) > MAX_STEPS:
        raise TooManyWays(TOO_LARGE)
    return kinds
