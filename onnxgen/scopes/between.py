"""Nodes that say nothing of where they were written stand where their neighbours do.

PyTorch before 1.13 wrote no paths, so that only layers with parameters say where they are; rewriting tools add nodes
without metadata in the middle of a module. Left to the root, such nodes would tear the module in two: a way would lead
out of it and back in. A node is silent while no `SCOPE` is noted; after this pass all have one.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import all_nodes, made_by
from onnxgen.graph.traits import ACTIVATION
from onnxgen.options import Options
from onnxgen.weights.stored import stored

JOINS = frozenset(("Add", "Mul", "Concat", "Sub"))


def infer_missing_scopes(model: ir.Model, options: Options) -> None:
    """Set the scope of every silent node.

    What the scopes before and after it have in common, in general; but a skip connection is added where it began,
    branches of a module meet in it, and an activation at the end of a numbered block is the block's own.
    """
    nodes = [node for node in all_nodes(model.graph) if node.op_type != "Constant"]
    if all(SCOPE.has(node) for node in nodes):
        return
    places = _Places(nodes)
    for node in nodes:
        if not SCOPE.has(node):
            places.scope[node] = places.of(node)
    for node in nodes:
        SCOPE.set(node, places.scope[node])


class _Places:
    """What is known of the places of one graph's nodes.

    Attributes:
        scope: of the nodes that are not silent, and of those placed so far (in topological order).
        after: of silent nodes, what the scopes of all that use them have in common.
    """

    def __init__(self, nodes: list[ir.Node]) -> None:
        self.scope: dict[ir.Node, ModulePath] = {node: SCOPE.get(node) for node in nodes if SCOPE.has(node)}
        known = set(self.scope.values())
        homes = {self.scope[node] for node in self.scope if _takes_weights(node, 1)}
        self.lists = {s[:i] for s in known for i in range(len(s)) if s[i].isdigit()} - homes
        self.layers = homes - {scope[:i] for scope in known for i in range(len(scope))}
        self.after: dict[ir.Node, ModulePath] = {}
        for node in reversed(nodes):
            if node not in self.scope:
                users = (self.scope.get(user, self.after.get(user)) for user in _users(node))
                common = common_scope(scope for scope in users if scope is not None)
                if common is not None:
                    self.after[node] = common

    def of(self, node: ir.Node) -> ModulePath:
        """The place of a silent node whose producers have theirs."""
        producers = list(_producers(node))
        before = common_scope(self.scope[producer] for producer in producers if producer in self.scope)
        after = self.after.get(node)
        if before is None or after is None:  # from the graph's inputs, or to its outputs only
            scope = () if after is None or _takes_weights(node, 2) else self._module(after, is_layer=True)
        else:
            scope = self._module(common_scope([before, after]) or ())
        found = (self._skip(node, producers), self._joined(node, producers, before), self._activation(node, before))
        ends = [end for end in found if end is not None]
        return max([scope, *ends], key=len)

    def _skip(self, node: ir.Node, producers: list[ir.Node]) -> ModulePath | None:
        """The innermost module that one operand of a sum comes from and all others go into."""
        if node.op_type not in JOINS or len(producers) < 2:
            return None
        found = [module for last in producers if (module := self._began(node, last)) is not None]
        return max(found, key=len, default=None)

    def _joined(self, node: ir.Node, producers: list[ir.Node], before: ModulePath | None) -> ModulePath | None:
        """The module that makes all operands of a sum for nothing but this sum: its branches meet inside of it."""
        if node.op_type not in JOINS or len(set(producers)) < 2 or not before or before in self.lists | self.layers:
            return None
        operands = [v for v in node.inputs if v is not None and stored(v) is None]
        if any(v.is_graph_output() for v in operands):
            return None
        others = (use.node for v in operands for use in v.uses() if use.node is not node)
        return before if all(self._is_in(other, before) for other in others) else None

    def _began(self, node: ir.Node, last: ir.Node) -> ModulePath | None:
        """The innermost module of the operand that `last` makes in which all others are used, too."""
        others = [v for v in node.inputs if v is not None and v.producer() is not last and stored(v) is None]
        scope = self.scope.get(last, ())
        for end in range(len(scope), 0, -1):
            module = scope[:end]
            if module not in self.layers and module not in self.lists:
                if all(any(self._is_in(u.node, module) for u in v.uses() if u.node is not node) for v in others):
                    return module
        return None

    def _activation(self, node: ir.Node, before: ModulePath | None) -> ModulePath | None:
        """The numbered block that an activation ends."""
        if before is None or not (is_a(node, ACTIVATION) or node.op_type in ("Dropout", "Identity")):
            return None
        for end in range(len(before), 0, -1):
            if before[end - 1].isdigit() and before[:end] not in self.layers:
                return before[:end]
        return None

    def _is_in(self, node: ir.Node, module: ModulePath) -> bool:
        scope = self.scope.get(node)
        return scope is not None and scope[: len(module)] == module

    def _module(self, scope: ModulePath, is_layer: bool = False) -> ModulePath:
        """The innermost module around that has a forward of its own for this."""
        if is_layer and scope in self.layers:
            scope = scope[:-1]
        while scope in self.lists and scope:
            scope = scope[:-1]
        return scope


def _takes_weights(node: ir.Node, rank: int) -> bool:
    """Whether it takes stored numbers of at least this rank: vectors are weights where their names say so."""
    tensors = (stored(value) for value in node.inputs)
    return any(t is not None and len(t.shape) >= rank and t.dtype.is_floating_point() for t in tensors)


def _producers(node: ir.Node) -> Iterable[ir.Node]:
    """What a node's data comes from: a size may be read of any value."""
    for value in node.inputs:
        producer = None if value is None or made_by(value, "Shape", "Size") else value.producer()
        if producer is not None and producer.op_type != "Constant":
            yield producer


def _users(node: ir.Node) -> Iterable[ir.Node]:
    return (use.node for output in node.outputs for use in output.uses())


def common_scope(scopes: Iterable[ModulePath]) -> ModulePath | None:
    """The longest path that all have in common; None of nothing."""
    known = list(scopes)
    if not known:
        return None
    first, last = min(known), max(known)
    n = 0
    while n < min(len(first), len(last)) and first[n] == last[n]:
        n += 1
    return first[:n]
