"""Random numbers as a pure function of seed and sample: the same on every machine, in every process and order.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), used as a
hash. The methods of numpy and torch may draw other numbers in another version.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
