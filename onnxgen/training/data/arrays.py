"""Samples as columns, in memory or decoded when they are taken; subsets; conversions for a model.

`Columns` holds the data and `Subset` is a part of any samples. `Prepared` converts the columns of
samples to what a model takes; `Tuples` gives several samples as rows of one input. `Values` has the
values that are checked before training: all of a column in memory, else those of some samples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from onnxgen.training.data.letterbox import STRETCHED, Placing
from onnxgen.training.data.samples import Batch, Field, Samples
from onnxgen.training.data.streaming.stream import Stream, leading, stream_of


class Decoder(Protocol):
    """A column that is decoded when it is taken, with the interface of a tensor as far as it is needed.

    It may have a `stored` tensor, from which it is made, and tensors `beside` it that no model is fed.
    """

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of samples, and the shape of one."""
        ...

    def index_select(self, axis: int, which: Tensor) -> Decoder:
        """Return the column of the samples `which` [n] (int64); the axis is 0."""
        ...

    def decoded(self, indices: Sequence[int]) -> Tensor: ...


@dataclass(frozen=True)
class Columns:
    """Columns of one length; their first axis is the samples.

    Attributes:
        columns: tensors, and what is decoded.
        classes: class names of each column with class indices.
        rows: [n], each sample's index in the data as it was read; None: samples are in that order.
    """

    columns: Mapping[str, Any]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rows: Tensor | None = None

    @property
    def in_memory(self) -> bool:
        """True if taking a batch is faster than receiving it from a worker process."""
        return all(isinstance(column, Tensor) for column in self.columns.values())

    @property
    def fields(self) -> Mapping[str, Field]:
        return {n: Field(c.dtype, tuple(c.shape[1:]), self.classes.get(n, ())) for n, c in self.columns.items()}

    def __len__(self) -> int:
        return int(next(iter(self.columns.values())).shape[0]) if self.rows is None else len(self.rows)

    def take(self, indices: Sequence[int], seed: int) -> Batch:
        which = torch.as_tensor(indices, dtype=torch.int64)
        return {
            name: column.index_select(0, which) if isinstance(column, Tensor) else column.decoded(which.tolist())
            for name, column in self.columns.items()
        }

    def column(self, name: str) -> Tensor | None:
        kept = {n: t for column in self.columns.values() for n, t in getattr(column, "beside", {}).items()}
        values = kept.get(name, self.columns.get(name))
        return values if isinstance(values, Tensor) else getattr(values, "stored", None)

    def subset(self, which: Tensor) -> Columns:
        """Return the samples `which` [n]: copied once, so that each batch is indexed once."""
        rows = which if self.rows is None else self.rows.index_select(0, which)
        return replace(self, columns={n: c.index_select(0, which) for n, c in self.columns.items()}, rows=rows)

    def only(self, names: Collection[str]) -> Columns:
        """Return the same samples with these columns; of none of them, with all."""
        kept = {name: self.columns[name] for name in names if name in self.columns}
        return replace(self, columns=kept or self.columns)

    def without(self, names: Collection[str]) -> Columns:
        """Return the same samples without these columns, in the order of the data."""
        kept = {name: column for name, column in self.columns.items() if name not in names}
        return Columns(kept, {n: c for n, c in self.classes.items() if n in kept}, self.rows)

    def with_column(self, name: str, column: Any) -> Columns:
        """Return the same samples with one more column, or another one in the place of the one called so."""
        classes = {n: names for n, names in self.classes.items() if n != name}
        return replace(self, columns={**self.columns, name: column}, classes=classes)

    def with_joined(self, name: str, members: Sequence[str], empty: bool = False) -> Columns:
        """Return the same samples with a column that is made of columns of single numbers; zeros if it is `empty`."""
        columns = [torch.zeros(len(self)) if empty else self.columns[member] for member in members]
        whole = not any(c.is_floating_point() for c in columns)
        return self.with_column(name, torch.stack([c.to(torch.int64 if whole else torch.float32) for c in columns], 1))

    def renumbered(self, column: str, places: Tensor, classes: tuple[str, ...]) -> Columns:
        """Return a copy in which class index `i` of a column becomes `places[i]`, an index into `classes`."""
        has = self.columns[column]
        other = getattr(has, "renumbered", None)  # -100 is no class
        moved = torch.where(has < 0, has, places[has.clamp_min(0)]) if other is None else other(places)
        return replace(self, columns={**self.columns, column: moved}, classes={**self.classes, column: classes})

    def sized(self, channels: int, height: int, width: int, placing: Placing = STRETCHED) -> Columns:
        """Return the same samples with images of another size, and with what lies on them."""
        size = channels, height, width
        columns = {n: c.sized(size, placing) if hasattr(c, "sized") else c for n, c in self.columns.items()}
        return replace(self, columns=columns)

    def fitted(self, column: str, **sizes: Any) -> Columns:
        """Return the same samples with other attributes of a column that is decoded."""
        return replace(self, columns={**self.columns, column: replace(self.columns[column], **sizes)})


@dataclass(frozen=True)
class Subset:
    """A subset of samples, by their indices [n] (int64)."""

    samples: Samples
    indices: Tensor

    @property
    def in_memory(self) -> bool:
        return getattr(self.samples, "in_memory", False)

    @property
    def fields(self) -> Mapping[str, Field]:
        return self.samples.fields

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, indices: Sequence[int], seed: int) -> Batch:
        which = self.indices.index_select(0, torch.as_tensor(indices, dtype=torch.int64))
        return self.samples.take(which.tolist(), seed)

    def column(self, name: str) -> Tensor | None:
        whole = column_of(self.samples, name)
        return None if whole is None else whole.index_select(0, self.indices)


def column_of(samples: Samples, name: str) -> Tensor | None:
    """Return a whole column [n, *shape] if it is in memory, or None if samples must be read for it."""
    getter = getattr(samples, "column", None)
    column: Tensor | None = getter(name) if getter is not None else None
    return column


def stored(samples: Samples) -> Columns | Stream:
    """Return samples of a table, of files or of shards, which are columns or a stream of them."""
    assert isinstance(samples, (Columns, Stream)), type(samples)
    return samples


def in_columns(samples: Samples) -> Columns:
    """Return samples of a table or of files, which are columns."""
    assert isinstance(samples, Columns), type(samples)
    return samples


def in_files(samples: Samples, files: Mapping[str, Decoder], name: str, kept: Sequence[int]) -> Columns:
    """Return the samples `kept` with files that are decoded in place of the column `name`, as data of its own."""
    left = in_columns(samples).without([name]).subset(torch.tensor(kept, dtype=torch.int64))
    return Columns({**files, **left.columns}, left.classes)


def decoder_of(samples: Any, name: str) -> Any:
    """Return what decodes a column of samples, which may be prepared; None if it is in memory, or read in another way.

    Of an input that pairs or triplets feed it is that of the first member.
    """
    while samples is not None and not isinstance(samples, Columns):
        name = getattr(samples, "members", {}).get(name, (name,))[0]
        samples = getattr(samples, "samples", None)
    column = None if samples is None else samples.columns.get(name)
    return None if isinstance(column, Tensor) else column


def row_of(samples: Samples, index: int) -> int:
    """Return a sample's index in the data as it was read, before the split."""
    if isinstance(samples, Columns):
        return index if samples.rows is None else int(samples.rows[index])
    inner = getattr(samples, "samples", None)
    index //= getattr(samples, "rows_of_each", 1)
    if isinstance(samples, Subset):
        index = int(samples.indices[index])
    return index if inner is None else row_of(inner, index)


def spread(samples: Samples, most: int) -> list[int]:
    """Return at most `most` indices, evenly spaced over all samples; of a stream the first ones."""
    if stream_of(samples) is not None:
        return leading(samples, most)
    count = min(len(samples), most)
    return [i * len(samples) // count for i in range(count)]


def subset(samples: Samples, indices: np.ndarray | Sequence[int]) -> Samples:
    """Return the samples with these indices, in this order."""
    which = torch.as_tensor(np.asarray(indices, dtype=np.int64))
    if isinstance(samples, Columns):
        return samples.subset(which)
    return Subset(samples, which)


Members: TypeAlias = Mapping[str, tuple[str, ...]]  # see `Tuples.members`
PAIR, ROLE = "pair", "role"  # columns of `Tuples`
_APART = 1 << 32  # between the seeds of the columns of a tuple


@dataclass(frozen=True)
class Prepared:
    """Samples whose columns are converted by a step each (see `fitting.Step`). Other columns are left out."""

    samples: Samples
    steps: Mapping[str, Any]
    fields: Mapping[str, Field]

    @property
    def in_memory(self) -> bool:
        return getattr(self.samples, "in_memory", False)

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, indices: Sequence[int], seed: int) -> Batch:
        batch = self.samples.take(indices, seed)
        converted = {name: step(batch[name], indices, seed) for name, step in self.steps.items()}
        for step in self.steps.values():
            converted |= step.beside(self.samples, indices) if hasattr(step, "beside") else {}
        return converted

    def column(self, name: str) -> Tensor | None:
        """Return the column as it is stored, before the step."""
        return column_of(self.samples, name)


def unaugmented(samples: Samples) -> Samples:
    """Return samples as they are measured: without the augmentation of a training part."""
    if not isinstance(samples, Prepared):
        return samples
    drawn = [name for name, step in samples.steps.items() if getattr(step, "augment", None) is not None]
    return replace(samples, steps={**samples.steps, **{n: replace(samples.steps[n], augment=None) for n in drawn}})


@dataclass(frozen=True)
class Tuples(Prepared):
    """Pairs (anchor, positive) or triplets (anchor, positive, negative), each member of which feeds the network.

    A sample is a tuple; a batch has a row for each of its members, so a tuple is never divided. Columns of a batch:

    - those of the inputs;
    - "pair": the number of the tuple; of negatives a number that no other row has;
    - "role": 0 for the anchor, 1 for the positive, 2 for the negative;
    - the score, if there is one: of the tuple, in each of its rows.

    Attributes:
        members: by input, the columns of the stored samples that feed it, in the order of roles.
        score: the column that says how alike the members of a pair are; "" if none does.
    """

    members: Members = field(default_factory=dict)
    score: str = ""

    @property
    def rows_of_each(self) -> int:
        return len(next(iter(self.members.values())))

    def take(self, indices: Sequence[int], seed: int) -> Batch:
        batch, converted = self.samples.take(indices, seed), {}
        for name, columns in self.members.items():
            step = self.steps[name]
            rows = [step(batch[column], indices, seed + role * _APART) for role, column in enumerate(columns)]
            converted[name] = torch.stack(rows, 1).flatten(0, 1)
        if self.score:
            converted[self.score] = self._in_each(self.steps[self.score](batch[self.score], indices, seed))
        which = torch.as_tensor(indices, dtype=torch.int64)
        return {**converted, PAIR: self._pairs(which), ROLE: self._roles(len(which))}

    def column(self, name: str) -> Tensor | None:
        if name == PAIR:
            return self._pairs(torch.arange(len(self)))
        if name == ROLE:
            return self._roles(len(self))
        if name == self.score:
            scores = column_of(self.samples, name)
            return None if scores is None else self._in_each(scores)
        columns = [column_of(self.samples, member) for member in self.members[name]]
        stored = [column for column in columns if column is not None]
        return torch.stack(stored, 1).flatten(0, 1) if len(stored) == len(columns) else None

    def _in_each(self, scores: Tensor) -> Tensor:
        return scores.repeat_interleave(self.rows_of_each, 0)

    def _pairs(self, which: Tensor) -> Tensor:
        return torch.stack([which, which, -1 - which][: self.rows_of_each], 1).flatten()

    def _roles(self, count: int) -> Tensor:
        return torch.arange(self.rows_of_each).repeat(count)


MAX_SAMPLES_READ = 500
_READ_AT_ONCE = 50  # samples
_CHECKED_AT_ONCE = 1 << 22  # elements of a column in memory


class Values:
    """The values of some columns: as stored for a column in memory, else as `take` returns them.

    Samples are read once for all columns. Of large floating-point samples only the extremes are kept.
    """

    def __init__(self, samples: Samples, columns: Iterable[str]) -> None:
        self.samples = samples
        stored = getattr(samples, "samples", samples).fields  # of bytes (images in files) every value is valid
        self._read: dict[str, list[tuple[Sequence[int], Tensor]]] = {
            c: []
            for c in columns
            if column_of(samples, c) is None and stored.get(c, samples.fields[c]).dtype != torch.uint8
        }
        some = spread(samples, MAX_SAMPLES_READ) if self._read else []
        for start in range(0, len(some), _READ_AT_ONCE):
            indices = some[start : start + _READ_AT_ONCE]
            batch = samples.take(indices, 0)
            for column, kept in self._read.items():
                kept.append((indices, _extremes(batch[column])))

    def __getitem__(self, column: str) -> Iterator[tuple[Sequence[int], Tensor]]:
        """Yield values [n, ...] with the indices of their samples."""
        whole = column_of(self.samples, column)
        if whole is None:
            yield from self._read.get(column, ())
            return
        step = max(1, _CHECKED_AT_ONCE // max(1, whole[:1].numel()))
        for start in range(0, len(whole), step):
            yield range(start, min(start + step, len(whole))), whole[start : start + step]

    def infinite(self, column: str) -> str:
        """Return the first value that is not finite in the dtype that is fed, with its row ("nan in row 3"); or ""."""
        fed = self.samples.fields[column].dtype
        for indices, values in self[column]:
            if not values.is_floating_point():
                return ""
            if fault := self._first(values, ~values.to(fed).isfinite(), indices):
                return fault
        return ""

    def outside(
        self, column: str, low: int, high: int, ignored: int | None = None, places: Sequence[int] | None = None
    ) -> str:
        """Return the first integer outside `low` to `high`, with its row; empty if there is none.

        Only `places` of each flattened sample are looked at, if given.
        """
        for indices, stored in self[column]:
            values = stored.long()  # in uint8 a larger limit would wrap around
            if places is not None:
                values = values.reshape(len(values), -1)[:, list(places)]
            wrong = (values < low) | (values > high)
            if ignored is not None:
                wrong &= values != ignored
            if fault := self._first(values, wrong, indices):
                return fault
        return ""

    def highest(self, column: str) -> int:
        """Return the highest integer; -1 if there are no values."""
        return max((int(values.max()) for _, values in self[column] if values.numel()), default=-1)

    def distinct(self, column: str) -> set[int]:
        """Return the set of integers."""
        return {value for _, values in self[column] for value in values.flatten().tolist()}

    def _first(self, values: Tensor, wrong: Tensor, indices: Sequence[int]) -> str:
        if not wrong.any():
            return ""
        row = int(wrong.reshape(len(wrong), -1).any(1).nonzero()[0])
        value = values[row][wrong[row]].flatten()[0].item()
        return f"{value} in row {row_of(self.samples, indices[row])}"


def _extremes(values: Tensor) -> Tensor:
    """Return the lowest and highest value [n, 2] of each floating-point sample (NaN if it has one), if that is less."""
    if not values.is_floating_point() or values[:1].numel() <= 2:
        return values
    return torch.stack(values.flatten(1).aminmax(dim=1), 1)
