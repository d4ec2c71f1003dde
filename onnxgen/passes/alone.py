"""Whether nodes are all that the file has of a module.

torch's composite layers use their own submodules: `nn.TransformerEncoder` applies what is called `norm`, a layer what
is called `dropout1`. So nodes become such a layer only if the file has nothing else in the module: no other node in a
submodule takes a parameter, and no other node takes one of the layer's. Else the class is the author's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import SCOPE, is_trained
from onnxgen.graph.nodes import all_nodes
from onnxgen.passes.trainable import stored_values
from onnxgen.scopes.origin import param_path
from onnxgen.weights.stored import Views, is_uniform


class Takers:
    """The nodes that take parameters, by the module that they are in, and by the parameter."""

    def __init__(self, model: ir.Model, views: Views) -> None:
        self._below: dict[ModulePath, set[ir.Node]] = defaultdict(set)
        self._names: dict[ir.Node, set[str]] = {}
        self._users: dict[str, set[ir.Node]] = defaultdict(set)
        trained = {value.name for value in stored_values(model.graph) if is_trained(value)}
        for node in all_nodes(model.graph):
            if any(map(views.is_view, node.outputs)):
                continue
            names = set[str]().union(*(_parameters(value, views, trained) for value in node.inputs))
            if not names:
                continue
            self._names[node] = names
            for name in names:
                self._users[name].add(node)
            scope = SCOPE.get(node) or ()
            for n in range(len(scope)):
                self._below[scope[:n]].add(node)

    def are_alone(self, nodes: Collection[ir.Node], module: ModulePath) -> bool:
        """Return True if no other node is below the module, or takes a parameter that these take."""
        own = set(nodes)
        names = set[str]().union(*(self._names.get(node, ()) for node in own))
        return self._below[module] <= own and all(self._users[name] <= own for name in names)


def _parameters(value: ir.Value | None, views: Views, trained: Container[str | None]) -> set[str]:
    """Return the names of the parameters that a value is a view of.

    Vectors of equal numbers do not count: untrained layers have those, and exporters merge them.
    """
    source = views(value) if value is not None and views.is_view(value) else None
    if source is None or not source.dtype.is_floating_point():
        return set()
    pieces = (piece for piece in source.pieces if piece.name in trained or param_path(piece.name) is not None)
    return {piece.name for piece in pieces if not is_uniform(piece.tensor)}
