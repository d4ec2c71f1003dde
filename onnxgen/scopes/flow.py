"""The graph as numbered vertices: the nodes that compute at run time, in the file's order, and the dataflow."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxgen.graph.annotations import is_trained
from onnxgen.graph.catalogue import is_a, known
from onnxgen.graph.element_types import FLOATS
from onnxgen.graph.nodes import subgraphs
from onnxgen.graph.traits import RANDOM
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored


class Flow:
    """The vertices of a graph.

    Attributes:
        nodes: the vertices: nodes that compute something from inputs.
        fixed: the other nodes, which only compute with stored tensors and known sizes.
        before, after: for each vertex, those whose values it takes (also in subgraphs), and those that take its values.
        inputs: for each graph input, the vertices that take it.
        weighs: for each vertex, True if it is a layer: it has a stored matrix (or tensor of higher rank).
        thick: for each vertex, True if it is or depends on a layer, and not only on masks and positions.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.nodes: list[ir.Node] = []
        self.fixed: list[ir.Node] = []
        constant = set(graph.initializers.values())
        for node in graph:
            if _is_fixed(node, constant):
                self.fixed.append(node)
                constant.update(node.outputs)
            else:
                self.nodes.append(node)
        self._constant = constant
        index = self._index = {output: i for i, node in enumerate(self.nodes) for output in node.outputs}
        self.before = [list(dict.fromkeys(index[v] for v in taken(node) if v in index)) for node in self.nodes]
        self.after: list[list[int]] = [[] for _ in self.nodes]
        for i, sources in enumerate(self.before):
            for j in sources:
                self.after[j].append(i)
        users: dict[ir.Value, list[int]] = {value: [] for value in graph.inputs if value not in constant}
        for i, node in enumerate(self.nodes):
            for value in set(taken(node)):
                if value in users:
                    users[value].append(i)
        self.inputs = list(users.values())
        self.weighs = [self._has_matrix(node) for node in self.nodes]
        self.thick = list(self.weighs)
        for i, before in enumerate(self.before):
            self.thick[i] = self.thick[i] or any(self.thick[j] for j in before)

    def _has_matrix(self, node: ir.Node) -> bool:
        at = known(node).matrix
        if at is not None:
            value = node.inputs[at] if at < len(node.inputs) else None
            is_table = node.op_type != "Gather" or (info(value).dtype in FLOATS and (info(value).rank or 0) > 1)
            return value in self._constant and is_table
        return any(v in self._constant and _is_matrix(v) for v in node.inputs if v is not None)

    def operands(self, i: int) -> list[ir.Value]:
        """Return the inputs of a vertex that are computed."""
        return [v for v in self.nodes[i].inputs if v is not None and v not in self._constant]

    def maker(self, value: ir.Value | None) -> int | None:
        """Return the vertex that makes a value."""
        return None if value is None else self._index.get(value)


def taken(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node takes, including those that its subgraphs take from outside."""
    pending = [node]
    while pending:
        inner = pending.pop()
        yield from (v for v in inner.inputs if v is not None)
        for graph in subgraphs(inner):
            yield from graph.outputs
            pending.extend(graph)


def _is_fixed(node: ir.Node, constant: set[ir.Value]) -> bool:
    if all(not o.name or info(o).data is not None or stored(o) is not None for o in node.outputs):
        return True
    return bool(node.inputs) and not is_a(node, RANDOM) and all(v in constant for v in taken(node))


def _is_matrix(value: ir.Value) -> bool:
    facts = info(value)
    dims = [d for d in facts.shape or () if d != 1]
    return facts.dtype in FLOATS and len(dims) > 1 and is_trained(value)
