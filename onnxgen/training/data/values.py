"""The values that are looked at before training: all that lie in memory, and of what has to be read some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from onnxgen.training.data.arrays import column_of, row_of, spread
from onnxgen.training.data.samples import Samples

LOOKED_AT = 500  # samples that are read
_READ = 50  # of them at once
_CHUNK = 1 << 22  # elements looked at at once


class Values:
    """The values of some columns, as they are stored if they lie in memory, else as they are taken.

    Samples are read once for all columns. Of large ones of floating point only the extremes are kept.
    """

    def __init__(self, samples: Samples, columns: Iterable[str]) -> None:
        self.samples = samples
        self._read: dict[str, list[tuple[Sequence[int], Tensor]]] = {
            c: [] for c in columns if column_of(samples, c) is None and not self._bytes(c)
        }
        some = spread(samples, LOOKED_AT) if self._read else []
        for start in range(0, len(some), _READ):
            indices = some[start : start + _READ]
            batch = samples.take(indices, 0)
            for column, kept in self._read.items():
                kept.append((indices, _extremes(batch[column])))

    def _bytes(self, column: str) -> bool:
        """Whether it is made of bytes, which can't be out of order: images in files."""
        return getattr(self.samples, "samples", self.samples).fields[column].dtype == torch.uint8

    def __getitem__(self, column: str) -> Iterator[tuple[Sequence[int], Tensor]]:
        """Values [n, ...], with the indices of their samples."""
        whole = column_of(self.samples, column)
        if whole is None:
            yield from self._read.get(column, ())
            return
        step = max(1, _CHUNK // max(1, whole[:1].numel()))
        for start in range(0, len(whole), step):
            yield range(start, min(start + step, len(whole))), whole[start : start + step]

    def infinite(self, column: str) -> str:
        """The first value that is not finite, and its row: "nan in row 3"; empty if there is none."""
        for indices, values in self[column]:
            if not values.is_floating_point():
                return ""
            if found := self._first(values, ~values.isfinite(), indices):
                return found
        return ""

    def outside(self, column: str, low: int, high: int, ignored: int | None = None) -> str:
        """The first whole number that is not from `low` up to `high`, and its row; empty if there is none."""
        for indices, stored in self[column]:
            values = stored.long()  # a limit that uint8 can't hold would wrap around
            wrong = (values < low) | (values > high)
            if ignored is not None:
                wrong &= values != ignored
            if found := self._first(values, wrong, indices):
                return found
        return ""

    def highest(self, column: str) -> int:
        """The highest whole number; -1 if there is none."""
        return max((int(values.max()) for _, values in self[column] if values.numel()), default=-1)

    def distinct(self, column: str) -> set[int]:
        """The whole numbers that there are."""
        return {value for _, values in self[column] for value in values.flatten().tolist()}

    def _first(self, values: Tensor, wrong: Tensor, indices: Sequence[int]) -> str:
        if not wrong.any():
            return ""
        row = int(wrong.reshape(len(wrong), -1).any(1).nonzero()[0])
        value = values[row][wrong[row]].flatten()[0].item()
        return f"{value} in row {row_of(self.samples, indices[row])}"


def _extremes(values: Tensor) -> Tensor:
    """[n, 2], lowest and highest of each sample, where that is much less; NaN if one is NaN."""
    if not values.is_floating_point() or values[:1].numel() <= 2:
        return values
    return torch.stack(values.flatten(1).aminmax(dim=1), 1)
