"""Samples of shards: a part of data that is larger than memory, and the order in which it is read.

`Spans` says where the samples lie, and `Order` how an epoch reads them. The order is a pure
function of a seed. So nothing needs to be kept to resume, and no process needs a list of all
samples: only the sizes of the spans are in memory. `Stream` holds a window of an epoch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import get_worker_info

from onnxgen.errors import OnnxgenError
from onnxgen.training.data.letterbox import STRETCHED, Placing
from onnxgen.training.data.samples import Batch, Field, Samples

HEAD = 512  # samples at the beginning that decide types, sizes and scales, and that are checked before training
_AT_ONCE = 64  # samples

Run = tuple[int, int, int]  # shard, first sample in it, and the one after the last
Read = Mapping[str, Any]  # what was read of some samples, by name; values are taken from it by `Reader.batch`


class Reader(Protocol):
    """Reads one kind of shards. It is picklable; files are opened in the process that reads."""

    @property
    def fields(self) -> Mapping[str, Field]: ...

    @property
    def in_memory(self) -> bool:
        """True if reading is so fast that worker processes would not help."""
        ...

    def read(self, runs: Sequence[Run]) -> Read:
        """Return what is stored of these samples, in this order. Raises `OnnxgenError` if a shard is damaged."""
        ...

    def batch(self, columns: Read, places: Sequence[int]) -> tuple[Batch, dict[int, str]]:
        """Return the samples at some places of what was read. If some can't be read, return why, by place.

        Raises `OnnxgenError` if a sample has an unknown class.
        """
        ...

    def name(self, shard: int, place: int) -> str:
        """Return the file of a sample and its place there, for messages."""
        ...


class Unreadable(OnnxgenError):
    """Some samples of a batch can't be read.

    Attributes:
        why: the reason for each, with its place, by index.
    """

    def __init__(self, why: Mapping[int, str]) -> None:
        super().__init__("; ".join(why.values()), help="repair the shard")
        self.why = why


@dataclass
class _Held:
    """What this process has in memory of a stream."""

    pid: int = 0
    windows: dict[Window, tuple[dict[int, int], Read]] = field(default_factory=dict)
    ahead: tuple[Window, Future[tuple[dict[int, int], Read]]] | None = None
    reading: ThreadPoolExecutor | None = None


@dataclass(frozen=True)
class Stream:
    """Samples that are read from shards in order, and shuffled within windows (`Order`).

    Attributes:
        window: the number of samples that are read together, and shuffled.
        strict: raise an error for a sample that can't be read, instead of `Unreadable`.
        head: the indices of the first samples, as far as they can be read.
        limits: by column, the highest whole number that the network takes, what sets this limit, and the places of a
            flattened sample that have it (None: all). See `limit`.
    """

    reader: Reader
    spans: Spans
    window: int
    strict: bool = False
    head: tuple[int, ...] = ()
    limits: dict[str, list[tuple[int, str, list[int] | None]]] = field(default_factory=dict, init=False)
    _held: _Held = field(default_factory=_Held, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_held": _Held()}

    @property
    def in_memory(self) -> bool:
        return self.reader.in_memory

    @property
    def fields(self) -> Mapping[str, Field]:
        return self.reader.fields

    def __len__(self) -> int:
        return len(self.spans)

    def hold(self, windows: Sequence[Window], ahead: Window | None = None) -> None:
        """Read windows of samples, and forget all others. A worker process reads the one `ahead` in the background."""
        held = self._held
        if held.pid != os.getpid():  # a fork has those of its parent
            held.pid, held.windows, held.ahead, held.reading = os.getpid(), {}, None, None
        held.windows = {key: held.windows[key] for key in windows if key in held.windows}
        for key in windows:
            if key not in held.windows:
                coming, held.ahead = held.ahead, None
                content = coming[1].result() if coming is not None else None  # also of another: one reads at a time
                held.windows[key] = content if content is not None and coming and coming[0] == key else self._read(key)
        if ahead is not None and held.ahead is None and len(windows) == 1 and get_worker_info() is not None:
            held.reading = held.reading or ThreadPoolExecutor(1)
            held.ahead = ahead, held.reading.submit(self._read, ahead)

    def _read(self, window: Window) -> tuple[dict[int, int], Read]:
        indices = [i for interval in window for i in range(*interval)]
        columns = self.reader.read([run for interval in window for run in self.spans.runs(interval)])
        return {index: place for place, index in enumerate(indices)}, columns

    def take(self, indices: Sequence[int], seed: int) -> Batch:
        """Raises `Unreadable` for samples that can't be read, `OnnxgenError` for a damaged shard or a wrong number."""
        indices = [int(index) for index in indices]
        if (groups := self._grouped(indices)) is None:
            self.hold([tuple(_intervals(indices))])
            groups = self._grouped(indices) or []
        parts: list[Batch] = []
        faults: dict[int, str] = {}
        for here, places, columns in groups:
            taken, why = self.reader.batch(columns, [places[indices[i]] for i in here])
            faults |= {indices[i]: why[places[indices[i]]] for i in here if places[indices[i]] in why}
            parts.append(taken)
        if faults:
            raise OnnxgenError(*faults.values(), help="repair it") if self.strict else Unreadable(faults)
        batch = parts[0]
        if len(parts) > 1:
            order = torch.tensor([i for here, _, _ in groups for i in here]).argsort()
            batch = {name: torch.cat([part[name] for part in parts]).index_select(0, order) for name in batch}
        self._check(batch, indices)
        return batch

    def _grouped(self, indices: Sequence[int]) -> list[tuple[list[int], dict[int, int], Read]] | None:
        """Return which of these samples are in each window that is held, with its places; None if one is in none."""
        groups, left = [], list(range(len(indices)))
        for places, columns in self._held.windows.values() if self._held.pid == os.getpid() else ():
            here = [i for i in left if indices[i] in places]
            left = [i for i in left if indices[i] not in places] if len(here) < len(left) else []
            groups += [(here, places, columns)] if here else []
        return None if left else groups

    def name(self, index: int) -> str:
        """Return the file of a sample and its place there."""
        return self.reader.name(*self.spans.place(index))

    def faults(self, indices: Sequence[int]) -> dict[int, str]:
        """Read samples, and return why some can't be read, by index."""
        faults: dict[int, str] = {}
        lenient = replace(self, strict=False)
        for start in range(0, len(indices), _AT_ONCE):
            try:
                lenient.take(indices[start : start + _AT_ONCE], 0)
            except Unreadable as error:
                faults |= error.why
        return faults

    def column(self, name: str) -> Tensor | None:
        """A column is never in memory as a whole."""
        return None

    def of_spans(self, spans: Spans) -> Stream:
        return replace(self, spans=spans, head=tuple(range(min(len(spans), HEAD))))

    def divided(self, shares: Mapping[str, float], seed: int) -> dict[str, Stream]:
        """Return the samples in parts: whole spans for each of the shares, and what is left as "train"."""
        return {part: self.of_spans(spans) for part, spans in self.spans.held_back(shares, seed).items()}

    def changed(self, **changes: Any) -> Stream:
        """Return the same samples, read in another way."""
        return replace(self, reader=replace(self.reader, **changes))  # type: ignore[type-var]

    def only(self, names: Iterable[str]) -> Stream:
        """Return the same samples with these columns, if reading fewer is faster."""
        kept = getattr(self.reader, "only", None)
        return self if kept is None else replace(self, reader=kept([*names]))

    def with_joined(self, name: str, members: Sequence[str], empty: bool = False) -> Stream:
        """Return the same samples with a column that is made of columns of single numbers; it is never `empty`."""
        joined: Mapping[str, tuple[str, ...]] = getattr(self.reader, "joined", {})
        return self.changed(joined={**joined, name: tuple(members)})

    def sized(self, channels: int, height: int, width: int, placing: Placing = STRETCHED) -> Stream:
        """See `Columns.sized`."""
        return self.changed(size=(channels, height, width), placing=placing)

    def renumbered(self, column: str, places: Tensor, classes: tuple[str, ...]) -> Stream:
        """The classes were numbered when the shards were opened: a stream can't count which there are."""
        assert self.fields[column].classes == classes
        return self

    def _check(self, batch: Batch, indices: Sequence[int]) -> None:
        for name, limits in self.limits.items():
            for highest, what, places in limits if name in batch else ():
                flat = batch[name].reshape(len(batch[name]), -1)
                flat = flat if places is None else flat[:, places]
                if flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) <= highest:
                    wrong = (flat < 0) | (flat > highest)
                    row = int(wrong.any(1).nonzero()[0])
                    value = flat[row][wrong[row]][0].item()
                    raise OnnxgenError(f"{self.name(indices[row])}: {name} has {value}, but {what}")


def stream_of(samples: Samples | None) -> Stream | None:
    """Return the stream that samples are made of; None if they are no stream."""
    inner: Any = samples
    while inner is not None and not isinstance(inner, Stream):
        inner = getattr(inner, "samples", None)
    return inner


def limit(samples: Samples, column: str, highest: int, what: str, places: Sequence[int] | None = None) -> None:
    """Let a stream refuse whole numbers of a column that are not from 0 to `highest`; other samples were checked."""
    if (stream := stream_of(samples)) is not None:
        stream.limits.setdefault(column, []).append((highest, what, None if places is None else list(places)))


def leading(samples: Samples, most: int) -> list[int]:
    """Return the indices of the first samples: those of a stream that can be read."""
    stream = stream_of(samples)
    return list(range(min(len(samples), most)) if stream is None else stream.head[:most])


def _intervals(indices: Iterable[int]) -> list[Interval]:
    """Return the intervals of consecutive indices, in ascending order."""
    intervals: list[Interval] = []
    for index in sorted(set(indices)):
        if intervals and intervals[-1][1] == index:
            intervals[-1] = intervals[-1][0], index + 1
        else:
            intervals.append((index, index + 1))
    return intervals


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
        runs, (begin, end) = [], interval
        while begin < end:
            span = int(np.searchsorted(self.ends, begin, "right"))
            shard, start = self.place(begin)
            stop = min(end, int(self.ends[span]))
            runs.append((shard, start, start + stop - begin))
            begin = stop
        return runs

    def held_back(self, shares: Mapping[str, float], seed: int) -> dict[str, Spans]:
        """Return the spans of each part, and the rest as "train".

        Whole spans are drawn. If there are few, each of them gives its last samples.
        """
        count, parts = len(self.counts), {}
        if count >= WHOLE_SPANS:
            order, used = np.random.Generator(np.random.PCG64(seed)).permutation(count), 0
            for part, share in shares.items():
                more = max(1, round(share * count))
                parts[part] = self._some(np.sort(order[used : used + more]))
                used += more
            return {**parts, "train": self._some(np.sort(order[used:]))}
        left = self
        for part, share in shares.items():
            taken = np.minimum(np.maximum(1, np.rint(share * self.counts).astype(np.int64)), left.counts)
            left = replace(left, counts=left.counts - taken)
            parts[part] = replace(left, starts=left.starts + left.counts, counts=taken)
        return {**parts, "train": left._some(np.flatnonzero(left.counts))}

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
            shuffled, window = self._window(number)
            first = number * self.size
            indices += shuffled[max(begin - first, 0) : end - first].tolist()
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
        indices = np.concatenate([np.arange(*interval) for interval in intervals])
        if self.seed is not None:
            indices = _random(self.seed, number).permutation(indices)
        return indices, tuple(intervals)


def _random(*seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(list(seed)))


def spans_of(shards: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> Spans:
    """Return spans, without those that have no sample."""
    spans = Spans(*(np.array(values, dtype=np.int64) for values in (shards, starts, counts)))
    return spans._some(np.flatnonzero(spans.counts))
