"""Where the trained layers of a graph end: the raw maps, and the nodes behind them."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnxgen.graph.annotations import is_trained
from onnxgen.graph.catalogue import is_a, known
from onnxgen.graph.nodes import subgraphs
from onnxgen.graph.traits import ADDS, NORM, PASSES_ON, SCALES, SIZES
from onnxgen.weights.stored import stored


def raw_values(graph: ir.Graph) -> list[ir.Value]:
    """Return the last values that trained layers make, in the order of the graph.

    `onnxgen.passes.trainable` must have run.
    """
    reached, found = set[ir.Value](), list[ir.Value]()
    todo = list(graph.outputs)
    while todo:
        value = todo.pop()
        node = value.producer()
        if value in reached or node is None:
            continue
        reached.add(value)
        if is_layer(node):
            found.append(value)
        elif not is_a(node, SIZES):
            todo.extend(given for given in node.inputs if given is not None)
            todo.extend(given for inner in subgraphs(node) for given in _captured(inner))
    order = {node: number for number, node in enumerate(graph)}
    return sorted(found, key=lambda value: order[value.producer()])  # type: ignore[index]


def is_layer(node: ir.Node) -> bool:
    """Return True for a layer with trained weights, or a trained bias or scale of its channels."""
    trained = [index for index, value in enumerate(node.inputs) if value is not None and _is_trained(value)]
    if any(index in known(node).weights for index in trained) or (trained and is_a(node, NORM)):
        return True
    if not is_a(node, ADDS, SCALES) or len(node.inputs) != 2 or len(trained) != 1:
        return False
    tensor, data = stored(node.inputs[trained[0]]), node.inputs[1 - trained[0]]
    producer = None if data is None else data.producer()
    if tensor is None or producer is None:
        return False
    shape = tensor.shape.numpy()
    if producer.op_type == "MatMul":
        return len(shape) == 1
    return is_layer(producer) and len(shape) >= 3 and tuple(shape[-2:]) == (1, 1)


def _is_trained(value: ir.Value) -> bool:
    """Return True for a trained stored tensor, also behind nodes that only pass it on."""
    for _ in range(8):
        node = value.producer()
        if is_trained(value) or node is None or not is_a(node, PASSES_ON) or node.inputs[0] is None:
            break
        value = node.inputs[0]
    return is_trained(value)


def behind(raw: Iterable[ir.Value], graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes that the outputs need beside the raw values, in the order of the graph."""
    ends, needed = set(raw), set[ir.Value](graph.outputs)
    found = []
    for node in reversed(graph):
        if needed.isdisjoint(node.outputs) or not ends.isdisjoint(node.outputs):
            continue
        found.append(node)
        if not is_a(node, SIZES):
            needed.update(given for given in node.inputs if given is not None)
            needed.update(given for inner in subgraphs(node) for given in _captured(inner))
    return found[::-1]


def _captured(graph: ir.Graph) -> list[ir.Value]:
    """Return the values that a subgraph takes, those of its own included."""
    found = [value for node in graph for value in node.inputs if value is not None]
    return found + [value for node in graph for inner in subgraphs(node) for value in _captured(inner)]
