"""Find a cycle among the nodes of one graph. A graph whose nodes are only out of order has none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

import onnx

from onnxgen.common.names import printable
from onnxgen.reader.protos import inner_graphs, outer_uses

_MAX_NODES_SHOWN = 6  # nodes of a cycle that a message names


def find_cycle(nodes: Sequence[onnx.NodeProto]) -> str | None:
    """Return the names of nodes that form a cycle ("a, b, a"), or None if the nodes can be sorted.

    A node depends on the outer values that its subgraphs use, too.
    """
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    sorter = TopologicalSorter(
        {i: sorted({maker[n] for n in uses(node) if n in maker}) for i, node in enumerate(nodes)}
    )
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = [_name(nodes[i]) for i in error.args[1]]
        return ", ".join(cycle if len(cycle) <= _MAX_NODES_SHOWN else [*cycle[:_MAX_NODES_SHOWN], "..."])
    return None


def uses(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node takes from its graph: its inputs, and outer values that its subgraphs use."""
    yield from node.input
    for graph in inner_graphs(node):
        yield from outer_uses(graph)


def _name(node: onnx.NodeProto) -> str:
    return printable(node.name or next(iter(node.output), "")) or "(unnamed)"
