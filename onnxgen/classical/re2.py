"""Translates RE2 patterns to Python's `re`, to match the same strings.

RE2's syntax: https://github.com/google/re2/wiki/Syntax. If only whole strings are matched, groups,
greed and the order of alternatives do not matter. In a search RE2 can be asked for the longest
match, and `re` must find that one first. What has another meaning in `re` (`$`, `\\d`, `\\s`,
`{,5}`, ignored case) is rewritten. RE2 takes linear time, while `re` tries one way after the other.

`greedy_is_longest` checks that the first match that `re` finds at a position is the longest. A
pattern becomes a program of letters and branches, in the order in which `re` tries them (greedily).
Its threads follow all texts at once. The threads of `re` end where an earlier one has matched.
Wherever any thread matches, one of `re` must match, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
        reached: dict[int, None] = {}
        seen: set[int] = set()
        waiting = list(places)[::-1]
        while waiting:
            place = waiting.pop()
            if place in seen:
                self.twice = True
                continue
            seen.add(place)
            if place >= MATCH:
                reached[place] = None
            else:
                waiting += self.branches[-2 - place][::-1]
        return tuple(reached)

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


MAX_LENGTH = 4_096  # characters of a pattern
MAX_DEPTH, MAX_REPEATS = 100, 1000  # of nested groups; of counts, which is RE2's own limit
LAST_CODE = 0x10FFFF
PERL: dict[str, Ranges] = {
    "d": [(48, 57)],
    "s": [(9, 10), (12, 13), (32, 32)],
    "w": [(48, 57), (65, 90), (95, 95), (97, 122)],
}
POSIX: dict[str, Ranges] = {
    "alnum": [(48, 57), (65, 90), (97, 122)],
    "alpha": [(65, 90), (97, 122)],
    "ascii": [(0, 127)],
    "blank": [(9, 9), (32, 32)],
    "cntrl": [(0, 31), (127, 127)],
    "digit": [(48, 57)],
    "graph": [(33, 126)],
    "lower": [(97, 122)],
    "print": [(32, 126)],
    "punct": [(33, 47), (58, 64), (91, 96), (123, 126)],
    "space": [(9, 13), (32, 32)],
    "upper": [(65, 90)],
    "word": PERL["w"],
    "xdigit": [(48, 57), (65, 70), (97, 102)],
}
COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
CONTROLS = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
FOLDED = {"k": 0x212A, "s": 0x17F}  # non-ASCII letters that equal "k" and "s" if case is ignored


class NotRe(ValueError):
    """The pattern is refused by RE2, or cannot be expressed in `re`."""


def as_python(pattern: str) -> str:
    """Return a pattern of `re`, without flags, for `fullmatch`. Raises `NotRe`."""
    return _either(_branches(pattern)).text


def as_searches(pattern: str) -> list[str]:
    """Return patterns of `re` for `search`. RE2's leftmost longest match is the longest of what they find first.

    Raises:
        NotRe: also if the first match that `re` finds at a position may not be the longest.
    """
    branches = _branches(pattern)
    whole = _either(branches)
    try:
        parts = next(
            (candidate for candidate in ([whole], branches) if all(greedy_is_longest(m.meant) for m in candidate)), None
        )
    except TooLarge as error:
        raise NotRe(str(error)) from None
    if parts is None:
        raise NotRe("the longest match may not be the first that Python's `re` finds")
    return [candidate.text for candidate in parts]


def _branches(pattern: str) -> list[_Made]:
    """Return the alternatives of a pattern. Raises `NotRe`."""
    if len(pattern) > MAX_LENGTH:
        raise NotRe(f"the pattern has {len(pattern):,} characters, at most {MAX_LENGTH:,} are read")
    reader = _Reader(pattern)
    branches = reader.alternatives(frozenset(), 0)
    if reader.rest():
        raise NotRe("a ) without its (")
    return branches


class _Made(NamedTuple):
    """A part of the pattern as text for `re`, and its meaning."""

    text: str
    meant: Pattern


ASSERTION = Pattern(asserts=True)


def _either(branches: Sequence[_Made]) -> _Made:
    return _Made("|".join(b.text for b in branches), Pattern(parts=tuple(b.meant for b in branches), either=True))


def _united(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: Ranges = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged


def _others(ranges: Ranges) -> Ranges:
    gaps, start = [], 0
    for low, high in ranges:
        if low > start:
            gaps.append((start, low - 1))
        start = high + 1
    return [*gaps, (start, LAST_CODE)] if start <= LAST_CODE else gaps


def _folded(ranges: Ranges) -> Ranges:
    """Add the other case of letters. Beyond ASCII, `re` and RE2 differ."""
    if any(high > 127 for _, high in ranges):
        raise NotRe("non-ASCII letters where case is ignored")
    more: Ranges = []
    for low, high in ranges:
        for code in range(low, high + 1):
            letter = chr(code)
            if letter.isalpha():
                more += [(ord(c), ord(c)) for c in (letter.lower(), letter.upper())]
                more += [(c, c) for c in (FOLDED.get(letter.lower(), 0),) if c]
    return _united([*ranges, *more])


def _written(code: int) -> str:
    letter = chr(code)
    if letter.isalnum() and code < 128:
        return letter
    if 32 <= code < 127:
        return "\\" + letter if letter in r"\^$.|?*+()[]{}-&~#" else letter
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def _class(ranges: Ranges) -> str:
    if not ranges:
        return "(?!)"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _written(ranges[0][0])
    others = _others(ranges)
    if not others:
        return r"[\s\S]"
    negated = ranges[-1][1] == LAST_CODE
    parts = [_written(low) + ("" if low == high else "-" * (high > low + 1) + _written(high))
             for low, high in (others if negated else ranges)]  # fmt: skip
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _one(ranges: Ranges) -> _Made:
    return _Made(_class(ranges), Pattern(ranges))


class _Reader:
    """Reads a pattern from left to right. `flags` are the letters of active flags."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def rest(self) -> str:
        return self.text[self.at :]

    def take(self, wanted: str) -> bool:
        """Skip `wanted` if it comes next, and return whether it did."""
        is_next = self.text.startswith(wanted, self.at)
        self.at += len(wanted) if is_next else 0
        return is_next

    def match(self, pattern: str) -> re.Match[str] | None:
        """Skip what comes next if it matches, and return the match."""
        match = re.compile(pattern, re.ASCII).match(self.text, self.at)
        if match is not None:
            self.at = match.end()
        return match

    def one(self) -> str:
        if self.at == len(self.text):
            raise NotRe("the pattern ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def alternatives(self, flags: frozenset[str], depth: int) -> list[_Made]:
        """Read up to the end, or up to a closing parenthesis, which is not read."""
        if depth > MAX_DEPTH:
            raise NotRe("groups are nested too deeply")
        branches: list[list[_Made]] = [[]]
        while self.rest() and not self.text.startswith(")", self.at):
            if self.take("|"):
                branches.append([])
                continue
            if self.take("\\Q"):
                quoted, _, after = self.rest().partition("\\E")
                escaped = (f"\\{c}" if ord(c) < 128 and not c.isalnum() else c for c in quoted)
                self.text, self.at = "".join(escaped) + after, 0
                continue
            changed = self.match(r"\(\?([imsU]*)(-[imsU]+)?\)")
            if changed is not None:
                flags = _flags(flags, changed)
                continue
            branches[-1].append(self.repeated(self.atom(flags, depth)))
        return [
            _Made("".join(part.text for part in parts), Pattern(parts=tuple(part.meant for part in parts)))
            for parts in branches
        ]

    def repeated(self, part: _Made) -> _Made:
        match = self.match(r"([*+?]|\{(\d+)(,(\d*))?\})\??")
        if match is None:
            return part
        if self.match(r"[*+?]|\{\d+(,\d*)?\}"):
            raise NotRe("a repetition of a repetition without parentheses")
        low, high = match[2], match[4]
        if low is not None and (max(int(low), int(high or low)) > MAX_REPEATS or int(high or low) < int(low)):
            raise NotRe(f"the repetition {match[1]}")
        atom, (least, most) = part.text, COUNTS.get(match[1][0], (0, 0))
        if low is not None:
            least, most = int(low), int(high) if high else None if match[3] else int(low)
        is_one = len(atom) == 1 or re.fullmatch(r"\\.|\[[^\[\]\\]*\]", atom, re.DOTALL)
        text = (atom if is_one and atom not in (r"\A", r"\Z") else f"(?:{atom})") + match[1]
        return _Made(text, Pattern(parts=(part.meant,), low=least, high=most))

    def atom(self, flags: frozenset[str], depth: int) -> _Made:
        for opening in (r"\(\?P?<(\w+)>", r"\(\?([imsU]*)(-[imsU]+)?:", r"\((?!\?)"):
            match = self.match(opening)
            if match is not None:
                inner = _flags(flags, match) if match[0].endswith(":") else flags
                group = _either(self.alternatives(inner, depth + 1))
                if not self.take(")"):
                    raise NotRe("a ( without its )")
                return _Made(f"(?:{group.text})", group.meant)
        if self.take("["):
            return _one(self.bracketed(flags))
        letter = self.one()
        if letter in "*+?":
            raise NotRe("a repetition of nothing")
        if letter == "(":
            raise NotRe("a kind of group that RE2 does not have")
        if letter == ".":
            return _one([(0, LAST_CODE)] if "s" in flags else _others([(10, 10)]))
        if letter in "^$":
            text = f"(?m:{letter})" if "m" in flags else r"\A" if letter == "^" else r"\Z"
            return _Made(text, ASSERTION)
        return self.escaped(flags) if letter == "\\" else self.letter(ord(letter), flags)

    def letter(self, code: int, flags: frozenset[str]) -> _Made:
        return _one(_folded([(code, code)]) if "i" in flags else [(code, code)])

    def escaped(self, flags: frozenset[str]) -> _Made:
        """Read what follows a backslash outside of brackets."""
        if self.take("A"):
            return _Made(r"\A", ASSERTION)
        if self.take("z"):
            return _Made(r"\Z", ASSERTION)
        match = self.match("[bB]")
        if match is not None:
            text = r"(?a:\b)" if match[0] == "b" else r"(?!(?a:\b))"  # Python 3.13's \B does not match an empty string
            return _Made(text, ASSERTION)
        ranges = self.perl()
        if ranges is None:
            return self.letter(self.code(), flags)
        return _one(_case(ranges, flags))

    def perl(self) -> Ranges | None:
        match = self.match("[dswDSW]")
        if match is None:
            return None
        ranges = PERL[match[0].lower()]
        return ranges if match[0].islower() else _others(ranges)

    def code(self) -> int:
        """Read the code point after a backslash."""
        match = self.match(r"x\{([0-9A-Fa-f]+)\}|x([0-9A-Fa-f]{2})")
        if match is not None:
            code = int(match[1] or match[2], 16)
            if code > LAST_CODE:
                raise NotRe("a code point outside Unicode")
            return code
        match = self.match(r"0[0-7]{0,2}|[1-7][0-7]{1,2}")
        if match is not None:
            return int(match[0], 8)
        letter = self.one()
        if letter in CONTROLS:
            return CONTROLS[letter]
        if ord(letter) >= 128 or letter.isalnum():
            raise NotRe(f"\\{letter}")
        return ord(letter)

    def bracketed(self, flags: frozenset[str]) -> Ranges:
        """Read a class, after its opening bracket. A "]" that comes first is a letter."""
        negated = self.take("^")
        ranges = [*self.element()]
        while not self.take("]"):
            ranges += self.element()
        cased = _case(_united(ranges), flags)
        return _others(cased) if negated else cased

    def element(self) -> Ranges:
        """Read one letter, range or named class between brackets."""
        named = self.match(r"\[:(\^?)(\w+):\]")
        if named is not None:
            if named[2] not in POSIX:
                raise NotRe(f"the class {named[2]}")
            return _others(POSIX[named[2]]) if named[1] else POSIX[named[2]]
        low = self.member()
        if isinstance(low, list):
            return low
        if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
            self.at += 1
            high = self.member()
            if isinstance(high, list) or high < low:
                raise NotRe("a range whose end comes before its start")
            return [(low, high)]
        return [(low, low)]

    def member(self) -> int | Ranges:
        if not self.take("\\"):
            return ord(self.one())
        ranges = self.perl()
        return self.code() if ranges is None else ranges


def _case(ranges: Ranges, flags: frozenset[str]) -> Ranges:
    return _folded(ranges) if "i" in flags else ranges


def _flags(flags: frozenset[str], match: re.Match[str]) -> frozenset[str]:
    return (flags | {*match[1]}) - {*(match[2] or "")}
