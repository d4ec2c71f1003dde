"""Finds tied weights that an exporter's constant folding separated.

A language model's output layer often shares its matrix with the embedding. Exporters fold the transposition, and store
the transposed copy as another tensor without a name. Training would make the two diverge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from onnxgen.common.timing import WEIGHTS, stage
from onnxgen.scopes.origin import param_path
from onnxgen.weights.provenance import Source
from onnxgen.weights.strided import Array


class TiedTensors:
    """Finds unnamed matrices that are copies of named ones."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._named: dict[object, list[Source]] = defaultdict(list)
        self._by_look: dict[object, dict[object, list[Source]]] = {}  # filled on demand
        for source in sources:
            if len(source.shape) >= 2 and source.is_identity and _is_named(source):
                self._named[source.shape, source.dtype].append(source)

    def original(self, source: Source) -> Source | None:
        """Return the named matrix that this one is a copy of; None if it has a name itself, or is not a copy."""
        kind = source.shape, source.dtype
        if len(source.shape) < 2 or len(source.names) != 1 or _is_named(source) or kind not in self._named:
            return None
        if kind not in self._by_look:
            looks = self._by_look[kind] = defaultdict(list)
            for named in self._named[kind]:
                looks[look(named)].append(named)
        alike = self._by_look[kind].get(look(source), ())
        return next((found for found in alike if _is_copy(source, found)), None)


def _is_copy(source: Source, of: Source) -> bool:
    if source.label and source.label not in of.names:
        return False
    with stage(WEIGHTS):
        a, b = source.numpy(), of.numpy()
        same = bool(np.array_equal(a, b)) and bool((a != a.flat[:1]).any())  # zeros are equal by chance
    source.release()
    of.release()
    return same


def _is_named(source: Source) -> bool:
    return param_path(source.names[0]) is not None


def look(source: Source) -> object:
    """Return three corners of the first two axes, to tell most different matrices apart.

    Not a row, which is scattered over the whole file if the matrix is stored transposed.
    """
    with stage(WEIGHTS):
        return tuple(_corner(source, *ends).tobytes() for ends in ((0, 0), (0, -1), (-1, 0)))


def _corner(source: Source, *ends: int) -> Array:
    """Return the elements at these positions of the first axes, and at the first position of all others."""
    for axis, size in enumerate(source.shape):
        at = ends[axis] % size if axis < len(ends) and size else 0
        source = source.slice(axis, at, at + 1)
    return source.numpy()
