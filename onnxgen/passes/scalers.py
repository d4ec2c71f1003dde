"""Tells the scaler of an input (a mean, a deviation, its inverse) from a trained affine."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

from onnxgen.graph.catalogue import is_a
from onnxgen.graph.element_types import FLOATS
from onnxgen.graph.traits import ADDS, ELEMENTWISE, JOINS, PASSES_ON, SAME, SCALES, STANDARDISES, STRIDES, VIEW
from onnxgen.weights.stored import stored

_FAR = 8  # steps between an input and its scaler, and operators that compute it


def scales_input(value: ir.Value, tensor: ir.TensorProtocol, inputs: Collection[ir.Value]) -> bool:
    """Return True if a stored vector shifts or scales an input of the graph, and a layer with weights follows.

    A table with several axes may be an embedding of places that is added to the input. Without a layer behind it, a
    vector may be the weights of a product that is written as an elementwise one and a sum.
    """
    if sum(size != 1 for size in tensor.shape) > 1:
        return False
    for node, index in _uses(value):
        steps = is_a(node, STANDARDISES) and index > 0
        data = node.inputs[0] if steps else node.inputs[1 - index] if len(node.inputs) == 2 else None
        if (steps or is_a(node, ADDS, SCALES)) and _is_input(data, inputs) and _precedes_layer(node):
            return True
    return False


def _uses(value: ir.Value, depth: int = 0) -> Iterator[tuple[ir.Node, int]]:
    """Yield the uses of a stored tensor, and of what is computed from it and other stored tensors alone."""
    for use in value.uses():
        others = [v for i, v in enumerate(use.node.inputs) if i != use.idx and v is not None]
        if depth < _FAR and is_a(use.node, ELEMENTWISE, PASSES_ON) and all(_is_stored(v) for v in others):
            for output in use.node.outputs:
                yield from _uses(output, depth + 1)
        else:
            yield use.node, use.idx


def _is_stored(value: ir.Value | None, depth: int = 0) -> bool:
    """Return True if a value is stored, or computed from stored tensors alone, elementwise."""
    if stored(value) is not None:
        return True
    node = None if value is None else value.producer()
    if node is None or depth == _FAR or not is_a(node, ELEMENTWISE, PASSES_ON):
        return False
    return all(_is_stored(v, depth + 1) for v in node.inputs if v is not None)


def _is_input(value: ir.Value | None, inputs: Collection[ir.Value], depth: int = 0) -> bool:
    """Return True for an input of the graph, perhaps moved, joined, and shifted or scaled by stored tensors."""
    if value in inputs:
        return True
    node = None if value is None else value.producer()
    if node is None or depth == _FAR:
        return False
    if is_a(node, JOINS):
        return all(_is_input(v, inputs, depth + 1) for v in node.inputs)
    if is_a(node, ADDS, SCALES):
        rest = [v for v in node.inputs if not _is_stored(v)]
        return len(rest) == 1 and _is_input(rest[0], inputs, depth + 1)
    return is_a(node, VIEW, STRIDES, SAME, STANDARDISES) and _is_input(node.inputs[0], inputs, depth + 1)


def _precedes_layer(node: ir.Node) -> bool:
    """Return True if a node that takes stored numbers, and is not elementwise, depends on this one."""
    waiting, seen = [node], {node}
    while waiting:
        for use in (use for output in waiting.pop().outputs for use in output.uses()):
            layer = not is_a(use.node, ELEMENTWISE, STANDARDISES, PASSES_ON)
            if layer and any(_is_weight(v) for i, v in enumerate(use.node.inputs) if i != use.idx):
                return True
            if use.node not in seen:
                seen.add(use.node)
                waiting.append(use.node)
    return False


def _is_weight(value: ir.Value | None) -> bool:
    """Return True for stored floating-point numbers, perhaps moved."""
    for _ in range(_FAR):
        if value is None:
            return False
        if (tensor := stored(value)) is not None:
            return tensor.dtype in FLOATS and tensor.size > 1
        node = value.producer()
        if node is None or not is_a(node, PASSES_ON):
            return False
        value = node.inputs[0]
    return False
