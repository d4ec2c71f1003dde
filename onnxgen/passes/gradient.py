"""Give every Gradient (ai.onnx.preview.training) the graph that it differentiates, as the attribute `body`.

The operator names values of the graph around it: `y`, and the variables `xs` and `zs` that y depends on. Its inputs are
values for the variables, and may differ from the graph's values of these names. So the nodes between are copied, with
the variables as inputs of the copy. `y` may be the result of another Gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import WRITER, OnnxgenError, Problem
from onnxgen.graph.nodes import all_nodes, subgraphs, told
from onnxgen.options import Options
from onnxgen.shapes.bodies import TRAINING


def gradient(model: ir.Model, options: Options) -> None:
    """Rewrite every Gradient.

    Raises:
        OnnxgenError: it names a value that its graph does not have, or y does not depend on the variables.
    """
    _graph(model.graph, [])


def _graph(graph: ir.Graph, around: list[ir.Graph]) -> None:
    graphs = [graph, *around]
    for node in list(graph):
        for inner in subgraphs(node):
            _graph(inner, graphs)
        if (node.domain, node.op_type) == (TRAINING, "Gradient"):
            _rewrite(node, graphs)


def _rewrite(node: ir.Node, graphs: list[ir.Graph]) -> None:
    """Rewrite one Gradient. `graphs`: the graph of the node, then those around it."""
    names = [*node.attributes.get_strings("xs", ()), *node.attributes.get_strings("zs", ())]
    variables = [_named(node, name, graphs) for name in names]
    if len(variables) != len(node.inputs) or None in node.inputs:
        raise _error(node, f"the node has {len(node.inputs)} inputs for {len(variables)} variables")
    y = _named(node, node.attributes["y"].as_string(), graphs)
    body = _Copy(variables).graph(variables, _between(node, y, variables), [y])
    node.attributes.add(ir.AttrGraph("body", body))


class _Copy:
    """Copies nodes and their values. Values from outside are not copied."""

    def __init__(self, variables: Iterable[ir.Value]) -> None:
        self.values = {v: ir.Value(name=v.name, type=v.type, shape=v.shape) for v in variables}

    def graph(self, inputs: Sequence[ir.Value], nodes: Iterable[ir.Node], outputs: Sequence[ir.Value]) -> ir.Graph:
        copies = [self.node(node) for node in nodes]
        results = [self.values.get(v, v) for v in outputs]
        return ir.Graph([self.values[v] for v in inputs], results, nodes=copies)

    def node(self, node: ir.Node) -> ir.Node:
        attributes = [
            ir.AttrGraph(name, self.inner(a.as_graph())) if a.type == ir.AttributeType.GRAPH else a
            for name, a in node.attributes.items()
        ]
        inputs = [v if v is None else self.values.get(v, v) for v in node.inputs]
        count = len(node.outputs)
        copy = ir.Node(node.domain, node.op_type, inputs, attributes, num_outputs=count, version=node.version)
        for old, new in zip(node.outputs, copy.outputs):
            new.name, new.type, new.shape = old.name, old.type, old.shape
            self.values[old] = new
        return copy

    def inner(self, graph: ir.Graph) -> ir.Graph:
        """Copy a subgraph with its initializers."""
        for value in (*graph.inputs, *graph.initializers.values()):
            new = ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)
            self.values[value] = new
        copy = self.graph(graph.inputs, graph, graph.outputs)
        for value in graph.initializers.values():
            copy.initializers.add(self.values[value])
        return copy


def _between(node: ir.Node, y: ir.Value, variables: list[ir.Value]) -> list[ir.Node]:
    """Return the nodes on the way from the variables to y, in the graph's order."""
    ends = {v.producer() for v in variables}
    dependent = set(variables)
    leading: list[ir.Node] = []
    for one in y.graph or ():
        if one not in ends and not dependent.isdisjoint(_read(one)):
            dependent.update(one.outputs)
            leading.append(one)
    needed = {y}
    between = []
    for one in reversed(leading):
        if not needed.isdisjoint(one.outputs):
            between.append(one)
            needed.update(_read(one))
    if y not in variables and not between:
        raise _error(node, f"{printable(y.name or '')} does not depend on the variables of the Gradient")
    return between[::-1]


def _read(node: ir.Node) -> list[ir.Value]:
    """Return the values that a node and its subgraphs read."""
    inner = [v for graph in subgraphs(node) for each in all_nodes(graph) for v in each.inputs]
    return [v for v in (*node.inputs, *inner) if v is not None]


def _named(node: ir.Node, name: str, graphs: list[ir.Graph]) -> ir.Value:
    """Return the value of that name in the innermost graph that has one."""
    for graph in graphs:
        outputs = (output for one in graph for output in one.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *outputs):
            if value.name == name:
                return value
    raise _error(node, f"the graph has no value {printable(name)!r}")


def _error(node: ir.Node, what: str) -> OnnxgenError:
    return OnnxgenError(Problem(what, told(node), f"{TRAINING}.Gradient", 1, WRITER))
