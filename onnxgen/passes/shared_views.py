"""What every layer of a stack does alike to a value from outside, an exporter may have written once: PyTorch's dynamo
exporter (torch 2.9 to 2.13) shares equal nodes, so that the first layer turns the mask that all of them attend with.

Each layer does it again here, and is the layer that the others are. Only views, which cost nothing, and only where the
scopes of those who use it differ in nothing but numbers.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from onnxgen.options import Options
from onnxgen.passes.rewrite import names_of
from onnxgen.propagate.info import info, set_info

VIEWS = frozenset("Unsqueeze Squeeze Expand Reshape Flatten Transpose".split())
Path = tuple[str, ...]


def shared_views(model: ir.Model, options: Options) -> None:
    """Give each such layer a node of its own. From the end: what a view is made of has its users counted after it."""
    for graph in (model.graph, *model.graph.subgraphs()):
        order = {node: place for place, node in enumerate(graph)}
        for node in reversed(list(graph)):
            if node.op_type in VIEWS and node.domain == "" and node.meta.get("scope"):
                _share_out(graph, node, order)


def _share_out(graph: ir.Graph, node: ir.Node, order: dict[ir.Node, int]) -> None:
    value, scope = node.outputs[0], node.meta["scope"]
    if value.is_graph_output() or info(value).data is not None:
        return
    elsewhere: dict[Path, list[tuple[ir.Node, int]]] = {}
    for user, index in value.uses():
        place: Path = user.meta.get("scope", ())
        if place[: len(scope)] == scope:
            continue
        if user.graph is not graph or _role(place) != _role(scope):
            return
        elsewhere.setdefault(place, []).append((user, index))
    if sum(map(len, elsewhere.values())) == len(value.uses()):
        return  # its own scope hands it on: one layer of a sequence
    for place, users in elsewhere.items():
        own = _copy(node, place)
        first = min((user for user, _ in users), key=lambda user: order[user])
        graph.insert_before(first, own)
        order[own] = order[first]
        for user, index in users:
            user.replace_input_with(index, own.outputs[0])


def _role(scope: Path) -> str:
    return re.sub(r"\d+", "#", ".".join(scope))


def _copy(node: ir.Node, scope: Path) -> ir.Node:
    copy = ir.Node("", node.op_type, node.inputs, list(node.attributes.values()), version=node.version)
    copy.name = node.name
    copy.meta.update(node.meta, scope=scope, nodes=names_of(node))
    old, new = node.outputs[0], copy.outputs[0]
    new.type, new.shape = old.type, old.shape
    set_info(new, info(old))
    return copy
