"""Repeated chains: runs of equal units become blocks, and so do equal stretches that stand apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from onnxgen.blocks.chains import wrap_chains
from onnxgen.blocks.tokens import Token, Tokenizer

_LONGEST = 64  # tokens in a unit
_LEVELS = 4  # blocks of blocks
_PLAIN = ("conv", "point", "depth", "linear")  # layers that stand in a stretch
_FEW = 12  # layers, norms and activations that a run needs where a unit has a single layer with a matrix


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
    """Finds the blocks of one sequence after the other."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.flow = tokenizer.flow

    def arrange(self, tokens: list[Token], top: bool = True) -> list[Token]:
        """The sequence with what repeats as tokens of kind "run" and "block".

        `top`: equal regions that stand apart are blocks, too.
        """
        tokens = wrap_chains(self.tokenizer.opened(tokens), self.exits)
        for _ in range(_LEVELS):
            found = self._runs(tokens)
            if len(found) == len(tokens):
                found = self._stretches(tokens)
            if len(found) == len(tokens):
                break
            tokens = found
        return self._singles(tokens) if top else tokens

    def exits(self, tokens: list[Token]) -> int:
        """How many vertices have users outside of these tokens."""
        nodes = {i for t in tokens for i in t.nodes}
        return sum(any(j not in nodes for j in self.flow.after[i]) for i in nodes)

    def _block(self, parts: list[Token]) -> Token:
        layers = self.tokenizer.label(("block", *(p.label for p in parts if p.is_layer)))
        nodes = sorted(i for p in parts for i in p.nodes)
        return Token("block", layers, nodes, sum(p.weight for p in parts), parts)

    # runs

    def _runs(self, tokens: list[Token]) -> list[Token]:
        labels = [t.label for t in tokens]
        chosen: list[tuple[int, int, Token]] = []
        free = np.ones(len(tokens), bool)
        units: list[list[Hashable]] = []
        candidates = [r for start, end, p in _tandem(labels) if (r := self._phase(tokens, start, end, p)) is not None]
        for run in sorted(_innermost(candidates, len(tokens)), key=lambda r: (-r.weight, r.period, r.start)):
            end = run.end
            if not free[run.start : end].all():
                continue
            blocks = [tokens[i : i + run.period] for i in range(run.start, end, run.period)]
            start, end = self._extend(tokens, free, blocks, run.start, end)
            free[start:end] = False
            units.append(labels[run.start : run.start + run.period])
            chosen.append((start, end, self._run([self._block(b) for b in blocks])))
        for unit in units:
            for i in _occurrences(labels, unit, free):
                if self.exits(tokens[i : i + len(unit)]) == 1 and sum(t.weight for t in tokens[i : i + len(unit)]) > 1:
                    free[i : i + len(unit)] = False
                    chosen.append((i, i + len(unit), self._block(tokens[i : i + len(unit)])))
        return _replaced(tokens, chosen)

    def _run(self, blocks: list[Token]) -> Token:
        nodes = sorted(i for b in blocks for i in b.nodes)
        return Token(
            "run", self.tokenizer.label(("run", blocks[0].label)), nodes, sum(b.weight for b in blocks), blocks
        )

    def _phase(self, tokens: list[Token], start: int, end: int, period: int) -> _Run | None:
        """Where the units of a repetition begin: `a b a b a` is (a b)(a b) a or a (b a)(b a).

        A unit has one result, and begins with no activation or norm of the layer before it.
        """
        best: tuple[tuple[int, int, int], _Run] | None = None
        for first in range(start, min(start + period, end - 2 * period + 1)):
            copies = (end - first) // period
            unit = tokens[first : first + period]
            rank = (_is_cut_off(unit), -copies, first)
            if (best is not None and best[0] <= rank) or not _is_worth(unit, copies):
                continue
            if all(self.exits(tokens[i : i + period]) == 1 for i in (first, first + period * (copies - 1))):
                best = rank, _Run(first, period, copies, copies * sum(t.weight for t in unit))
        return None if best is None else best[1]

    def _extend(
        self, tokens: list[Token], free: object, blocks: list[list[Token]], start: int, end: int
    ) -> tuple[int, int]:
        """A run goes on where a unit only lacks an activation or the like, as the first or the last often does."""
        unit = blocks[0]
        before = self._alike(tokens[max(0, start - len(unit)) : start][::-1], unit[::-1])
        if before and self.exits(tokens[start - before : start]) == 1 and _is_free(free, start - before, start):
            blocks.insert(0, tokens[start - before : start])
            start -= before
        after = self._alike(tokens[end : end + len(unit)], unit)
        if after and self.exits(tokens[end : end + after]) == 1 and _is_free(free, end, end + after):
            blocks.append(tokens[end : end + after])
            end += after
        return start, end

    def _alike(self, tokens: list[Token], unit: list[Token]) -> int:
        """How many of the tokens are like the unit, but for soft ones that are missing; 0 if they are not."""
        at = 0
        for part in unit:
            if at < len(tokens) and tokens[at].label == part.label:
                at += 1
            elif not part.is_soft:
                return 0
        return at

    # parts that stand apart

    def _stretches(self, tokens: list[Token]) -> list[Token]:
        """Equal stretches of plain layers, such as the two convolutions of each level of a U-Net."""
        labels = [t.label for t in tokens]
        plain = [t.is_soft or t.kind in _PLAIN for t in tokens]
        ends = [i for i in range(len(tokens) + 1) if i == len(tokens) or not plain[i]]
        stretches: Counter[tuple[Hashable, ...]] = Counter()
        start = 0
        for end in ends:
            if sum(t.weight for t in tokens[start:end]) > 1:
                stretches[tuple(labels[start:end])] += 1
            start = end + 1
        chosen: list[tuple[int, int, Token]] = []
        free = np.ones(len(tokens), bool)
        for unit in sorted((u for u, n in stretches.items() if n > 1), key=lambda u: (-len(u), str(u))):
            found = [i for i in _occurrences(labels, list(unit), free) if self.exits(tokens[i : i + len(unit)]) == 1]
            if not found or len(found) * sum(t.weight for t in tokens[found[0] : found[0] + len(unit)]) < 6:
                continue
            for i in found:
                free[i : i + len(unit)] = False
                chosen.append((i, i + len(unit), self._block(tokens[i : i + len(unit)])))
        return _replaced(tokens, chosen)

    def _singles(self, tokens: list[Token]) -> list[Token]:
        """Regions that have their like elsewhere, and in a network of blocks the large ones that have not."""
        has_blocks = any(t.kind in ("block", "run") for t in tokens)
        counts = Counter(t.label for t in tokens if t.is_region and t.is_layer)
        chosen = []
        for i, token in enumerate(tokens):
            if token.is_region and token.is_layer:
                again = counts[token.label] > 1 and token.weight > 1
                if again or (has_blocks and token.weight > 3):
                    end = i + 1
                    while end < len(tokens) and tokens[end].kind in ("act", "norm") and self.exits(tokens[i:end]) == 1:
                        end += 1
                    end = end if self.exits(tokens[i:end]) == 1 else i + 1
                    chosen.append((i, end, self._block(tokens[i:end])))
        return _replaced(tokens, chosen)


def _tandem(labels: list[Hashable]) -> Iterator[tuple[int, int, int]]:
    """(start, end, period) of all maximal repetitions whose period is not one of a smaller repetition."""
    numbers: dict[Hashable, int] = {}
    row = np.array([numbers.setdefault(label, len(numbers)) for label in labels], np.int64)
    covered: dict[int, list[tuple[int, int]]] = {}
    for period in range(1, min(_LONGEST, len(row) // 2) + 1):
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
    """Runs without those whose unit holds a run itself, which comes first: (a a b)(a a b) is two runs of a, for now.

    But where the inner run lies across two units, as in (a b a)(a b a), only the outer one tells blocks apart.
    """
    within = np.zeros(size + 1, np.int64)  # positions that are strictly inside an inner run
    covered = np.zeros(size + 1, np.int64)
    kept: list[_Run] = []
    for run in sorted(runs, key=lambda r: (r.period, r.start)):
        cuts = within[run.start + run.period : run.end : run.period]
        if not covered[run.start : run.end].any() or cuts.any():
            kept.append(run)
        within[run.start + 1 : run.end] = 1
        covered[run.start : run.end] = 1
    return kept


def _is_cut_off(unit: list[Token]) -> int:
    """How much a unit looks as if it began at the wrong place: with the activation or norm of what comes before, with
    a pool, or with the blocks of a stage instead of what leads to them."""
    first, last = unit[0].kind, unit[-1]
    if last.kind == "run":
        return 0
    if first == "act" or (first == "norm" and last.is_layer and not last.is_region):
        return 2
    return 1 if first in ("norm", "drop", "move", "scale", "pool", "run") else 0


def _is_worth(unit: list[Token], copies: int) -> bool:
    """Whether a repetition is long enough that a class for its unit makes the code shorter."""
    weight = sum(t.weight for t in unit)
    if weight > 1:
        return weight * copies >= (4 if any(t.is_region or t.parts for t in unit) else 6)
    said = [p for t in unit for p in t.parts or [t] if p.is_layer or p.kind in ("act", "norm", "add")]
    return weight == 1 and len(said) > 1 and len(said) * copies >= _FEW


def _occurrences(
    labels: list[Hashable], unit: list[Hashable], free: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> list[int]:
    """Where a unit stands, from left to right and without overlaps, among what is free."""
    found: list[int] = []
    starts = [i for i, label in enumerate(labels[: len(labels) - len(unit) + 1]) if label == unit[0]]
    for i in starts:
        if found and i < found[-1] + len(unit):
            continue
        if labels[i : i + len(unit)] == unit and free[i : i + len(unit)].all():
            found.append(i)
    return found


def _is_free(free: object, start: int, end: int) -> bool:
    assert isinstance(free, np.ndarray)
    return bool(free[start:end].all())


def _replaced(tokens: list[Token], chosen: list[tuple[int, int, Token]]) -> list[Token]:
    made: list[Token] = []
    at = 0
    for start, end, token in sorted(chosen, key=lambda c: c[0]):
        made += [*tokens[at:start], token]
        at = end
    return [*made, *tokens[at:]]
