"""Nodes of onnxruntime's operators, of drawn shapes, types and attributes, against onnxruntime.

`ONNXGEN_DRAWN` says how many of each; `docs/CONTRIB.md` is made with more than the suite has.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from tests.ops.harness import run_node

SEEDS = range(int(os.environ.get("ONNXGEN_DRAWN", "6")))


@dataclass
class Drawn:
    """Inputs and attributes of a node. `stored`: which inputs the file has; `close`: it rounds, else bits are equal."""

    inputs: list[Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    stored: frozenset[int] = frozenset()
    close: float | None = 1e-4


class Draw(Random):
    """Arrays of drawn shapes."""

    def shape(self, rank: int | None = None) -> list[int]:
        return [self.randint(1, 5) for _ in range(self.randint(1, 4) if rank is None else rank)]

    def floats(self, *shape: int, dtype: Any = np.float32) -> Any:
        return np.random.default_rng(self.randrange(2**32)).standard_normal(shape).astype(dtype)

    def integers(self, dtype: Any, *shape: int) -> Any:
        bounds = np.iinfo(dtype)
        return self.below(int(bounds.max) + 1, *shape, dtype=dtype, least=int(bounds.min))

    def below(self, end: int, *shape: int, dtype: Any = np.int64, least: int = 0) -> Any:
        return np.random.default_rng(self.randrange(2**32)).integers(least, end, shape).astype(dtype)

    def scale(self) -> Any:
        return np.array(self.uniform(0.01, 0.1), np.float32)

    def quantised(self, dtype: Any, *shape: int) -> list[Any]:
        """Integers, their scale and zero point."""
        return [self.integers(dtype, *shape), *self.measure(dtype)]

    def measure(self, dtype: Any) -> list[Any]:
        """A scale and a zero point."""
        return [self.scale(), np.asarray(self.integers(dtype, 1)[0])]

    def byte(self) -> Any:
        return self.choice([np.uint8, np.int8])


def check(operator: str, draw: Callable[[Draw], Drawn], seed: int) -> None:
    """A drawn node of an operator, against onnxruntime."""
    drawn = draw(Draw(f"{operator} {seed}"))
    tolerance: dict[str, Any] = {} if drawn.close is None else {"rtol": drawn.close, "atol": drawn.close / 10}
    kwargs = {"outputs": drawn.outputs, "initializers": drawn.stored, "domain": "com.microsoft", **tolerance}
    run_node(operator, drawn.inputs, drawn.attrs, **kwargs)
