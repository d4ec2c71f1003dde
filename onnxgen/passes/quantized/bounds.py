"""A lower bound of a value's elements, from the operators that produce it."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxgen.graph.catalogue import is_a, known
from onnxgen.graph.traits import AVERAGES, FILLS, MOVES, PICKS, SAME
from onnxgen.weights.stored import stored

MAX_DEPTH = 16  # producers in a row


def least(value: ir.Value | None, depth: int = MAX_DEPTH) -> float:
    """Return a lower bound of a value's elements, -inf if none is known."""
    if value is None or depth == 0:
        return -math.inf
    node, tensor = value.producer(), stored(value)
    if tensor is not None:
        return float(tensor.numpy().reshape(-1)[0]) if tensor.size == 1 else -math.inf
    if node is None or node.domain != "":
        return -math.inf
    facts = known(node)
    rule = facts.rules.bound
    if facts.least is not None or rule is None and not is_a(node, MOVES, SAME, PICKS, AVERAGES):
        return -math.inf if facts.least is None else facts.least
    bounds = [least(v, depth - 1) for i, v in enumerate(node.inputs) if i in facts.data and v is not None]
    return rule(node, bounds) if rule is not None else min(bounds + [0.0] * is_a(node, FILLS))
