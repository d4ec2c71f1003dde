"""Single numbers that are parameters: they differ between the places that are alike.

A constant is the same in every copy of a block; a weight is not. So a number that scales or shifts a map, in a place
that occurs several times in the network, is learned if the numbers there differ, and are not such as a person types
(`3`, `1 / 6`, `0.044715`, `1 / sqrt(64)`). PaddleOCR's LearnableAffineBlock has two of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from onnxgen.graph.catalogue import is_a, known
from onnxgen.graph.element_types import FLOATS
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.traits import ADDS, SAME, SCALES
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored

LEAST = 3  # places that are alike
DIGITS = 6  # of a number that a person types; learned ones have more
DENOMINATOR, ROOT = 256, 4096  # of fractions, and of the numbers of which a person takes roots
_STEPS = 3  # back from a place, to tell it from others
Place = tuple[object, ...]


def varying(graph: ir.Graph) -> set[ir.Value]:
    """Return the stored tensors of one element that are parameters by their numbers."""
    places: dict[Place, list[ir.Value]] = {}
    for node in all_nodes(graph):
        for value, other in _numbers(node):
            places.setdefault((node.op_type, node.inputs.index(value), _made_by(other)), []).append(value)
    return {value for alike in places.values() if _are_learned(alike) for value in alike}


def _numbers(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield the single numbers that a node scales or shifts a map with, each with the map."""
    if len(node.inputs) != 2 or not (is_a(node, ADDS) or is_a(node, SCALES)):
        return
    for value, other in (node.inputs, reversed(node.inputs)):
        tensor, facts = stored(value), info(other) if other is not None else None
        if value is None or other is None or facts is None or tensor is None or tensor.size != 1:
            continue
        maker = other.producer()
        is_map = tensor.dtype in FLOATS and (facts.rank is None or facts.rank > 2) and stored(other) is None
        if is_map and maker is not None and not is_a(maker, SAME):  # a quantised map has a scale
            yield value, other


def _made_by(value: ir.Value | None, steps: int = _STEPS) -> Place:
    """Return the operators that make a value, back to the last layers, but a few steps at most."""
    node = value.producer() if value is not None else None
    if node is None or stored(value) is not None:
        return ("",)
    if steps == 0 or known(node).weights:
        return (node.op_type,)
    return (node.op_type, *(_made_by(v, steps - 1) for v in node.inputs if v is not None and stored(v) is None))


def _are_learned(values: list[ir.Value]) -> bool:
    numbers = [float(tensor.numpy().reshape(-1)[0]) for value in values if (tensor := stored(value)) is not None]
    typed = sum(map(is_typed, numbers))
    return len(values) >= LEAST and 2 * len(set(numbers)) > len(numbers) and 4 * typed <= len(numbers)


def is_typed(number: float) -> bool:
    """Return True for a number that a person may have written: of few digits, a fraction, a root, a power of two."""
    if not math.isfinite(number) or math.frexp(number)[0] in (0.5, -0.5):
        return True
    digits = np.format_float_scientific(np.float32(abs(number))).split("e")[0]
    if len(digits) <= DIGITS + 1:
        return True
    size, square = abs(number), number * number
    forms = ((size, DENOMINATOR), (square, ROOT), (size * math.pi, DENOMINATOR), (square * math.pi, DENOMINATOR))
    return any(_is_fraction(x, most) for x, most in forms)


def _is_fraction(x: float, most: int) -> bool:
    near = Fraction(x).limit_denominator(most)
    return near.numerator in (0, 1) and abs(float(near) - x) <= 2e-7 * x or abs(round(x) - x) <= 2e-7 * x
