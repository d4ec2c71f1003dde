"""Collect the values that nodes of a protobuf use, including those that their subgraphs use."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in a node's attributes, but not the graphs nested in those."""
    for attribute in node.attribute:
        yield from ([attribute.g] if attribute.HasField("g") else [])
        yield from attribute.graphs


def taken(node: onnx.NodeProto) -> set[str]:
    """Return the names of a node's inputs and of all values that its subgraphs use, including their own."""
    return {name for name in node.input if name}.union(*map(uses, inner_graphs(node)))


def uses(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all values that the nodes of a graph use, and of its outputs."""
    return {value.name for value in graph.output}.union(*map(taken, graph.node))


def inner_uses(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all values that the subgraphs of a graph use."""
    return set[str]().union(*(uses(inner) for node in graph.node for inner in inner_graphs(node)))
