"""A record of a graph at one moment. Passes change graphs in place, so the graph before a pass is recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from onnxgen.graph.annotations import is_trained
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.traits import RANDOM, SIZES
from onnxgen.shapes.info import Info, info

STANDARD = ("", "ai.onnx")
GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


@dataclass(frozen=True, slots=True)
class Made:
    """A node as it was: its operator, its inputs and its outputs."""

    node: ir.Node
    domain: str
    op: str
    version: int
    attributes: dict[str, ir.Attr]
    inputs: tuple[ir.Value | None, ...]
    outputs: tuple[ir.Value, ...]
    graph: ir.Graph | None
    name: str
    bodies: tuple[ir.Graph, ...]
    gives_sizes: bool  # its result depends on sizes alone
    moves: bool  # its result differs from run to run, or depends on a graph of its own

    def is_of(self, node: ir.Node) -> bool:
        """Return True if the node is as it was: passes give no node other outputs."""
        return self.inputs == node.inputs and self.attributes == node.attributes.data and self.op == node.op_type

    def computes_as(self, other: Made) -> bool:
        """Return True if both compute the same function, of inputs that may differ."""
        return (
            (self.op, self.domain, self.version) == (other.op, other.domain, other.version)
            and [v is None for v in self.inputs] == [v is None for v in other.inputs]
            and len(self.outputs) == len(other.outputs)
            and self.graph is other.graph
            and self.attributes.keys() == other.attributes.keys()
            and all(a is other.attributes[name] for name, a in self.attributes.items())
        )

    def input(self, index: int) -> ir.Value | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def attribute(self, name: str, default: Any) -> Any:
        """Return the value of an attribute, or a default if the node does not have it."""
        return self.attributes[name].value if name in self.attributes else default


@dataclass
class Picture:
    """All graphs of a model at one moment.

    Attributes:
        nodes: in topological order.
        maker: the node that makes a value.
        graphs: inputs and outputs of the main graph and of each subgraph.
        members: the nodes of each graph.
        stored: the tensors of the file, and those that passes added.
        moving: values that depend on the elements of the network's inputs or trained tensors; all others are computed
            from constants and sizes.
        given: the inputs of all graphs.
        facts: what was known of each value.
        names: the name of each value.
    """

    nodes: dict[ir.Node, Made] = field(default_factory=dict)
    maker: dict[ir.Value | None, Made] = field(default_factory=dict)
    graphs: dict[ir.Graph, tuple[tuple[ir.Value, ...], tuple[ir.Value, ...]]] = field(default_factory=dict)
    members: dict[ir.Graph, list[Made]] = field(default_factory=dict)
    stored: dict[ir.Value, ir.TensorProtocol] = field(default_factory=dict)
    moving: set[ir.Value] = field(default_factory=set)
    given: set[ir.Value] = field(default_factory=set)
    facts: dict[ir.Value, Info] = field(default_factory=dict)
    names: dict[ir.Value, str] = field(default_factory=dict)

    def is_known(self, value: ir.Value) -> bool:
        """Return True if a value has known elements and no node computes it."""
        return value not in self.maker and value in self.facts and self.facts[value].data is not None

    def note(self, value: ir.Value) -> None:
        if value not in self.facts:
            self.facts[value], self.names[value] = info(value), value.name or ""


def take(model: ir.Model, last: Picture | None = None) -> Picture:
    """Record a model. Takes time linear in the number of its nodes; less if most are as in the `last` picture."""
    picture, known = Picture(), {} if last is None else last.nodes
    _graph(picture, model.graph)
    for node in all_nodes(model.graph):  # in topological order: a pass may leave a graph unsorted for the next
        made = known.get(node)
        if made is None or made.graph is not node.graph or not made.is_of(node):
            made = _made(node, model)
        picture.nodes[node] = made
        if made.graph is not None:
            picture.members.setdefault(made.graph, []).append(made)
        picture.maker.update(dict.fromkeys(made.outputs, made))
        for one in (*made.inputs, *made.outputs):
            if one is not None:
                picture.note(one)
        for body in made.bodies:
            _graph(picture, body)
        if _moves(picture, made):
            picture.moving.update(made.outputs)
    return picture


def _graph(picture: Picture, graph: ir.Graph) -> None:
    picture.graphs[graph] = tuple(graph.inputs), tuple(graph.outputs)
    for value in (*graph.inputs, *graph.outputs):
        picture.note(value)
    picture.given.update(graph.inputs)
    picture.moving.update(graph.inputs)
    for value in graph.initializers.values():
        if value.const_value is not None:
            picture.note(value)
            picture.stored[value] = value.const_value
            if is_trained(value):
                picture.moving.add(value)


def _made(node: ir.Node, model: ir.Model) -> Made:
    domain = "" if node.domain in STANDARD else node.domain
    imports = model.opset_imports
    version = node.version or imports.get(node.domain) or (imports.get("ai.onnx") if not domain else None) or 1
    bodies = _bodies(node)
    trained = node.op_type == "Constant" and any(is_trained(v) for v in node.outputs)
    return Made(
        node, domain, node.op_type, version, dict(node.attributes.data), tuple(node.inputs), tuple(node.outputs),
        node.graph, node.name or (node.outputs[0].name if node.outputs else "") or node.op_type,
        bodies, is_a(node, SIZES), trained or bool(bodies) or is_a(node, RANDOM),
    )  # fmt: skip


def _bodies(node: ir.Node) -> tuple[ir.Graph, ...]:
    found: list[ir.Graph] = []
    for attribute in node.attributes.data.values():
        if attribute.type in GRAPHS and not attribute.is_ref():
            one = attribute.type == ir.AttributeType.GRAPH
            found += [attribute.as_graph()] if one else attribute.as_graphs()
    return tuple(found)


def _moves(picture: Picture, made: Made) -> bool:
    if made.gives_sizes or made.moves:
        return not made.gives_sizes
    return any(v in picture.moving for v in made.inputs if v is not None)
