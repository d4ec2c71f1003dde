"""Checks that the first match that Python's `re` finds at a position is the longest, which RE2 can be asked for.

A pattern becomes a program of letters and branches, in the order in which `re` tries them (greedily). Its threads
follow all texts at once. The threads of `re` end where an earlier one has matched. Wherever any thread matches, one of
`re` must match, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Ranges = list[tuple[int, int]]  # code points, sorted and disjoint

MATCH = -1
MAX_PARTS, MAX_STEPS = 5_000, 500_000  # of a program, and of following it
Threads = tuple[int, ...]  # numbers of letters, or `MATCH`; what `re` tries first comes first


class TooLarge(ValueError):
    """It would take too long to follow the pattern."""


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


class _Program:
    """Letters and branches by number.

    Attributes:
        start: where it begins; `after`: what follows each letter.
        asserts: a part tests the surrounding text.
        loops: a part that can match the empty text is repeated.
        twice: a place was reached in two ways at once.
    """

    def __init__(self, pattern: Pattern) -> None:
        self.letters: list[Ranges] = []
        self.after: list[int] = []
        self.branches: list[list[int]] = []
        self.asserts = self.loops = self.twice = False
        self.parts = 0
        self.start = self.of(pattern, MATCH)

    def branch(self, *ways: int) -> int:
        """Add a branch, of which one way is taken; branches are numbered from -2 down."""
        self.branches.append(list(ways))
        return -1 - len(self.branches)

    def of(self, pattern: Pattern, then: int) -> int:
        """Add a pattern that is followed by `then`, and return where it begins."""
        entry = then
        if pattern.high != 1:
            self.loops |= _may_be_empty(pattern)
        if pattern.high is None:
            entry = self.branch()
            self.branches[-2 - entry] += [self.once(pattern, entry), then]
        for _ in range(0 if pattern.high is None else pattern.high - pattern.low):
            entry = self.branch(self.once(pattern, entry), then)
        for _ in range(pattern.low):
            entry = self.once(pattern, entry)
        return entry

    def once(self, pattern: Pattern, then: int) -> int:
        self.parts += 1
        if self.parts > MAX_PARTS:
            raise TooLarge("the pattern is too large")
        if pattern.ranges is not None:
            self.letters.append(pattern.ranges)
            self.after.append(then)
            return len(self.letters) - 1
        self.asserts |= pattern.asserts
        if pattern.either:
            return self.branch(*(self.of(part, then) for part in pattern.parts))
        for part in reversed(pattern.parts):
            then = self.of(part, then)
        return then

    def threads(self, places: Iterable[int]) -> Threads:
        """Return the letters, and the match, that are reached from some places."""
        found: dict[int, None] = {}
        seen: set[int] = set()
        waiting = list(places)[::-1]
        while waiting:
            place = waiting.pop()
            if place in seen:
                self.twice = True
                continue
            seen.add(place)
            if place >= MATCH:
                found[place] = None
            else:
                waiting += self.branches[-2 - place][::-1]
        return tuple(found)

    def behind(self, threads: Threads, kind: frozenset[int]) -> Threads:
        """Return what is reached after a letter of a kind."""
        return self.threads(self.after[t] for t in threads if t in kind)


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
        raise TooLarge("the pattern is too large")
    return kinds


def _may_be_empty(pattern: Pattern) -> bool:
    """Return True if a repeated pattern can match the empty text."""
    if pattern.ranges is not None:
        return False
    empty = [part.low == 0 or _may_be_empty(part) for part in pattern.parts]
    return any(empty) if pattern.either else all(empty)


def greedy_is_longest(pattern: Pattern) -> bool:
    """Return True if `re` finds the longest match first, at any position of any text. False if that takes too long.

    With assertions, threads can end early. Then no thread may follow a match, and none may be left out because an
    earlier thread is at the same place.
    """
    program = _Program(pattern)
    if program.loops:
        return False
    kinds, steps = letter_kinds(program.letters), 0
    waiting = [(program.threads([program.start]),) * 2]
    known = set(waiting)
    while waiting:
        tried, every = waiting.pop()
        if MATCH in every and (MATCH not in tried or program.asserts and every[-1] != MATCH):
            return False
        tried = tried[: tried.index(MATCH)] if MATCH in tried else tried
        for kind in kinds:
            state = program.behind(tried, kind), program.behind(every, kind)
            steps += len(tried) + len(every)
            if steps > MAX_STEPS:
                return False
            if state not in known:
                known.add(state)
                waiting.append(state)
    return not (program.asserts and program.twice)
