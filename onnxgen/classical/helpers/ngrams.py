"""Counts of n-grams of words or numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def ranks_of(x: Tensor | np.ndarray, known: Tensor | Sequence[str]) -> Tensor:
    """Return each element's index in `known`, int64 of x's shape; -1 if it is missing.

    Args:
        x: integers or strings.
        known: distinct values; integers are sorted.
    """
    if isinstance(x, np.ndarray):
        places = {word: i for i, word in enumerate(known)}
        return torch.tensor([places.get(word, -1) for word in x.reshape(-1).tolist()]).long().reshape(x.shape)
    assert isinstance(known, Tensor)
    return found_at(x.long(), known)


def found_at(x: Tensor, table: Tensor) -> Tensor:
    """Return the index of each element of x in a sorted table; -1 if it is not in."""
    if len(table) == 0:
        return torch.full_like(x, -1)
    place = torch.searchsorted(table, x.contiguous()).clamp(max=len(table) - 1)
    return torch.where(table[place] == x, place, -1)


def count_ngrams(
    x: Tensor, vocabulary: int, prefixes: Sequence[Tensor], columns: Sequence[Tensor], size: int, skips: int = 0
) -> Tensor:
    """Count how often each n-gram occurs in each row (ONNX TfIdfVectorizer).

    The n-grams are a tree: each is a prefix, which is an n-gram of one word less, and a
    word.

    Args:
        x: int64 [..., words], the rank of each word; -1 for one that is in no n-gram.
        vocabulary: the number of ranks.
        prefixes: for each length the n-grams and beginnings of n-grams, sorted: the
            position of the prefix times `vocabulary` plus the rank of the last word.
        columns: for each length the column of each, -1 for what is only a beginning.
        size: the number of columns.
        skips: the maximum number of words between two words of an n-gram, which has
            equal gaps.

    Returns:
        float32 [..., size].
    """
    counts = x.new_zeros(*x.shape[:-1], size + 1, dtype=torch.float32)  # the last column is for what does not count
    for gap in range(1, skips + 2):
        run = torch.where(x >= 0, x, -1)
        for n, (table, column) in enumerate(zip(prefixes, columns)):
            if n:
                run, word = run[..., :-gap], x[..., n * gap :]
                run = torch.where((run >= 0) & (word >= 0), run * vocabulary + word, -1)
            run = found_at(run, table)
            if n == 0 and gap > 1:
                continue  # a single word has nothing between
            place = torch.where(run >= 0, column[run], size) if len(column) else torch.full_like(run, size)
            place = torch.where(place >= 0, place, size)
            counts = counts.scatter_add(-1, place, torch.ones_like(place, dtype=torch.float32))
    return counts[..., :size]
