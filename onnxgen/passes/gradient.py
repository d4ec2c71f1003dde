"""Gradient (ai.onnx.preview.training) gets what it differentiates as a graph of its own, the attribute `body`.

The operator names values of the graph around it: `y`, and the variables `xs` and `zs` of which it is a function. Its
inputs are the variables' values, which may be others than those that the graph has under these names. So the nodes
between are copied, with the variables as the inputs of the copy. `y` may be another Gradient's result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import WRITER, OnnxgenError, Problem
from onnxgen.graph.nodes import all_nodes, told
from onnxgen.options import Options
from onnxgen.shapes.bodies import TRAINING


def gradient(model: ir.Model, options: Options) -> None:
    """Rewrite every Gradient.

    Raises:
        OnnxgenError: it names a value that its graph does not have.
    """
    _graph(model.graph, [])


def _graph(graph: ir.Graph, around: list[ir.Graph]) -> None:
    graphs = [graph, *around]
    for node in list(graph):
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                _graph(attribute.as_graph(), graphs)
        if (node.domain, node.op_type) == (TRAINING, "Gradient"):
            _rewrite(node, graphs)


def _rewrite(node: ir.Node, graphs: list[ir.Graph]) -> None:
    """`graphs`: the node's own, and those around it."""
    names = [list(node.attributes[key].value) if key in node.attributes else [] for key in ("xs", "zs")]
    variables = [_named(node, name, graphs) for name in (*names[0], *names[1])]
    if len(variables) != len(node.inputs) or None in node.inputs:
        raise _error(node, f"the node has {len(node.inputs)} inputs for {len(variables)} variables")
    y = _named(node, node.attributes["y"].value, graphs)
    body = _Copy(variables).graph(variables, _between(node, y, variables), [y])
    node.attributes.add(ir.AttrGraph("body", body))


class _Copy:
    """Nodes once more, on new values; what comes from outside stays what it is."""

    def __init__(self, variables: Iterable[ir.Value]) -> None:
        self.values = {v: ir.Value(name=v.name, type=v.type, shape=v.shape) for v in variables}

    def graph(self, inputs: Sequence[ir.Value], nodes: Iterable[ir.Node], outputs: Sequence[ir.Value]) -> ir.Graph:
        copies = [self.node(node) for node in nodes]
        made = [self.values.get(v, v) for v in outputs]
        return ir.Graph([self.values[v] for v in inputs], made, nodes=copies)

    def node(self, node: ir.Node) -> ir.Node:
        attributes = [
            ir.AttrGraph(name, self.inner(a.as_graph())) if a.type == ir.AttributeType.GRAPH else a
            for name, a in node.attributes.items()
        ]
        inputs = [v if v is None else self.values.get(v, v) for v in node.inputs]
        count = len(node.outputs)
        made = ir.Node(node.domain, node.op_type, inputs, attributes, num_outputs=count, version=node.version)
        for old, new in zip(node.outputs, made.outputs):
            new.name, new.type, new.shape = old.name, old.type, old.shape
            self.values[old] = new
        return made

    def inner(self, graph: ir.Graph) -> ir.Graph:
        """A subgraph, with what it stores."""
        for value in (*graph.inputs, *graph.initializers.values()):
            new = ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)
            self.values[value] = new
        made = self.graph(graph.inputs, graph, graph.outputs)
        for value in graph.initializers.values():
            made.initializers.add(self.values[value])
        return made


def _between(node: ir.Node, y: ir.Value, variables: list[ir.Value]) -> list[ir.Node]:
    """The nodes that make y of the variables, in the graph's order. What else they read stays outside."""
    leads: dict[ir.Node, bool] = {}
    ends = {v.producer() for v in variables}
    graph = y.graph
    for one in graph or ():
        inputs = [*one.inputs, *_captured(one)]
        leads[one] = one not in ends and any(v is not None and (v in variables or _made_by(v, leads)) for v in inputs)
    needed = {y}
    found = []
    for one in reversed(list(leads)):
        if leads[one] and not needed.isdisjoint(one.outputs):
            found.append(one)
            needed.update(v for v in (*one.inputs, *_captured(one)) if v is not None)
    if y not in variables and not found:
        raise _error(node, f"{printable(y.name or '')} does not depend on the variables of the Gradient")
    return found[::-1]


def _made_by(value: ir.Value, leads: dict[ir.Node, bool]) -> bool:
    node = value.producer()
    return node is not None and leads.get(node, False)


def _captured(node: ir.Node) -> list[ir.Value | None]:
    """What a node's subgraphs read."""
    graphs = [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
    return [v for graph in graphs for inner in all_nodes(graph) for v in inner.inputs]


def _named(node: ir.Node, name: str, graphs: list[ir.Graph]) -> ir.Value:
    """The value of that name, in the innermost graph that has it."""
    for graph in graphs:
        made = (output for one in graph for output in one.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *made):
            if value.name == name:
                return value
    raise _error(node, f"the graph has no value {printable(name)!r}")


def _error(node: ir.Node, what: str) -> OnnxgenError:
    return OnnxgenError(Problem(what, told(node), f"{TRAINING}.Gradient", 1, WRITER))
