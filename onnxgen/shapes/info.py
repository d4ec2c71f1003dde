"""Facts about a value that are known before anything runs: dtype, dims, and elements of small integer tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.graph.annotations import INFO
from onnxgen.shapes.dims import Dim, symbols

Shape = tuple[Dim, ...]

MOST_ELEMENTS = 2**63


@dataclass(frozen=True)
class Info:
    """Facts about one value, proven from the graph and never guessed.

    Attributes:
        dtype: element type; None where unknown (strings are `ir.DataType.STRING`).
        shape: one `Dim` (int or symbolic) an axis; None where the rank is unknown.
        data: the elements, where they are known at generation. A numeric array for a constant; an object array of
            `Dim` for an integer tensor computed from shapes. Never there for trainable values.
        kind: "tensor"; "sequence" or "optional", where `dtype` and `shape` are those of the elements; "map", or "maps"
            for a sequence of maps, where `dtype` is that of the values.
        key: the type of a map's keys.
    """

    dtype: ir.DataType | None = None
    shape: Shape | None = None
    data: NDArray[np.generic] | None = None
    kind: str = "tensor"
    key: ir.DataType | None = None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def constant(self) -> NDArray[np.generic] | None:
        """Return the elements if they are all numbers (nothing symbolic), else None."""
        if self.data is None or self.data.dtype != object:
            return self.data
        if all(isinstance(d, int) for d in self.data.flat):
            return self.data.astype(np.int64)
        return None


UNKNOWN = Info()


def info(value: ir.Value | None) -> Info:
    """Return the facts that `propagate` recorded for a value (`UNKNOWN` if none)."""
    found = None if value is None else INFO.get(value)
    return UNKNOWN if found is None else found


def infos(values: Iterable[ir.Value]) -> list[Info]:
    """Return `info` of each value."""
    return [found or UNKNOWN for found in map(INFO.get, values)]


def named_dims(value: ir.Value) -> set[str]:
    """Return the named dims that occur in a value's shape and elements."""
    facts = info(value)
    elements = facts.data.flat if facts.data is not None and facts.data.dtype == object else ()
    return {name for dim in (*(facts.shape or ()), *elements) for name in symbols(dim)}


def shown_dims(value: ir.Value) -> set[str]:
    """Return the named dims that first appear in this value. Sizes may depend on it even if no tensor does."""
    dims = info(value).shape or ()
    found = (s for dim in dims for s in symbols(dim).values())
    return {s.name for s in found if s.source is not None and s.source[0] == value.name}


def set_info(value: ir.Value, facts: Info) -> None:
    """Record facts about a value. Dims with more elements than int64 can count are impossible and become unknown."""
    size = 1
    for dim in facts.shape or ():
        if isinstance(dim, int) and dim:
            size *= dim
    INFO.set(value, facts if size < MOST_ELEMENTS else replace(facts, shape=None, data=None))
