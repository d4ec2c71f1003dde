"""Finds the tied weights that an exporter's constant folding set apart.

A language model's output layer often shares its matrix with the embedding. Exporters fold the transposition away, and
store the turned copy as one more tensor without a name; trained as it stands, the two would drift apart.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from onnxgen.reader.origin import param_path
from onnxgen.stages import WEIGHTS, stage
from onnxgen.wayback import Source


class Twins:
    """Matrices without a name that hold, element by element, what a named one holds."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._named: dict[object, Source] = {}
        for source in sources:
            if len(source.shape) >= 2 and source.is_identity and _is_named(source):
                self._named.setdefault(_look(source), source)

    def original(self, source: Source) -> Source | None:
        """The named matrix that this one is a copy of; None if it has a name itself, or is no copy."""
        if len(source.shape) < 2 or len(source.names) != 1 or _is_named(source):
            return None
        found = self._named.get(_look(source))
        if found is None or (source.label and source.label not in found.names):
            return None
        with stage(WEIGHTS):
            a, b = source.numpy(), found.numpy()
            same = bool(np.array_equal(a, b)) and bool((a != a.flat[:1]).any())  # zeros are equal by chance
        source.release()
        found.release()
        return found if same else None


def _is_named(source: Source) -> bool:
    return param_path(source.names[0]) is not None


def _look(source: Source) -> object:
    """What equal matrices have in common, and others hardly: shape, type and the first row."""
    with stage(WEIGHTS):  # a tensor in a protobuf is copied for it
        return source.shape, source.dtype, source.slice(0, 0, 1).numpy().tobytes()
