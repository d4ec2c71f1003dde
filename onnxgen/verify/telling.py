"""Decide if a comparison could have exposed a wrong module: compare the allowed difference with the output's variation.

A module of a quantised file may differ from it by as much as rounding explains (`weights.approximation`). If an output
hardly varies more than that, any module passes, even one that returns a constant. That is not agreement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxgen.common.names import printable

# The best constant differs from the output by the standard deviation. A limit below this part of it still exposes one.
TELLING_PART = 0.7
WAY_OUT = "compare on inputs like those that the file was quantised with: onnxgen verify --inputs FILE.npz"


@dataclass(frozen=True)
class _Seen:
    """One output in one run: number of elements, mean, standard deviation, and the allowed difference."""

    count: int
    mean: float
    deviation: float
    limit: float


@dataclass
class Telling:
    """Statistics of each output that may differ by more than a tolerance.

    One conclusive run is enough. Runs may also be conclusive together: an output of one element, or of one saturated
    value, varies only from run to run.
    """

    seen: dict[str, list[_Seen]] = field(default_factory=dict)

    def add(self, name: str, expected: NDArray[Any], limit: float) -> None:
        finite = expected[np.isfinite(expected)].astype(np.float64)
        if finite.size:
            seen = _Seen(finite.size, float(finite.mean()), float(finite.std()), limit)
            self.seen.setdefault(printable(name), []).append(seen)

    def untold(self) -> dict[str, str]:
        """Return the outputs for which a wrong module could pass, with the reason."""
        return {name: _why(runs) for name, runs in self.seen.items() if not _tells(runs)}


def _tells(runs: list[_Seen]) -> bool:
    """Return True if runs are conclusive. With a limit of 0 they always are, since the comparison is exact."""
    alone = any(run.limit == 0 or run.limit < TELLING_PART * run.deviation for run in runs)
    return alone or max(run.limit for run in runs) < TELLING_PART * _deviation(runs)


def _deviation(runs: list[_Seen]) -> float:
    """Return the standard deviation of the elements of all runs together."""
    count = sum(run.count for run in runs)
    mean = sum(run.count * run.mean for run in runs) / count
    return math.sqrt(sum(run.count * (run.deviation**2 + (run.mean - mean) ** 2) for run in runs) / count)


def _why(runs: list[_Seen]) -> str:
    limit, varies = max(run.limit for run in runs), _deviation(runs)
    return (
        f"rounding may change this output by {limit:.3g} in root mean square, but on these inputs the output varies by "
        f"only {varies:.3g}, so a wrong module could pass -> {WAY_OUT}"
    )
