"""Nodes of operators, of attributes and of stored weights, that ONNX's own tests do not have."""

from __future__ import annotations

from tests.gradients.cases import Case
from tests.gradients.made import classical, experts, fused, gated, quantized, standard, steps


def made() -> list[Case]:
    """All of them."""
    return [case for room in (standard, steps, classical, experts, fused, gated, quantized) for case in room.cases()]
