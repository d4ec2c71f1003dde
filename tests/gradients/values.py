"""Numbers at which operators are differentiable: inside their domain, off ties and kinks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# operators that are defined, or smooth, only on a part of the line, and the part
RANGES = {
    "Acos": (-0.9, 0.9),
    "Asin": (-0.9, 0.9),
    "Atanh": (-0.9, 0.9),
    "Bernoulli": (0.1, 0.9),
    "Pow": (0.5, 2.0),
    "Sqrt": (0.2, 3.0),
}
LARGE = 1e4  # numbers that hide others, as in masks, or that no step of 1e-6 changes


def off_kinks(operator: str, array: NDArray[np.generic], seed: int) -> NDArray[np.float64]:
    """Numbers near those of an array: further from 0, no two of them equal, none a whole number.

    What is large or not finite stays.
    """
    random = np.random.default_rng(seed)
    wide = np.asarray(array).astype(np.float64)
    if operator in RANGES:
        return np.asarray(random.uniform(*RANGES[operator], size=wide.shape))
    sign = np.where(wide == 0, random.choice([-1.0, 1.0], size=wide.shape), np.sign(wide))
    moved = wide + sign * random.uniform(0.02, 0.1, size=wide.shape)
    return np.where(np.abs(wide) < LARGE, moved, wide)
