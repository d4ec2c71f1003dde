"""Samples whose columns are converted to what a model takes; also several of them, as rows of one input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
        made = {name: step(batch[name], indices, seed) for name, step in self.steps.items()}
        for step in self.steps.values():
            made |= step.beside(self.samples, indices) if hasattr(step, "beside") else {}
        return made

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

    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    score: str = ""

    @property
    def rows_of_each(self) -> int:
        return len(next(iter(self.members.values())))

    def take(self, indices: Sequence[int], seed: int) -> Batch:
        batch, made = self.samples.take(indices, seed), {}
        for name, columns in self.members.items():
            step = self.steps[name]
            rows = [step(batch[column], indices, seed + role * _APART) for role, column in enumerate(columns)]
            made[name] = torch.stack(rows, 1).flatten(0, 1)
        if self.score:
            made[self.score] = self._in_each(self.steps[self.score](batch[self.score], indices, seed))
        which = torch.as_tensor(indices, dtype=torch.int64)
        return {**made, PAIR: self._pairs(which), ROLE: self._roles(len(which))}

    def column(self, name: str) -> Tensor | None:
        if name == PAIR:
            return self._pairs(torch.arange(len(self)))
        if name == ROLE:
            return self._roles(len(self))
        if name == self.score:
            scores = column_of(self.samples, name)
            return None if scores is None else self._in_each(scores)
        found = [column_of(self.samples, member) for member in self.members[name]]
        stored = [column for column in found if column is not None]
        return torch.stack(stored, 1).flatten(0, 1) if len(stored) == len(found) else None

    def _in_each(self, scores: Tensor) -> Tensor:
        return scores.repeat_interleave(self.rows_of_each, 0)

    def _pairs(self, which: Tensor) -> Tensor:
        return torch.stack([which, which, -1 - which][: self.rows_of_each], 1).flatten()

    def _roles(self, count: int) -> Tensor:
        return torch.arange(self.rows_of_each).repeat(count)
