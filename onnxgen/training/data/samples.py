"""What training reads: samples of named columns, taken a batch at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

Batch = dict[str, Tensor]  # a column's samples, stacked: [batch, *shape]


@dataclass(frozen=True)
class Field:
    """One column.

    Attributes:
        dtype: of its tensors.
        shape: of one sample.
        classes: where it holds class indices, the name of each (of digits: "0" to "9").
    """

    dtype: torch.dtype
    shape: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()


class Samples(Protocol):
    """A part of the data. Picklable: worker processes get a copy.

    One that has a true attribute `in_memory` is so fast that no worker processes are needed for it.
    """

    @property
    def fields(self) -> Mapping[str, Field]:
        """What `take` returns, by column."""
        ...

    def __len__(self) -> int: ...

    def take(self, indices: Sequence[int], seed: int) -> Batch:
        """The samples of some indices, stacked by column.

        What is drawn for a sample (augmentation) depends on `seed` (of run and epoch) and its index alone: not on the
        process, the order or the batch it is in. No global random state is used or left changed.
        """
        ...


@dataclass
class Data:
    """The parts of some data.

    Attributes:
        train, val, test: None where there is no such part.
        name: what it is called in reports.
        notes: what a person should know (skipped files, how it was split and normalised).
        target: the column that is to be predicted, where the data itself says so.
        normalize: how images were normalised, as `Settings.normalize` takes it ("0.1307,0.3081"), so that other data
            can be made alike; empty where none were.
        named: the targets whose classes were given by name, and numbered when they were read.
    """

    train: Samples | None
    val: Samples | None = None
    test: Samples | None = None
    name: str = "data"
    notes: list[str] = field(default_factory=list)
    target: str = ""
    normalize: str = ""
    named: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Feeding:
    """Which columns go where.

    Attributes:
        inputs: a column for each argument of `forward`, in its order.
        targets: a column by output, in the order of the outputs; an output without one is not trained.
    """

    inputs: tuple[str, ...]
    targets: Mapping[int, str]
