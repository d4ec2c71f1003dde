"""What every layer of a stack does alike to a value from outside, an exporter may have written once: PyTorch's
exporters share equal nodes (TorchScript's, and dynamo's of torch 2.9 to 2.13), so that the first layer prepares the
mask that all of them attend with.

Each layer does it again here, as its author wrote, and is the layer that the others are. Only where it costs next to
nothing: views, and arithmetic on what the network is given; and only where the scopes of those who use it differ in
nothing but numbers.
"""

from __future__ import annotations

import re
from collections import defaultdict

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import SCOPE, STANDS_FOR, copy_all, is_trained
from onnxgen.options import Options
from onnxgen.passes.rewrite import names_of
from onnxgen.passes.views import arranges
from onnxgen.shapes.info import info, set_info

ARITHMETIC = frozenset(
    "Add Sub Mul Div Neg Cast Not And Or Equal Less Greater LessOrEqual GreaterOrEqual Where".split()
)


def shared_nodes(model: ir.Model, options: Options) -> None:
    """Give each such layer a node of its own. From the end: what a node is made of has its users counted after it."""
    for graph in (model.graph, *model.graph.subgraphs()):
        layers = _Layers(graph)
        for node in reversed(list(graph)):
            if SCOPE.get(node) and (node in layers.given or _arranges(node)):
                layers.share_out(node)


class _Layers:
    """The nodes of a graph by scope, and in which order they stand."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph, self.given = graph, _given(graph)
        self.order = {node: place for place, node in enumerate(graph)}
        self.before: dict[int, list[ir.Node]] = {}  # the copies that stand before the node of that place, in order
        self.own: dict[ModulePath, list[ir.Node]] = defaultdict(list)  # what is computed with more than what is given
        for node in graph:
            scope = SCOPE.get(node)
            if node not in self.given:
                for end in range(1, len(scope) + 1):
                    self.own[scope[:end]].append(node)

    def share_out(self, node: ir.Node) -> None:
        value, scope = node.outputs[0], SCOPE.get(node)
        if value.is_graph_output() or info(value).data is not None:
            return
        elsewhere: dict[ModulePath, list[tuple[ir.Node, int]]] = {}
        for user, index in value.uses():
            place = _layer(user, scope)
            if place == scope:
                continue
            if user.graph is not self.graph or _role(place) != _role(scope):
                return
            elsewhere.setdefault(place, []).append((user, index))
        if sum(map(len, elsewhere.values())) == len(value.uses()):
            return  # its own scope hands it on: one layer of a sequence
        for place, users in elsewhere.items():
            own = _copy(node, place)
            self._insert(own, [user for user, _ in users] + self._counterpart(node, place))
            for user, index in users:
                user.replace_input_with(index, own.outputs[0])

    def _insert(self, own: ir.Node, users: list[ir.Node]) -> None:
        """Put a copy before the first of its users, which may be copies that stand before one and the same node."""
        place = min(self.order[user] for user in users)
        here = [user for user in users if self.order[user] == place]
        near = self.before.setdefault(place, [])
        first = min(here, key=lambda user: near.index(user) if user in near else len(near))
        self.graph.insert_before(first, own)
        self.order[own] = place
        near.insert(near.index(first) if first in near else len(near), own)

    def _counterpart(self, node: ir.Node, place: ModulePath) -> list[ir.Node]:
        """Before which node of a layer it does what another does at `node`: layers that are equal stay so."""
        if node not in self.given:
            return []
        before = sum(self.order[other] < self.order[node] for other in self.own[SCOPE.get(node)])
        after = self.own[place][before : before + 1]
        return [other for other in after if self.order[other] > self.order[node]]


def _layer(user: ir.Node, scope: ModulePath) -> ModulePath:
    """The layer that uses a value of the layer `scope`: the user's own scope, or as much of it."""
    place = SCOPE.get(user)
    return place[: len(scope)]


def _arranges(node: ir.Node) -> bool:
    return arranges(node) or node.op_type == "Expand"


def _given(graph: ir.Graph) -> set[ir.Node]:
    """The nodes that compute with the graph's inputs and constants alone, by arithmetic and views."""
    known = set(graph.inputs)
    found: set[ir.Node] = set()
    for node in graph:
        if node.domain == "" and (_arranges(node) or node.op_type in ARITHMETIC | {"Constant"}):
            if all(v is None or v in known or _is_constant(v) for v in node.inputs):
                known.update(v for v in node.outputs if not is_trained(v))
                found.add(node)
    return found


def _is_constant(value: ir.Value) -> bool:
    return value.is_initializer() and not is_trained(value)


def _role(scope: ModulePath) -> str:
    return re.sub(r"\d+", "#", ".".join(scope))


def _copy(node: ir.Node, scope: ModulePath) -> ir.Node:
    copy = ir.Node("", node.op_type, node.inputs, list(node.attributes.values()), version=node.version)
    copy.name = node.name
    copy_all(node, copy)
    SCOPE.set(copy, scope)
    STANDS_FOR.set(copy, names_of(node))
    old, new = node.outputs[0], copy.outputs[0]
    new.type, new.shape = old.type, old.shape
    set_info(new, info(old))
    return copy
