"""A record of a graph at one moment. Passes change graphs in place, so the graph before a pass is recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import onnx_ir as ir

from onnxgen.graph.annotations import is_trained
from onnxgen.graph.nodes import ALIAS, all_nodes
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import RANDOM, SIZES
from onnxgen.shapes.info import Info, infos

STANDARD = ("", "ai.onnx")
GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
# What passes may change of a node: they give none other outputs. Asked of all nodes at once, for each pass, in C.
LOOK = attrgetter("graph", "inputs", "op_type", "domain", "version", "attributes.data")
Look = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """A node as it was: its operator, its inputs and its outputs.

    Attributes:
        look: what passes may change of it, to be compared with `LOOK`.
        gives_sizes: its result depends on sizes alone.
        is_random: it draws random numbers.
        moves: its result differs from run to run, or depends on a graph of its own.
    """

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
    look: Look
    gives_sizes: bool
    is_random: bool
    moves: bool

    def computes_as(self, other: Made) -> bool:
        """Return True if both compute the same function, of inputs that may differ."""
        return self is other or (
            (self.op, self.domain, self.version) == (other.op, other.domain, other.version)
            and [v is None for v in self.inputs] == [v is None for v in other.inputs]
            and len(self.outputs) == len(other.outputs)
            and self.graph is other.graph
            and self.attributes == other.attributes
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
        nodes: in topological order. What they take has its first name: an Identity of a computed value gives a second.
        plain: the same nodes, with the names that they take.
        maker: the node that makes a value.
        graphs: inputs and outputs of the main graph and of each subgraph.
        members: the nodes of each graph.
        stored: the tensors of the file, and those that passes added.
        moving: values that depend on the elements of the network's inputs or trained tensors; all others are computed
            from constants and sizes.
        given: the inputs of all graphs.
        facts: what was known of each value.
        names: the name of each value.
        used: the values that nodes with subgraphs use, as far as they were asked for (`region.uses`).
    """

    nodes: dict[ir.Node, Made] = field(default_factory=dict)
    plain: dict[ir.Node, Made] = field(default_factory=dict)
    maker: dict[ir.Value | None, Made] = field(default_factory=dict)
    graphs: dict[ir.Graph, tuple[tuple[ir.Value, ...], tuple[ir.Value, ...]]] = field(default_factory=dict)
    members: dict[ir.Graph, list[Made]] = field(default_factory=dict)
    stored: dict[ir.Value, ir.TensorProtocol] = field(default_factory=dict)
    moving: set[ir.Value] = field(default_factory=set)
    given: set[ir.Value] = field(default_factory=set)
    facts: dict[ir.Value, Info] = field(default_factory=dict)
    names: dict[ir.Value, str] = field(default_factory=dict)
    used: dict[ir.Node, list[ir.Value]] = field(default_factory=dict)

    def is_known(self, value: ir.Value) -> bool:
        """Return True if a value has known elements and no node computes it."""
        return value not in self.maker and value in self.facts and self.facts[value].data is not None

    def note(self, values: Iterable[ir.Value | None]) -> None:
        """Record what is known of these values, and their names."""
        known = [value for value in dict.fromkeys(values) if value is not None]
        self.facts = dict(zip(known, infos(known)))
        self.names = {value: value.name or "" for value in known}

    def is_as(self, model: ir.Model) -> bool:
        """Return True if the graphs of a model are as in the picture, apart from the order of their nodes.

        This looks at every node, whatever a pass says of itself. No node is new if all of the picture are in their
        graphs, and these are no longer.
        """
        main, nodes, stored = next(iter(self.graphs)), self.nodes, self.stored
        return (
            model.graph is main
            and all((v.name or "") == self.names[v] for v in chain(*self.graphs[main]))
            and sum(map(len, self.graphs)) == len(nodes)
            and all((tuple(g.inputs), tuple(g.outputs)) == frame for g, frame in self.graphs.items())
            and list(map(LOOK, nodes)) == [step.look for step in nodes.values()]
            and all(map(is_, map(attrgetter("const_value"), stored), stored.values()))
        )


def take(model: ir.Model, last: Picture | None = None) -> Picture:
    """Record a model. Takes time linear in the number of its nodes; less if most are as in the `last` picture."""
    picture, known = Picture(), {} if last is None else last.plain
    firsts: dict[ir.Value | None, ir.Value] = {}
    _graph(picture, model.graph)
    nodes = all_nodes(model.graph)  # in topological order: a pass may leave a graph unsorted for the next
    for node, look in zip(nodes, map(LOOK, nodes)):
        step = known.get(node)
        if step is None or step.look != look:
            step = _made(node, model)
        picture.plain[node] = step
        if firsts and not firsts.keys().isdisjoint(step.inputs):
            step = replace(step, inputs=tuple(firsts.get(value, value) for value in step.inputs))
        _add(picture, node, step)
        source = step.input(0) if (step.domain, step.op) == ALIAS else None
        if source is not None and (source in picture.maker or source in picture.given):
            firsts[step.outputs[0]] = source
    frames = chain.from_iterable(chain.from_iterable(picture.graphs.values()))
    shown = (step.inputs + step.outputs for step in picture.nodes.values())
    picture.note(chain(frames, picture.stored, chain.from_iterable(shown)))
    return picture


def _add(picture: Picture, node: ir.Node, step: Made) -> None:
    picture.nodes[node] = step
    if step.graph is not None:
        picture.members.setdefault(step.graph, []).append(step)
    for body in step.bodies:
        _graph(picture, body)
    picture.maker.update(dict.fromkeys(step.outputs, step))
    if not step.gives_sizes and _is_moving(step, picture.moving):
        picture.moving.update(step.outputs)


def _is_moving(step: Made, moving: set[ir.Value]) -> bool:
    """Return True if what a node gives depends on the network's inputs or on what is trained."""
    if step.moves or not moving.isdisjoint(step.inputs):
        return True
    return step.op == "Constant" and any(map(is_trained, step.outputs))


def _graph(picture: Picture, graph: ir.Graph) -> None:
    picture.graphs[graph] = tuple(graph.inputs), tuple(graph.outputs)
    picture.given.update(graph.inputs)
    picture.moving.update(graph.inputs)
    for value in graph.initializers.values():
        if value.const_value is not None:
            picture.stored[value] = value.const_value
            if is_trained(value):
                picture.moving.add(value)


def _made(node: ir.Node, model: ir.Model) -> Made:
    domain = "" if node.domain in STANDARD else node.domain
    imports = model.opset_imports
    version = node.version or imports.get(node.domain) or (imports.get("ai.onnx") if not domain else None) or 1
    bodies = _bodies(node)
    graph, inputs, op, stated, since, held = LOOK(node)
    attributes, is_random = dict(held), is_a(node, RANDOM)
    return Made(
        node, domain, op, version, attributes, tuple(inputs), tuple(node.outputs),
        graph, node.name or (node.outputs[0].name if node.outputs else "") or op,
        bodies, (graph, inputs, op, stated, since, attributes), is_a(node, SIZES), is_random,
        bool(bodies) or is_random,
    )  # fmt: skip


def _bodies(node: ir.Node) -> tuple[ir.Graph, ...]:
    graphs: list[ir.Graph] = []
    for attribute in node.attributes.data.values():
        if attribute.type in GRAPHS and not attribute.is_ref():
            one = attribute.type == ir.AttributeType.GRAPH
            graphs += [attribute.as_graph()] if one else attribute.as_graphs()
    return tuple(graphs)
