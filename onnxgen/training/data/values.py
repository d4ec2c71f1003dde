"""The values that are checked before training: all of a column in memory, else those of some samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from onnxgen.training.data.arrays import column_of, row_of, spread
from onnxgen.training.data.samples import Samples

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
            if found := self._first(values, ~values.to(fed).isfinite(), indices):
                return found
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
            if found := self._first(values, wrong, indices):
                return found
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
