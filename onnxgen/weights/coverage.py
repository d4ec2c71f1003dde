"""Which elements of a stored tensor its pieces cover."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from onnxgen.weights.strided import Axis, Piece, merged, window


class Covered:
    """Tracks which elements of one ONNX tensor are covered, in cells as large as the edges of the pieces allow."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        size = max(math.prod(pieces[0].tensor.shape.numpy()), 1)  # an empty tensor has one cell that must be covered
        self.grain = size
        for piece in pieces:
            *outer, (run, _) = _runs(piece)
            self.grain = math.gcd(self.grain, piece.offset, run, *(stride for _, stride in outer))
        self.cells = np.zeros(size // self.grain, bool)

    @property
    def all(self) -> bool:
        return bool(self.cells.all())

    def add(self, piece: Piece) -> tuple[bool, bool]:
        """Cover a piece. Returns two answers: if any of it was not covered before, and if any was."""
        *outer, (run, _) = _runs(piece)
        atoms = [(size, stride // self.grain) for size, stride in outer] + [(run // self.grain, 1)]
        cells = window(self.cells, piece.offset // self.grain, tuple(atoms), write=True) if run else self.cells
        answer = not cells.all(), bool(cells.any())
        cells[...] = True
        return answer


def covers(pieces: Sequence[Piece]) -> bool:
    """Return True if the pieces together cover their whole ONNX tensor."""
    covered = Covered(pieces)
    for piece in pieces:
        covered.add(piece)
    return covered.all


def _runs(piece: Piece) -> Axis:
    """Return the piece's atoms by falling stride. The last is its contiguous run of stride 1 (size 0: no elements)."""
    if 0 in piece.shape:
        return ((0, 1),)
    atoms = merged(sorted(itertools.chain(*piece.axes), key=lambda atom: -atom[1]))
    return atoms if atoms and atoms[-1][1] == 1 else (*atoms, (1, 1))
