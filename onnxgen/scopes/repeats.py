"""Repeated chains: runs of equal units become blocks, and so do equal stretches that are not adjacent.

Blocks also become residual blocks without the residual (`wrap_chains`): a block that changes the size does not add its
input to its result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from onnxgen.scopes.tokens import Token, Tokenizer, joined

_MAX_UNIT = 64  # tokens in a unit
_MAX_LEVELS = 4  # blocks nested in blocks
_MAX_UNITS = 64  # different units that are searched for in a whole sequence
_MAIN = "norm act pool squeeze resize attention product add mul deconv drop softmax gate".split()  # what layers do
_MIN_LAYERS = 4  # in a run of blocks; a run of plain layers needs more
_MIN_STEPS = 12  # layers, norms and activations in a run, if a unit has a single layer with a matrix

_Piece = tuple[int, int, Token]  # a token that replaces those from start to end
_Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass
class _Run:
    start: int
    period: int
    copies: int
    weight: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.copies


class Arranger:
    """Finds the blocks of sequences."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.flow = tokenizer.flow
        self.known: dict[tuple[Hashable, ...], int] = {}  # units that are blocks, and how many layers each has
        self.bodies: dict[Hashable, Body] = {}  # of residual regions, by label

    def arrange(self, tokens: list[Token], top: bool = True) -> list[Token]:
        """Return the sequence with repetitions as tokens of kind "run" and "block".

        `top`: for the whole network, in which equal regions that are not adjacent are blocks too.
        """
        if not top and sum(t.is_layer for t in tokens) < 3:
            return tokens
        tokens = wrap_chains(self._straight(self.tokenizer.opened(tokens)), self.exits, self.bodies)
        if not top:
            tokens = self._known(tokens)
        least = 2 * _MIN_LAYERS - 2 if top else _MIN_LAYERS
        ways = [self._levels(tokens, least, True), self._levels(tokens, least, False)]
        stretches = self._stretches(tokens, least)
        if len(stretches) < len(tokens):
            ways.append(self._levels(stretches, _MIN_LAYERS, True))
        tokens = min(ways, key=len)
        tokens = self._singles(tokens) if top else tokens
        self._remember(tokens)
        return tokens

    def _levels(self, tokens: list[Token], least: int, inner_first: bool) -> list[Token]:
        """Replace runs, then runs of tokens that hold runs, until there are no more.

        `least`: how many layers a run of plain layers needs. `inner_first`: find runs of a in (a a b)(a a b) first. In
        (a b a)(a b a) such a run would lie across two units, so that both ways are tried.
        """
        for _ in range(_MAX_LEVELS):
            replaced = self._runs(tokens, least, inner_first)
            if len(replaced) == len(tokens):
                replaced = self._stretches(tokens, least)
            if len(replaced) == len(tokens):
                break
            tokens, least = replaced, _MIN_LAYERS  # beside long runs, shorter ones count too
        return tokens

    def _straight(self, tokens: list[Token]) -> list[Token]:
        """Return the sequence without tokens that prepare something for all layers, such as a mask or a transposed
        memory: they are no layers, and take nothing from the token before."""
        kept: list[Token] = []
        last: set[int] = set()
        for token in tokens:
            follows = any(j in last for i in token.nodes for j in self.flow.before[i])
            if follows or not kept or token.weight or token.kind in _MAIN or token.kind.startswith("concat"):
                kept.append(token)
                last = set(token.nodes)
        return kept

    def chained(self, before: list[Token], after: list[Token], alone: bool = False) -> bool:
        """True if tokens use results of the tokens before them, and (if `alone`) no other tokens do."""
        nodes, users = ({i for t in tokens for i in t.nodes} for tokens in (before, after))
        taken = [set(self.flow.after[i]) - nodes for i in nodes]
        return any(i & users for i in taken) and not (alone and any(i - users for i in taken))

    def exits(self, tokens: list[Token]) -> int:
        """Count the results of tokens: vertices with users outside. Without users, they make an output."""
        nodes = {i for t in tokens for i in t.nodes}
        return sum(any(j not in nodes for j in self.flow.after[i]) for i in nodes) or 1

    def _block(self, parts: list[Token]) -> Token:
        inner = [p for p in parts if p.kind == "block"]
        if len(inner) == 1 and all(p.is_soft for p in parts if p is not inner[0]):  # it would only wrap another block
            parts = [q for p in parts for q in (p.parts if p is inner[0] else [p])]
        return joined("block", self.tokenizer.label(("block", *(p.label for p in parts if p.is_layer))), parts)

    # runs

    def _runs(self, tokens: list[Token], least: int, inner_first: bool) -> list[Token]:
        labels = [t.label for t in tokens]
        chosen: list[_Piece] = []
        free = np.ones(len(tokens), bool)
        units: list[tuple[Hashable, ...]] = []
        phases = (self._phase(tokens, start, end, period, least) for start, end, period in _tandem(labels))
        candidates = [run for run in phases if run is not None]
        candidates = _innermost(candidates, len(tokens)) if inner_first else candidates
        for run in sorted(candidates, key=lambda r: (-r.weight, r.period, r.start)):
            end = run.end
            if not free[run.start : end].all():
                continue
            blocks = [tokens[i : i + run.period] for i in range(run.start, end, run.period)]
            start, end = self._extend(tokens, free, blocks, run.start, end)
            free[start:end] = False
            units.append(tuple(labels[run.start : run.start + run.period]))
            parts = [self._block(b) for b in blocks]
            chosen.append((start, end, joined("run", self.tokenizer.label(("run", parts[0].label)), parts)))
        units = list(dict.fromkeys(units))[:_MAX_UNITS]
        return _replaced(tokens, [*chosen, *self._scattered(tokens, units, free)])

    def _scattered(self, tokens: list[Token], units: list[tuple[Hashable, ...]], free: _Mask) -> list[_Piece]:
        """Return the units that are not adjacent to equal ones, as blocks."""
        labels = [t.label for t in tokens]
        pieces: list[_Piece] = []
        for unit in units:
            starts = _occurrences(labels, unit, free)
            for i in starts:
                parts = tokens[i : i + len(unit)]
                if _is_torn(tokens, i, len(unit), starts):
                    continue
                if self.exits(parts) == 1 and sum(t.weight for t in parts) > 1:
                    free[i : i + len(unit)] = False
                    pieces.append((i, i + len(unit), self._block(parts)))
        return pieces

    def _known(self, tokens: list[Token]) -> list[Token]:
        """Inside a block, replace units that are blocks elsewhere, if there are other layers too."""
        layers = sum(t.is_layer for t in tokens)
        units = [unit for unit, size in self.known.items() if size < layers]
        return _replaced(tokens, self._scattered(tokens, units, np.ones(len(tokens), bool)))

    def _remember(self, tokens: list[Token]) -> None:
        for token in tokens:
            if token.kind == "block" and len(self.known) < _MAX_UNITS:
                self.known.setdefault(tuple(p.label for p in token.parts), sum(p.is_layer for p in token.parts))
            if token.kind in ("block", "run"):
                self._remember(token.parts)

    def _phase(self, tokens: list[Token], start: int, end: int, period: int, least: int) -> _Run | None:
        """Choose where the units of a repetition begin: `a b a b a` is (a b)(a b) a or a (b a)(b a).

        A unit has one result. It should not begin with the activation or norm of the layer before it.
        """
        starts = range(start, min(start + period, end - 2 * period + 1))
        ranks = ((_is_cut_off(tokens[i : i + period]), -((end - i) // period), i) for i in starts)
        for _, negative, first in sorted(ranks):
            copies, unit, last = -negative, tokens[first : first + period], first + period * (-negative - 1)
            if _is_worth(unit, copies, least) and self.exits(unit) == 1 == self.exits(tokens[last : last + period]):
                return _Run(first, period, copies, copies * sum(t.weight for t in unit))
        return None

    def _extend(
        self, tokens: list[Token], free: _Mask, blocks: list[list[Token]], start: int, end: int
    ) -> tuple[int, int]:
        """Extend a run by units that only lack a soft token, as the first or the last often does."""
        unit = blocks[0]
        if sum(t.weight for t in unit) < 2:
            return start, end
        before = self._alike(tokens[max(0, start - len(unit)) : start][::-1], unit[::-1])
        fits = before and self.exits(tokens[start - before : start]) == 1 and free[start - before : start].all()
        if fits and self.chained(tokens[start - before : start], blocks[0], True):
            blocks.insert(0, tokens[start - before : start])
            start -= before
        after = self._alike(tokens[end : end + len(unit)], unit)
        fits = after and self.exits(tokens[end : end + after]) == 1 and free[end : end + after].all()
        if fits and self.chained(blocks[-1], tokens[end : end + after], True):
            blocks.append(tokens[end : end + after])
            end += after
        return start, end

    def _alike(self, tokens: list[Token], unit: list[Token]) -> int:
        """Return how many of the tokens equal the unit but for missing soft ones; 0 if they are different."""
        at = 0
        for part in unit:
            if at < len(tokens) and tokens[at].label == part.label:
                at += 1
            elif not part.is_soft:
                return 0
        return at

    # parts that are not adjacent

    def _stretches(self, tokens: list[Token], least: int) -> list[Token]:
        """Replace equal stretches of plain layers, such as the two convolutions of each level of a U-Net."""
        labels = [t.label for t in tokens]
        units = [unit for unit, count in _plain_stretches(tokens).items() if count > 1]
        chosen: list[_Piece] = []
        free = np.ones(len(tokens), bool)
        for unit in sorted(units, key=len, reverse=True)[:_MAX_UNITS]:
            size = len(unit)
            starts = [i for i in _occurrences(labels, unit, free) if self.exits(tokens[i : i + size]) == 1]
            if not starts or len(starts) * _weight(tokens[starts[0] : starts[0] + size]) < least:
                continue
            for i in starts:
                free[i : i + size] = False
                chosen.append((i, i + size, self._block(tokens[i : i + size])))
        return _replaced(tokens, chosen)

    def _singles(self, tokens: list[Token]) -> list[Token]:
        """Replace regions that occur again, and in a network with blocks also other large ones."""
        has_blocks = any(t.kind in ("block", "run") for t in tokens)
        regions = [(i, t) for i, t in enumerate(tokens) if t.is_region and t.is_layer]
        counts = Counter(token.label for _, token in regions)
        chosen = []
        for i, token in regions:
            again = counts[token.label] > 1 and token.weight > 1
            if again or (has_blocks and token.weight > 3):
                end = i + 1
                while end < len(tokens) and tokens[end].kind in ("act", "norm") and self.exits(tokens[i:end]) == 1:
                    end += 1
                end = end if self.exits(tokens[i:end]) == 1 else i + 1
                chosen.append((i, end, self._block(tokens[i:end])))
        return _replaced(tokens, chosen)


def _weight(tokens: list[Token]) -> int:
    return sum(token.weight for token in tokens)


def _plain_stretches(tokens: list[Token]) -> Counter[tuple[Hashable, ...]]:
    """Count the stretches of plain layers with several matrices."""
    stretches: Counter[tuple[Hashable, ...]] = Counter()
    for is_plain, group in groupby(tokens, lambda token: token.is_plain):
        stretch = [*group]
        if is_plain and _weight(stretch) > 1:
            stretches[tuple(token.label for token in stretch)] += 1
    return stretches


def _tandem(labels: list[Hashable]) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, period) of all maximal repetitions, except those of a smaller period."""
    numbers: dict[Hashable, int] = {}
    row = np.array([numbers.setdefault(label, len(numbers)) for label in labels], np.int64)
    covered: dict[int, list[tuple[int, int]]] = {}
    for period in range(1, min(_MAX_UNIT, len(row) // 2) + 1):
        equal = np.concatenate([[False], row[:-period] == row[period:], [False]])
        edges = np.flatnonzero(equal[1:] != equal[:-1])
        covered[period] = []
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist()):
            end = stop + period
            if stop - start < period:
                continue
            covered[period].append((start, end))
            smaller = (d for d in range(1, period // 2 + 1) if period % d == 0)
            if not any(a <= start and end <= b for d in smaller for a, b in covered[d]):
                yield start, end, period


def _innermost(runs: list[_Run], size: int) -> list[_Run]:
    """Return the runs that do not overlap a run of a smaller period."""
    covered = np.zeros(size, bool)
    kept: list[_Run] = []
    for run in sorted(runs, key=lambda r: (r.period, r.start)):
        if not covered[run.start : run.end].any():
            kept.append(run)
        covered[run.start : run.end] = True
    return kept


def _is_cut_off(unit: list[Token]) -> int:
    """Return 2 if a unit certainly begins at the wrong token, 1 if it may, else 0.

    Wrong are the activation or norm of the layer before it, a token inside a stretch of plain layers, and the token
    after a concatenation. A pool, or the blocks of a stage without the layer before them, may be wrong.
    """
    first, last = unit[0], unit[-1]
    if last.kind == "run":
        return 0
    if first.kind == "act" or (first.kind == "norm" and last.is_layer and not last.is_region):
        return 2
    if first.is_plain and last.is_plain and not all(t.is_plain for t in unit):
        return 2
    if last.kind.startswith("concat") and not last.is_region:
        return 2
    return 1 if first.kind in ("norm", "drop", "move", "scale", "pool", "run") else 0


def _is_worth(unit: list[Token], copies: int, least: int) -> bool:
    """True if a repetition is so long that a class for its unit makes the code shorter."""
    weight = sum(t.weight for t in unit)
    if weight > 1:
        return weight * copies >= (_MIN_LAYERS if any(t.parts for t in unit) else least)
    steps = [p for t in unit for p in t.parts or [t] if p.is_layer or p.kind in ("act", "norm", "add")]
    return weight == 1 and len(steps) > 1 and len(steps) * copies >= _MIN_STEPS


def _occurrences(labels: list[Hashable], unit: tuple[Hashable, ...], free: _Mask) -> list[int]:
    """Return where a unit occurs among the free tokens, from left to right and without overlaps."""
    places: list[int] = []
    starts = [i for i, label in enumerate(labels[: len(labels) - len(unit) + 1]) if label == unit[0]]
    for i in starts:
        if places and i < places[-1] + len(unit):
            continue
        if tuple(labels[i : i + len(unit)]) == unit and free[i : i + len(unit)].all():
            places.append(i)
    return places


def _is_torn(tokens: list[Token], start: int, size: int, starts: list[int]) -> bool:
    """True if a unit at `start` would tear a stretch of plain layers apart."""
    end = start + size
    before = start > 0 and tokens[start - 1].is_plain and tokens[start].is_plain and start - size not in starts
    after = end < len(tokens) and tokens[end].is_plain and tokens[end - 1].is_plain and end not in starts
    return before or (after and not tokens[end].is_soft)


def _replaced(tokens: list[Token], chosen: list[_Piece]) -> list[Token]:
    result: list[Token] = []
    at = 0
    for start, end, token in sorted(chosen, key=lambda c: c[0]):
        result += [*tokens[at:start], token]
        at = end
    return [*result, *tokens[at:]]


_MAX_BODIES = 16  # different residual bodies that are searched for


@dataclass
class Body:
    """The part of a residual region before the addition: its layers, and the soft tokens around them."""

    label: Hashable
    layers: list[Hashable]
    leading: list[Hashable]
    trailing: list[Hashable]


def wrap_chains(tokens: list[Token], exits: Callable[[list[Token]], int], known: dict[Hashable, Body]) -> list[Token]:
    """Replace chains that equal the body of a residual region by tokens with the region's label.

    The first such chain of a network often lacks the layer that widens (MobileNet's first block). `known`: the bodies
    that were seen before, to which those of these tokens are added. They count within branches, as in a CSP block.
    """
    seen = _bodies(tokens)
    known.update(seen)
    bodies = known if any(token.kind.startswith("concat") for token in tokens) else seen
    for body in sorted(bodies.values(), key=lambda b: -len(b.layers))[:_MAX_BODIES]:
        wrapped: list[Token] = []
        rest = list(tokens)
        while rest:
            following = wrapped[-1].label if wrapped else None
            size = _match(rest, body.layers, body)
            if not size and following == body.label and len(body.layers) > 2:
                size = _match(rest, body.layers[1:], body)
            window = rest[len(rest) - size :]
            if size and exits(window) == 1:
                wrapped.append(joined("chain", body.label, window, -1))
                del rest[len(rest) - size :]
            else:
                wrapped.append(rest.pop())
        tokens = wrapped[::-1]
    return tokens


def _bodies(tokens: list[Token]) -> dict[Hashable, Body]:
    bodies: dict[Hashable, Body] = {}
    for token in tokens:
        if token.kind == "add" and token.is_region and (body := _body(token)) is not None:
            bodies.setdefault(token.label, body)
    return bodies


def _body(region: Token) -> Body | None:
    """Return the part of a residual region before the addition, if it is a stretch of plain layers."""
    parts = [p for p in region.parts[:-1] if p not in region.skip]
    labels = [p.label for p in parts]
    at = [i for i, p in enumerate(parts) if p.is_layer]
    if len(at) < 2 or not all(p.is_plain and (p.is_soft or p.is_layer) for p in parts):
        return None
    return Body(region.label, [labels[i] for i in at], labels[: at[0]], labels[at[-1] + 1 :])


def _match(tokens: list[Token], layers: list[Hashable], body: Body) -> int:
    """Return how many of the last tokens are such a chain; 0 if there is none."""
    at = len(tokens)
    for label in reversed(body.trailing):
        at -= at > 0 and tokens[at - 1].label == label
    for n, label in enumerate(reversed(layers)):
        while n and at > 0 and tokens[at - 1].is_soft:
            at -= 1
        if at == 0 or tokens[at - 1].label != label:
            return 0
        at -= 1
    for label in reversed(body.leading):
        at -= at > 0 and tokens[at - 1].label == label
    return len(tokens) - at
