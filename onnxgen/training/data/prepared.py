"""Samples whose columns are converted to what a model takes; also several of them, as rows of one input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onnxgen.training.data.arrays import column_of
from onnxgen.training.data.samples import Batch, Field, Samples

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
        return {name: step(batch[name], indices, seed) for name, step in self.steps.items()}

    def column(self, name: str) -> Tensor | None:
        """Return the column as it is stored, before the step."""
        return column_of(self.samples, name)


@dataclass(frozen=True)
class Tuples(Prepared):
    """Pairs (anchor, positive) or triplets (anchor, positive, negative) for a network with one input.

    A sample is a tuple; a batch has a row for each of its members, so a tuple is never divided. Columns of a batch:

    - that of the input, which is the only one in `steps`;
    - "pair": the number of the tuple; of negatives a number that no other row has;
    - "role": 0 for the anchor, 1 for the positive, 2 for the negative.

    Attributes:
        members: the columns of the stored samples, in the order of roles.
    """

    members: tuple[str, ...] = ()

    @property
    def rows_of_each(self) -> int:
        return len(self.members)

    def take(self, indices: Sequence[int], seed: int) -> Batch:
        batch = self.samples.take(indices, seed)
        ((name, step),) = self.steps.items()
        made = [step(batch[member], indices, seed + role * _APART) for role, member in enumerate(self.members)]
        which = torch.as_tensor(indices, dtype=torch.int64)
        return {name: torch.stack(made, 1).flatten(0, 1), PAIR: self._pairs(which), ROLE: self._roles(len(which))}

    def column(self, name: str) -> Tensor | None:
        if name == PAIR:
            return self._pairs(torch.arange(len(self)))
        if name == ROLE:
            return self._roles(len(self))
        found = [column_of(self.samples, member) for member in self.members]
        stored = [column for column in found if column is not None]
        return torch.stack(stored, 1).flatten(0, 1) if len(stored) == len(found) else None

    def _pairs(self, which: Tensor) -> Tensor:
        return torch.stack([which, which, -1 - which][: len(self.members)], 1).flatten()

    def _roles(self, count: int) -> Tensor:
        return torch.arange(len(self.members)).repeat(count)
