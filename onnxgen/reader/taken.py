"""The values that nodes of a protobuf take, those of graphs within them included."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node's attributes, not those within them."""
    for attribute in node.attribute:
        yield from ([attribute.g] if attribute.HasField("g") else [])
        yield from attribute.graphs


def taken(node: onnx.NodeProto) -> set[str]:
    """What a node takes, and what the graphs within it use (their own values among it)."""
    return {name for name in node.input if name}.union(*map(uses, inner_graphs(node)))


def uses(graph: onnx.GraphProto) -> set[str]:
    """What the nodes of a graph take, and its results."""
    return {value.name for value in graph.output}.union(*map(taken, graph.node))


def inner_uses(graph: onnx.GraphProto) -> set[str]:
    """What the graphs within a graph use."""
    return set[str]().union(*(uses(inner) for node in graph.node for inner in inner_graphs(node)))
