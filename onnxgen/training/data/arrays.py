"""Samples in memory, and subsets of any samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from onnxgen.training.data.samples import Batch, Field, Samples
from onnxgen.training.data.streaming.stream import leading, stream_of


@dataclass(frozen=True)
class Arrays:
    """Whole columns in memory; their first axis is the samples.

    Attributes:
        columns: tensors of the same length.
        classes: class names of each column with class indices.
        rows: [n], each sample's index in the data as it was read; None: samples are in that order.
    """

    columns: Mapping[str, Tensor]
    classes: Mapping[str, tuple[str, ...]]
    rows: Tensor | None = None
    in_memory = True  # taking a batch is faster than receiving it from a worker process

    @property
    def fields(self) -> Mapping[str, Field]:
        return {n: Field(c.dtype, tuple(c.shape[1:]), self.classes.get(n, ())) for n, c in self.columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.rows is None else len(self.rows)

    def take(self, indices: Sequence[int], seed: int) -> Batch:
        which = torch.as_tensor(indices, dtype=torch.int64)
        return {name: column.index_select(0, which) for name, column in self.columns.items()}

    def column(self, name: str) -> Tensor | None:
        return self.columns.get(name)

    def renumbered(self, column: str, places: Tensor, classes: tuple[str, ...]) -> Arrays:
        """Return a copy in which class index `i` of a column becomes `places[i]`, an index into `classes`."""
        has = self.columns[column]
        moved = {**self.columns, column: torch.where(has < 0, has, places[has.clamp_min(0)])}  # -100 is no class
        return replace(self, columns=moved, classes={**self.classes, column: classes})


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


def row_of(samples: Samples, index: int) -> int:
    """Return a sample's index in the data as it was read, before the split."""
    if isinstance(samples, Arrays):
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
    if isinstance(samples, Arrays):  # copied once, so that each batch is indexed once
        rows = which if samples.rows is None else samples.rows.index_select(0, which)
        return Arrays({n: c.index_select(0, which) for n, c in samples.columns.items()}, samples.classes, rows)
    return Subset(samples, which)
