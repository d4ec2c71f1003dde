"""The interface of data: samples with named columns, and random numbers for each of them.

Samples are taken in batches. Random numbers are a pure function of seed and sample: the same on
every machine, in every process and order. The generator is SplitMix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", 2014), used as a hash. The methods of numpy and torch
may draw other numbers in another version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onnxgen.training.data.layout import PARTS
from onnxgen.training.data.preprocessing import Table

if TYPE_CHECKING:
    from onnxgen.training.data.feeding import Arrangement
    from onnxgen.training.data.text.columns import Text


Batch = dict[str, Tensor]  # by column, the stacked samples [batch, *shape]


@dataclass(frozen=True)
class Field:
    """The type of a column.

    Attributes:
        dtype: dtype of its tensors.
        shape: shape of one sample.
        classes: the class names, if the column holds class indices (for digits "0" to "9").
        ignored: True if some of its values are none: no loss counts them.
    """

    dtype: torch.dtype
    shape: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    ignored: bool = False


@runtime_checkable
class Samples(Protocol):
    """A part of the data. It must be picklable, since worker processes get a copy.

    Set an attribute `in_memory` to true if taking samples is so fast that worker processes would not help.
    """

    @property
    def fields(self) -> Mapping[str, Field]:
        """The types of the columns that `take` returns."""
        ...

    def __len__(self) -> int: ...

    def take(self, indices: Sequence[int], seed: int) -> Batch:
        """Return the samples with these indices, stacked by column.

        Random numbers for a sample (augmentation) depend only on its index and on `seed`, which is that of run and
        epoch: not on the process, the order or the batch. No global random state is used or changed.
        """
        ...


@dataclass
class Data:
    """Data in parts.

    Attributes:
        train, val, test: None if there is no such part.
        name: the data's name in reports.
        notes: facts for the user (skipped files, how the data was split and normalised).
        target: the column to predict, if the data itself says so.
        normalize: how images were normalised, in the form of `Settings.normalize` ("0.1307,0.3081"), so that other data
            gets the same; empty if no images were.
        named: the targets that were class names, and were numbered when they were read.
        joined: the columns of a table that make an input's column, by the name of that column.
        table: how they became numbers, if `Settings.table` asked for more than to join them; other data gets the same.
        task: the task that the data is for, if it is certain (see `Settings.task`).
        size: the size that images got, in the form of `Settings.size` ("224x224"); empty if there are none.
        resize: how images got it, in the form of `Settings.resize`; empty if there are none.
        images: settings of images that the preset of the network decided, by name.
        sizes: channels, height and width of the files of images; empty if they were not looked at.
        rate: that sounds have, in Hz; 0 if there are none.
        text: how texts became token ids; None if there are none.
    """

    train: Samples | None
    val: Samples | None = None
    test: Samples | None = None
    name: str = "data"
    notes: list[str] = field(default_factory=list)
    target: str = ""
    normalize: str = ""
    named: frozenset[str] = frozenset()
    joined: Mapping[str, Sequence[str]] = field(default_factory=dict)
    table: Table | None = None
    size: str = ""
    resize: str = ""
    images: Mapping[str, Any] = field(default_factory=dict)
    sizes: frozenset[tuple[int, ...]] = frozenset()
    task: str = ""
    rate: int = 0
    text: Text | None = None

    @property
    def parts(self) -> dict[str, Samples]:
        """The parts that there are, by name."""
        return {part: samples for part in PARTS if (samples := getattr(self, part)) is not None}

    @property
    def first(self) -> Samples:
        """The samples of the first part."""
        return next(iter(self.parts.values()))


@dataclass(frozen=True)
class Feeding:
    """The columns of inputs and targets.

    Attributes:
        inputs: a column for each argument of `forward`, in order.
        targets: a column by index of the output, in order. An output without a target is not trained.
        others: further columns, which the task reads (see `Settings.task`).
        once: the columns of inputs [1] that hold for a whole batch.
        arrangement: how the columns become the arguments; None if they are these.
    """

    inputs: tuple[str, ...]
    targets: Mapping[int, str]
    others: tuple[str, ...] = ()
    once: frozenset[str] = frozenset()
    arrangement: Arrangement | None = None

    def arguments(self, batch: Batch, device: torch.device | None = None) -> list[Tensor]:
        """Return what `forward` takes for a batch, on a device or where it is."""
        arguments = [batch[column][:1] if column in self.once else batch[column] for column in self.inputs]
        arguments = arguments if self.arrangement is None else self.arrangement.arguments(arguments)
        return [x if device is None else x.to(device) for x in arguments]

    @property
    def aims(self) -> tuple[str, ...]:
        """The columns that say what the outputs should be."""
        return (*self.targets.values(), *self.others)


_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = z + _GAMMA
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def bits(seed: int, indices: Sequence[int] | NDArray[np.int64], count: int, stream: int = 0) -> NDArray[np.uint64]:
    """Return random 64-bit numbers [n, count]. Row i depends only on `seed`, `stream` and `indices[i]`."""
    start = _mixed(np.array([seed % 2**64], dtype=np.uint64)) + np.uint64(stream % 2**64)
    rows = _mixed(_mixed(start) + np.asarray(indices, dtype=np.int64).astype(np.uint64))
    columns: NDArray[np.uint64] = np.arange(count, dtype=np.uint64)
    return _mixed(np.add(rows[:, None], columns, dtype=np.uint64))


def uniform(seed: int, indices: Sequence[int] | NDArray[np.int64], count: int, stream: int = 0) -> NDArray[np.float64]:
    """Return uniformly distributed numbers [n, count] from 0 up to 1."""
    drawn: NDArray[np.float64] = (bits(seed, indices, count, stream) >> np.uint64(11)).astype(np.float64)
    return drawn * 2.0**-53


def normal(seed: int, indices: Sequence[int] | NDArray[np.int64], count: int, stream: int = 0) -> NDArray[np.float64]:
    """Return normally distributed numbers [n, count] with mean 0 and variance 1 (Box and Muller, 1958)."""
    half = (count + 1) // 2
    drawn = uniform(seed, indices, 2 * half, stream)
    radius, angle = np.sqrt(-2 * np.log1p(-drawn[:, :half])), 2 * np.pi * drawn[:, half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :count]
