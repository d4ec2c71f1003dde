"""Finds the module path of each stored tensor from the names in the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from onnxgen.common.names import ModulePath, unscoped
from onnxgen.graph.annotations import NAMELESS, ROOT, SCOPE
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.traits import WEIGHT
from onnxgen.passes.trainable import stored_values
from onnxgen.scopes.origin import MERGED, param_path, seen_from
from onnxgen.weights.provenance import Source
from onnxgen.weights.stored import folded_from, stored, view_of

_MAX_DIGITS = 10  # of a count
NOISE = re.compile(r"^(onnx::\w+|\d+|.*::.*|val_\d+)$")  # names that exporters give to unnamed tensors


class ParameterPaths:
    """The module paths of stored tensors, from their names and their users.

    Attributes:
        crowd: by scope, the different sets of weights that nodes in it take.
        shared: names of tensors that several nodes take, or that another tensor is a folded copy of.
        are_told: names of tensors say which module they are in.
    """

    def __init__(self, graph: ir.Graph) -> None:
        values = list(stored_values(graph))
        self.are_told = not NAMELESS.get(graph)
        self._counted = _counted(v.name or "" for v in values)
        self._folded = {folded_from(v) for v in values}
        self.shared = {v.name or "" for v in values if len(v.uses()) > 1} | self._folded
        self._roots = {v.name for v in values if ROOT.has(v)}
        self.crowd: dict[ModulePath, set[frozenset[ir.Value]]] = {}
        self._sets: dict[str, set[frozenset[ir.Value]]] = {}
        for node in all_nodes(graph):
            scope = SCOPE.get(node)
            weights = frozenset() if _passes(node) else frozenset(_weights(node))
            for n in range(1, len(scope) + 1 if weights else 0):
                self.crowd.setdefault(scope[:n], set()).add(weights)
            for value in weights:
                self._sets.setdefault(value.name or "", set()).add(weights)

    def is_alone(self, scope: ModulePath) -> bool:
        """Return True if the nodes of a scope have only one set of weights: the scope is one layer."""
        return len(self.crowd.get(scope, ())) <= 1

    def is_vague(self, source: Source) -> bool:
        """Return True if layers with different weights share the tensor (equal biases): its name may be another's."""
        return not source.label and len(source.names) == 1 and len(self._sets.get(source.names[0], ())) > 1

    def is_noise(self, name: str, scope: ModulePath) -> bool:
        """Return True if the name of a tensor says nothing about it.

        In a module that was found in the graph, that is any name with a number that others of the file differ in: the
        other copies of the module have the others.
        """
        if not self.are_told or NOISE.match(name):
            return True
        return self._counted.get(name, False) or (name in self._counted and bool(scope))

    def path(self, name: str, label: str, scope: ModulePath) -> ModulePath | None:
        """Return the module path of a tensor for a node in a scope; None if its name does not tell.

        `label`: a second name in the file. The legacy exporter stores equal tensors once, and names the others by
        Identity nodes. The dynamo exporter records which parameter it folded.
        """
        if not self.are_told:
            return None
        found = param_path(label) or param_path(name)
        if found is None:
            root = label if re.fullmatch(r"[A-Za-z_]\w*", label) and not NOISE.match(label) else name
            return (MERGED.sub("", unscoped(root)),) if root == label or root in self._roots else None
        return seen_from(scope, found) if name in self.shared and not self.is_exact(label) else found

    def is_exact(self, label: str) -> bool:
        """Return True if a second name is exactly this tensor's, as those of Identity nodes are."""
        return bool(label) and label not in self._folded

    def source_path(self, source: Source, scope: ModulePath) -> ModulePath | None:
        """Return the module path of a state-dict tensor, if it is made of one tensor of the file."""
        return self.path(source.names[0], source.label, scope) if len(source.names) == 1 else None


def _counted(names: Iterable[str]) -> dict[str, bool]:
    """Return the names that differ only in a number, and True for those of which some numbers are left out.

    `val_49_scale` and `val_57_scale` were counted over the whole file. An author who numbers weights leaves out none.
    """
    alike: dict[str, dict[int, str]] = {}
    for name in names:
        numbers = re.findall(r"\d+", name)
        if len(numbers) == 1 and len(numbers[0]) < _MAX_DIGITS and param_path(name) is None:
            alike.setdefault(re.sub(r"\d+", "#", name), {})[int(numbers[0])] = name
    several = [found for found in alike.values() if len(found) > 1]
    return {name: max(found) - min(found) + 1 > len(found) for found in several for name in found.values()}


def _is_view(node: ir.Node) -> bool:
    return view_of(node) is not None or is_a(node, WEIGHT)


def _passes(node: ir.Node) -> bool:
    """True if a node only rearranges stored tensors, or anything else as a view."""
    return _is_view(node) or (node.op_type == "Concat" and all(map(_leaves, node.inputs)))


def _weights(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the stored floating-point tensors that a node takes, perhaps through views and joined to one."""
    for value in node.inputs:
        for leaf in _leaves(value):
            tensor = stored(leaf)
            if (leaf.name or "").startswith("/"):  # a constant of the legacy exporter
                continue
            if tensor is not None and tensor.dtype.is_floating_point() and len(tensor.shape) > 0:
                yield leaf


def _leaves(value: ir.Value | None, depth: int = 8) -> list[ir.Value]:
    """Return the stored tensors that a value is made of, if it is made of nothing else."""
    producer = None if value is None else value.producer()
    if value is None or stored(value) is not None:
        return [] if value is None else [value]
    if producer is None or depth == 0 or not producer.inputs:
        return []
    if _is_view(producer):
        return _leaves(producer.inputs[0], depth - 1)
    parts = [_leaves(v, depth - 1) for v in producer.inputs] if producer.op_type == "Concat" else [[]]
    return [leaf for part in parts for leaf in part] if all(parts) else []
