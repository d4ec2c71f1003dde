"""Nodes of operators, of attributes and of stored weights, that ONNX's own tests do not have."""

from __future__ import annotations

from tests.gradients.cases import Case
from tests.gradients.made import (
    classical,
    documented,
    experts,
    fused,
    gated,
    ordered,
    packed,
    quantized,
    standard,
    steps,
)


def made() -> list[Case]:
    """All of them."""
    rooms = (standard, steps, classical, experts, fused, gated, quantized, documented, ordered, packed)
    return [case for room in rooms for case in room.cases()]
