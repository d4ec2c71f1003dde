"""Numbers for inputs of onnxruntime's operators that are indices, counts or lengths: its kernels read out of bounds for
others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxgen.shapes.ranges import Array, Draw, Sizes


def rows(table: int) -> Draw:
    """Make a rule for row indices of a table. An offset leaves enough rows for those counted from it."""

    def rule(shapes: Sequence[Sizes | None], drawn: Array, rng: np.random.Generator) -> Array | None:
        x, rows = shapes[0], (shapes[table] or (1,))[0]
        length = x[1 if len(x) == 3 else 2] if x is not None and len(x) > 2 and drawn.shape == (1,) else 1
        return rng.integers(0, max(1, rows - length + 1), drawn.shape)

    return rule


def lengths(past: int, own_keys: bool = False) -> Draw:
    """Make a rule for the number of visible keys, their start, or the starts of unpadded rows.

    Args:
        past: the input with earlier keys.
        own_keys: the keys are computed of the first input.
    """

    def rule(shapes: Sequence[Sizes | None], drawn: Array, rng: np.random.Generator) -> Array | None:
        query, before = shapes[0], shapes[past] if past < len(shapes) else None
        if drawn.ndim != 1 or query is None:
            return drawn
        keys = query[1] if own_keys or shapes[1] is None else shapes[1][2 if len(shapes[1]) == 4 else 1]
        keys, batch = keys + (before[-2] if before is not None else 0), query[0]
        ends = rng.integers(1, keys + 1, batch)
        places = np.arange(batch + 1) * keys
        forms = {batch: [ends], 2 * batch: [ends, rng.integers(0, ends)], 3 * batch + 2: [ends, places, places]}
        return np.concatenate(forms[len(drawn)]) if len(drawn) in forms else drawn

    return rule


def used(mask: int, past: int) -> Draw:
    """Make a rule for the used part of a cache: it leaves room for new keys, or matches a mask's length."""

    def rule(shapes: Sequence[Sizes | None], drawn: Array, rng: np.random.Generator) -> Array | None:
        key, cache, seen = shapes[1], shapes[past], shapes[mask]
        if key is None or cache is None:
            return drawn
        most = max(0, cache[2] - key[-2])
        length = seen[-1] - key[-2] if seen is not None and len(seen) > 1 else int(rng.integers(0, most + 1))
        return np.full(drawn.shape, min(most, max(0, length)))

    return rule


def starts(shapes: Sequence[Sizes | None], drawn: Array, rng: np.random.Generator) -> Array | None:
    """Return the starts of consecutive sequences, and the end of the last. None is empty."""
    tokens, count = (shapes[0] or (0,))[0], len(drawn) - 1
    if not 1 <= count <= tokens:
        return None  # fewer tokens than sequences
    return np.array([0, *sorted(rng.choice(np.arange(1, tokens), count - 1, replace=False)), tokens])


def words(table: int) -> Draw:
    """Make a rule for letters of words, which may end early: rows of a table except the first, which means no
    letter.
    """

    def rule(shapes: Sequence[Sizes | None], drawn: Array, rng: np.random.Generator) -> Array | None:
        rows = (shapes[table] or (1,))[0]
        if rows < 2 or 0 in drawn.shape:
            return None  # no letters
        lengths = rng.integers(1, drawn.shape[-1] + 1, (*drawn.shape[:-1], 1))
        return np.where(np.arange(drawn.shape[-1]) < lengths, rng.integers(1, rows, drawn.shape), 0)

    return rule


def up_to(index: int, axis: int) -> Draw:
    """Make a rule for lengths of sequences, up to an input's size along an axis. None is empty."""

    def rule(shapes: Sequence[Sizes | None], drawn: Array, rng: np.random.Generator) -> Array | None:
        longest = (shapes[index] or (0,) * 3)[axis]
        return rng.integers(1, max(1, longest) + 1, drawn.shape)

    return rule


def below(low: int, high: int) -> Draw:
    return lambda shapes, drawn, rng: rng.integers(low, high, drawn.shape)
