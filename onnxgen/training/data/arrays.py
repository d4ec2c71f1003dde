"""Samples as columns, in memory or decoded when they are taken, and subsets of any samples."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

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
        found = kept.get(name, self.columns.get(name))
        return found if isinstance(found, Tensor) else getattr(found, "stored", None)

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
        made = {n: c.sized(size, placing) if hasattr(c, "sized") else c for n, c in self.columns.items()}
        return replace(self, columns=made)

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
    found = getattr(samples, "column", None)
    column: Tensor | None = found(name) if found is not None else None
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
    found = None if samples is None else samples.columns.get(name)
    return None if isinstance(found, Tensor) else found


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
