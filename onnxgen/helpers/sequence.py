"""Lists of tensors with positions that are computed at run time."""

from __future__ import annotations

from torch import Tensor


def sequence_insert(sequence: list[Tensor], tensor: Tensor, position: int) -> list[Tensor]:
    """ONNX SequenceInsert: a new list with `tensor` before `position`."""
    return [*sequence[:position], tensor, *sequence[position:]]


def sequence_erase(sequence: list[Tensor], position: int) -> list[Tensor]:
    """ONNX SequenceErase: a new list without the element at `position`."""
    position = position % len(sequence)
    return [*sequence[:position], *sequence[position + 1 :]]
