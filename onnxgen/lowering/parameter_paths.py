"""The module path of each stored tensor, by the names in the file."""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import ROOT, SCOPE
from onnxgen.graph.nodes import all_nodes
from onnxgen.passes.trainable import stored_values
from onnxgen.scopes.origin import param_path, seen_from
from onnxgen.weights.provenance import Source
from onnxgen.weights.stored import VIEWS, folded_from, stored

PASSING = {*VIEWS, "FakeQuantize"}
NOISE = re.compile(r"^(onnx::\w+|\d+|.*::.*|val_\d+)$")  # what exporters call tensors that have no name


class ParameterPaths:
    """The module paths that the names and the users of stored tensors tell.

    Attributes:
        crowd: for each scope, the different weights (or sets of them) that nodes in it take.
        shared: names of the tensors that several nodes take, or that another tensor is a folded copy of.
    """

    def __init__(self, graph: ir.Graph) -> None:
        values = list(stored_values(graph))
        self._folded = {folded_from(v) for v in values}
        self.shared = {v.name or "" for v in values if len(v.uses()) > 1} | self._folded
        self._roots = {v.name for v in values if ROOT.has(v)}
        self.crowd: dict[ModulePath, set[frozenset[ir.Value]]] = {}
        self._sets: dict[str, set[frozenset[ir.Value]]] = {}
        for node in all_nodes(graph):
            scope = SCOPE.get(node)
            weights = frozenset() if node.op_type in PASSING else frozenset(_weights(node))
            for n in range(1, len(scope) + 1 if weights else 0):
                self.crowd.setdefault(scope[:n], set()).add(weights)
            for value in weights:
                self._sets.setdefault(value.name or "", set()).add(weights)

    def is_alone(self, scope: ModulePath) -> bool:
        """Whether the nodes of a scope have one set of weights between them: the scope is one layer."""
        return len(self.crowd.get(scope, ())) <= 1

    def is_vague(self, source: Source) -> bool:
        """Whether a name does not tell where a tensor belongs: layers with different weights take it (equal biases)."""
        return not source.label and len(source.names) == 1 and len(self._sets.get(source.names[0], ())) > 1

    def path(self, name: str, label: str, scope: ModulePath) -> ModulePath | None:
        """The module path of a tensor of this name for a node of this scope; None if the name does not tell it.

        `label`: a further name that the file gives to it: the legacy exporter stores equal tensors once, and names the
        others by Identity nodes; the dynamo exporter says which parameter it folded.
        """
        found = param_path(label) or param_path(name)
        if found is None:
            root = label if re.fullmatch(r"[A-Za-z_]\w*", label) and not NOISE.match(label) else name
            return (root,) if root == label or root in self._roots else None
        return seen_from(scope, found) if name in self.shared and not self.is_exact(label) else found

    def is_exact(self, label: str) -> bool:
        """Whether a further name is the tensor's very own, as those by Identity are."""
        return bool(label) and label not in self._folded

    def source_path(self, source: Source, scope: ModulePath) -> ModulePath | None:
        """The module path of a state-dict tensor, if it is made of one tensor of the file."""
        return self.path(source.names[0], source.label, scope) if len(source.names) == 1 else None


def _weights(node: ir.Node) -> Iterator[ir.Value]:
    """The stored tensors of floating point that a node takes, perhaps behind views of them."""
    for value in node.inputs:
        for _ in range(8):
            producer = None if value is None else value.producer()
            if producer is None or producer.op_type not in PASSING or not producer.inputs:
                break
            value = producer.inputs[0]
        tensor = stored(value)
        if value is not None and tensor is not None and tensor.dtype.is_floating_point() and len(tensor.shape) > 0:
            yield value
