"""Finds the tied weights that an exporter's constant folding set apart.

A language model's output layer often shares its matrix with the embedding. Exporters fold the transposition away, and
store the turned copy as one more tensor without a name; trained as it stands, the two would drift apart.
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
    """Matrices without a name that hold, element by element, what a named one holds."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._named: dict[object, list[Source]] = defaultdict(list)
        self._by_look: dict[object, dict[object, list[Source]]] = {}  # made when a matrix of that kind asks
        for source in sources:
            if len(source.shape) >= 2 and source.is_identity and _is_named(source):
                self._named[source.shape, source.dtype].append(source)

    def original(self, source: Source) -> Source | None:
        """The named matrix that this one is a copy of; None if it has a name itself, or is no copy."""
        kind = source.shape, source.dtype
        if len(source.shape) < 2 or len(source.names) != 1 or _is_named(source) or kind not in self._named:
            return None
        if kind not in self._by_look:
            looks = self._by_look[kind] = defaultdict(list)
            for named in self._named[kind]:
                looks[_look(named)].append(named)
        alike = self._by_look[kind].get(_look(source), ())
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


def _look(source: Source) -> object:
    """What equal matrices have in common, and others hardly: three corners of the first two axes.

    Not a row, which in a matrix that is stored transposed lies all over the file.
    """
    with stage(WEIGHTS):
        return tuple(_corner(source, *ends).tobytes() for ends in ((0, 0), (0, -1), (-1, 0)))


def _corner(source: Source, *ends: int) -> Array:
    """The elements at these places of the first axes, and the first of each other."""
    for axis, size in enumerate(source.shape):
        at = ends[axis] % size if axis < len(ends) and size else 0
        source = source.slice(axis, at, at + 1)
    return source.numpy()
