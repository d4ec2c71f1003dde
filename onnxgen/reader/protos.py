"""Walk and edit the protobuf of an ONNX model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import onnx


def opset_of(model: onnx.ModelProto, default: int = 1) -> int:
    """Return the version of ai.onnx that a model imports."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default)


def put(field: Any, items: Sequence[Any]) -> None:
    """Set a repeated field to these items, which may come from the field itself."""
    copies = [type(item).FromString(item.SerializeToString()) for item in items]
    del field[:]
    field.extend(copies)


# ---- nodes, graphs and tensors ---------------------------------------------------------------------------------------


def graphs_of(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    yield from ([attribute.g] if attribute.HasField("g") else [])
    yield from attribute.graphs


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in a node's attributes, but not the graphs nested in those."""
    for attribute in node.attribute:
        yield from graphs_of(attribute)


def with_inner(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes, each followed by those of its subgraphs."""
    for node in nodes:
        yield node
        for graph in inner_graphs(node):
            yield from with_inner(graph.node)


def every_node(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of a model: of its graph, of subgraphs and of local functions."""
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        yield from with_inner(nodes)


def tensors_of(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor that may be external: initializers and attributes, of functions too."""
    yield from model.graph.initializer
    for node in every_node(model):
        for attribute in node.attribute:
            yield from ([attribute.t] if attribute.HasField("t") else [])
            yield from attribute.tensors
        for graph in inner_graphs(node):
            yield from graph.initializer


# ---- names of values -------------------------------------------------------------------------------------------------


def taken(node: onnx.NodeProto) -> set[str]:
    """Return the names of a node's inputs and of all values that its subgraphs use, including their own."""
    return {name for name in node.input if name}.union(*map(uses, inner_graphs(node)))


def uses(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all values that the nodes of a graph use, and of its outputs."""
    return {value.name for value in graph.output}.union(*map(taken, graph.node))


def outer_uses(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the values that a graph takes from the graphs around it."""
    names = {value.name for value in graph.output}
    for node in graph.node:
        names.update((name for name in node.input if name), *map(outer_uses, inner_graphs(node)))
    return names.difference(declared(graph))


def declared(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[str]:
    """Yield the names of the values that a graph or a function has itself, in order; some twice."""
    if isinstance(graph, onnx.FunctionProto):
        yield from graph.input
    else:
        yield from (value.name for value in graph.input)
        yield from (tensor.name for tensor in graph.initializer)
        yield from (sparse.values.name for sparse in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)


def inner_uses(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all values that the subgraphs of a graph use."""
    return set[str]().union(*(uses(inner) for node in graph.node for inner in inner_graphs(node)))
