"""Where the samples of streamed data lie, and in which order an epoch reads them.

The order is a pure function of a seed. So nothing needs to be kept to resume, and no process needs a list of all
samples: only the sizes of the spans are in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Interval = tuple[int, int]  # indices of samples, from the first up to the last one, which is left out
Window = tuple[Interval, ...]  # what is read together
WHOLE_SPANS = 20  # with at least so many spans, some of them are held back as a whole


@dataclass(frozen=True)
class Spans:
    """Runs of samples in files: a tar file, a row group, a piece of a file of tokens. Samples are counted through.

    Attributes:
        shards, starts, counts: for each span [n] the number of its shard, its first sample there, and its samples.
    """

    shards: Ints
    starts: Ints
    counts: Ints

    @cached_property
    def ends(self) -> Ints:
        """The index after each span's last sample."""
        return np.cumsum(self.counts)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def place(self, index: int) -> tuple[int, int]:
        """Return the shard of a sample, and its place in it."""
        span = int(np.searchsorted(self.ends, index, "right"))
        return int(self.shards[span]), int(index - self.ends[span] + self.counts[span] + self.starts[span])

    def runs(self, interval: Interval) -> list[tuple[int, int, int]]:
        """Return (shard, start, stop) of the samples of an interval, in order."""
        found, (begin, end) = [], interval
        while begin < end:
            span = int(np.searchsorted(self.ends, begin, "right"))
            shard, start = self.place(begin)
            stop = min(end, int(self.ends[span]))
            found.append((shard, start, start + stop - begin))
            begin = stop
        return found

    def held_back(self, shares: Mapping[str, float], seed: int) -> dict[str, Spans]:
        """Return the spans of each part, and the rest as "train".

        Whole spans are drawn. If there are few, each of them gives its last samples.
        """
        count, found = len(self.counts), {}
        if count >= WHOLE_SPANS:
            order, used = np.random.Generator(np.random.PCG64(seed)).permutation(count), 0
            for part, share in shares.items():
                more = max(1, round(share * count))
                found[part] = self._some(np.sort(order[used : used + more]))
                used += more
            return {**found, "train": self._some(np.sort(order[used:]))}
        left = self
        for part, share in shares.items():
            taken = np.minimum(np.maximum(1, np.rint(share * self.counts).astype(np.int64)), left.counts)
            left = replace(left, counts=left.counts - taken)
            found[part] = replace(left, starts=left.starts + left.counts, counts=taken)
        return {**found, "train": left._some(np.flatnonzero(left.counts))}

    def of_shards(self, shards: Ints) -> Spans:
        return self._some(np.flatnonzero(np.isin(self.shards, shards)))

    def _some(self, which: Ints) -> Spans:
        return Spans(self.shards[which], self.starts[which], self.counts[which])


class Order:
    """The order of an epoch: spans one after the other, in windows whose samples are shuffled.

    A window has samples that follow each other in this order of spans, so it is read from few places.
    """

    def __init__(self, spans: Spans, window: int, seed: int | None) -> None:
        """`window` is its number of samples. Without a `seed` the order is that of the data."""
        self.spans, self.size, self.seed = spans, window, seed
        count = len(spans.counts)
        self._sequence = np.arange(count) if seed is None else _random(seed).permutation(count)
        self._ends = np.cumsum(spans.counts[self._sequence])
        self._window = lru_cache(16)(self._made)

    def taken(self, begin: int, end: int) -> tuple[list[int], list[Window]]:
        """Return the samples at places `begin` to `end` of the order, and their windows."""
        indices: list[int] = []
        windows: list[Window] = []
        for number in range(begin // self.size, -(-end // self.size)):
            found, window = self._window(number)
            first = number * self.size
            indices += found[max(begin - first, 0) : end - first].tolist()
            windows.append(window)
        return indices, windows

    def window(self, place: int) -> Window:
        """Return the window of a place of the order."""
        return self._window(place // self.size)[1]

    def _made(self, number: int) -> tuple[Ints, Window]:
        begin, end = number * self.size, min((number + 1) * self.size, len(self.spans))
        intervals: list[Interval] = []
        while begin < end:
            place = int(np.searchsorted(self._ends, begin, "right"))
            span, stop = self._sequence[place], min(end, int(self._ends[place]))
            moved = int(self.spans.ends[span] - self._ends[place])  # from a place in the order to an index
            intervals.append((begin + moved, stop + moved))
            begin = stop
        found = np.concatenate([np.arange(*interval) for interval in intervals])
        if self.seed is not None:
            found = _random(self.seed, number).permutation(found)
        return found, tuple(intervals)


def _random(*seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(list(seed)))


def spans_of(shards: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> Spans:
    """Return spans, without those that have no sample."""
    made = Spans(*(np.array(values, dtype=np.int64) for values in (shards, starts, counts)))
    return made._some(np.flatnonzero(made.counts))
