"""Scopes of the nodes that have none, by those of their neighbours.

PyTorch before 1.13 wrote no module paths, so that only layers with parameters have a scope. Tools that rewrite graphs
add nodes without metadata in the middle of a module. In the root, such a node would tear the module in two, since data
would flow out of it and back in. After this pass every node has a `SCOPE`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import onnx_ir as ir

from onnxgen.common.names import ModulePath, common_scope
from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import ACTIVATION, ADDS, SAME, SCALES, SIZES, VIEW
from onnxgen.options import Options
from onnxgen.scopes.origin import param_path, users
from onnxgen.weights.stored import stored

_SCALING = (SAME, SCALES, VIEW)  # between a product of integers and the bias


def infer_missing_scopes(model: ir.Model, options: Options) -> None:
    """Set the scope of every node that has none.

    In general it is the common part of the scopes before and after it. But a skip connection is added in the module
    where it began, the branches of a module are joined in it, and an activation after a numbered block belongs to it.
    """
    nodes = [node for node in all_nodes(model.graph) if node.op_type != "Constant"]
    if all(SCOPE.has(node) for node in nodes):
        return
    inferred = _Inferred(nodes)
    for rule in (_next_layers, _by_parameters, _biased, _looked_up, _of_weights, _attending):
        inferred.scope.update(rule(nodes, inferred))
    inferred.look_ahead(nodes)
    for node in nodes:
        if node not in inferred.scope:
            inferred.scope[node] = inferred.of(node)
    for node in nodes:
        SCOPE.set(node, inferred.scope[node])


class _Inferred:
    """The scopes of one graph's nodes, as far as they are known.

    Attributes:
        scope: the scopes of nodes: those in the file, and those inferred so far (in topological order).
        after: of nodes without a scope, the common part of the scopes of all users.
        lost: the layers without a scope and what leads to them: no module after them says where they are.
        lists: the module paths of lists.
        layers: the module paths that have weights and no modules below them.
    """

    def __init__(self, nodes: list[ir.Node]) -> None:
        self.scope: dict[ir.Node, ModulePath] = {node: SCOPE.get(node) for node in nodes if SCOPE.has(node)}
        known = set(self.scope.values())
        weighted = {self.scope[node] for node in self.scope if _takes_weights(node, 1)}
        self.lists = {s[:i] for s in known for i in range(len(s)) if s[i].isdigit()} - weighted
        self.layers = weighted - {scope[:i] for scope in known for i in range(len(scope))}
        self.after: dict[ir.Node, ModulePath] = {}
        self.lost: set[ir.Node] = set()

    def nameless_layers(self, nodes: list[ir.Node]) -> list[ir.Node]:
        """Return the layers without a scope."""
        return [node for node in nodes if node not in self.scope and _takes_weights(node, 2)]

    def look_ahead(self, nodes: list[ir.Node]) -> None:
        """Set `after` and `lost`."""
        for node in reversed(nodes):
            if node not in self.scope:
                if _takes_weights(node, 2) or not self.lost.isdisjoint(users(node)):
                    self.lost.add(node)
                scopes = (self.scope.get(user, self.after.get(user)) for user in users(node))
                common = common_scope(scope for scope in scopes if scope is not None)
                if common is not None:
                    self.after[node] = common

    def of(self, node: ir.Node) -> ModulePath:
        """Return the scope of a node without one, whose producers have theirs."""
        producers = list(_producers(node))
        known = [self.scope[producer] for producer in producers if producer in self.scope]
        before, inner = common_scope(known), common_scope(_innermost(known))
        after = self.after.get(node)
        if inner is None or after is None:  # it only has inputs or only outputs of the graph
            scope = () if after is None or node in self.lost else self._module(after, is_layer=True)
        else:
            scope = self._module(common_scope([inner, after]) or ())
        before = before or ()
        candidates = (
            self._skip(node, producers),
            self._joined(node, producers, before),
            self._activation(node, before),
        )
        return max(scope, *candidates, key=len)

    def _skip(self, node: ir.Node, producers: list[ir.Node]) -> ModulePath:
        """Return the innermost module that makes one operand of a sum and takes all the others; () if there is none."""
        if not _merges(node) or len(producers) < 2:
            return ()
        return max((self._began(node, last) for last in producers), key=len)

    def _joined(self, node: ir.Node, producers: list[ir.Node], before: ModulePath) -> ModulePath:
        """Return the module that makes all operands of a sum, if no other module uses them; else ()."""
        if not _merges(node) or len(set(producers)) < 2 or before in self.lists | self.layers:
            return ()
        operands = [v for v in node.inputs if v is not None and stored(v) is None]
        users = [use.node for v in operands for use in v.uses() if use.node is not node]
        is_shown = any(v.is_graph_output() for v in operands)
        return before if not is_shown and all(self._is_in(user, before) for user in users) else ()

    def _began(self, node: ir.Node, last: ir.Node) -> ModulePath:
        """Return the innermost module around `last` that also uses all other operands; () if there is none."""
        others = [v for v in node.inputs if v is not None and v.producer() is not last and stored(v) is None]
        scope = self.scope.get(last, ())
        for module in (scope[:end] for end in range(len(scope), 0, -1)):
            if module not in self.layers and module not in self.lists:
                if all(any(self._is_in(u.node, module) for u in v.uses() if u.node is not node) for v in others):
                    return module
        return ()

    def _activation(self, node: ir.Node, before: ModulePath) -> ModulePath:
        """Return the numbered block that an activation ends; () if there is none."""
        if not is_a(node, ACTIVATION) and node.op_type not in ("Dropout", "Identity"):
            return ()
        around = (before[:end] for end in range(len(before), 0, -1))
        return next((module for module in around if module[-1].isdigit() and module not in self.layers), ())

    def _is_in(self, node: ir.Node, module: ModulePath) -> bool:
        scope = self.scope.get(node)
        return scope is not None and scope[: len(module)] == module

    def _module(self, scope: ModulePath, is_layer: bool = False) -> ModulePath:
        """Return the innermost module around a scope that is not a list and (if `is_layer`) not a layer."""
        if is_layer and scope in self.layers:
            scope = scope[:-1]
        while scope in self.lists and scope:
            scope = scope[:-1]
        return scope


def _next_layers(nodes: list[ir.Node], inferred: _Inferred) -> dict[ir.Node, ModulePath]:
    """Return the scopes of layers whose names were lost, when a norm was folded into them, by the layers before them.

    If modules are known by their first layer only, `conv1` or `0`, and a layer of the same operator without a name is
    all that follows it, that is the second one, `conv2`. At least two modules must be so.
    """
    inside = Counter(scope[:-1] for scope in inferred.layers if scope)
    scopes: dict[ir.Node, ModulePath] = {}
    for node in inferred.nameless_layers(nodes):
        before = next(iter(_producers(node)), None)
        if before is None or before.op_type != node.op_type or [*users(before)] != [node]:
            continue
        scope = inferred.scope.get(before, ())
        first = re.fullmatch(r"(\D*)([01])", scope[-1]) if len(scope) > 1 else None
        if first is not None and scope in inferred.layers and inside[scope[:-1]] == 1:
            scopes[node] = (*scope[:-1], f"{first[1]}{int(first[2]) + 1}")
    return scopes if len(scopes) > 1 else {}


def _by_parameters(nodes: list[ir.Node], inferred: _Inferred) -> dict[ir.Node, ModulePath]:
    """Return the scopes of layers that a pass has written, by the names of their parameters."""
    scopes: dict[ir.Node, ModulePath] = {}
    for node in inferred.nameless_layers(nodes):
        paths = [param_path(value.name or "") for value in node.inputs if value is not None and stored(value)]
        parents = {path[:-1] for path in paths if path is not None}
        if len(parents) == 1:
            scopes[node] = parents.pop()
    return scopes


def _biased(nodes: list[ir.Node], inferred: _Inferred) -> dict[ir.Node, ModulePath]:
    """Return the scopes of products by their biases, whose names are left where a tool has made weights of integers.

    `linear.bias` is added in `linear`, so that the product before it is in `linear`, too.
    """
    scopes: dict[ir.Node, ModulePath] = {}
    for node in nodes:
        scope = inferred.scope.get(node, ())
        if node.op_type != "Add" or scope not in inferred.layers or not _takes_weights(node, 1):
            continue
        between = list(_producers(node))
        for before in between:  # grows: what scales the product is in the layer, too
            if before not in inferred.scope and before not in scopes and _only_use(before) is not None:
                scopes[before] = scope
                between += _producers(before) if any(is_a(before, trait) for trait in _SCALING) else ()
    return scopes


def _looked_up(nodes: list[ir.Node], inferred: _Inferred) -> dict[ir.Node, ModulePath]:
    """Return the scopes of nodes that take rows of a table which a module makes for nothing else: of that module."""
    scopes: dict[ir.Node, ModulePath] = {}
    for node in nodes:
        table = node.inputs[0].producer() if node.op_type == "Gather" and node.inputs[0] is not None else None
        if table is not None and node not in inferred.scope and _only_use(table) is node:
            if inferred.scope.get(table) in inferred.layers:
                scopes[node] = inferred.scope[table]
    return scopes


def _attending(nodes: list[ir.Node], inferred: _Inferred) -> dict[ir.Node, ModulePath]:
    """Return the scopes of attention, with the nodes that move its operands and its result, by its projections.

    Where one module makes q, k and v for nothing else, as BERT's `attention.self`, it attends. The module around it has
    the layer behind the attention.
    """
    scopes: dict[ir.Node, ModulePath] = {}
    for node in nodes:
        if node.op_type == "Attention" and node not in inferred.scope:
            moved, makers = _projected(node, inferred)
            scope = common_scope(makers) or ()
            if scope and scope not in inferred.lists | inferred.layers and len(makers) > 1:
                after = _only_use(node)
                while after is not None and after not in inferred.scope and is_a(after, VIEW):
                    moved.append(after)
                    after = _only_use(after)
                scopes.update(dict.fromkeys(moved, scope))
    return scopes


def _projected(node: ir.Node, inferred: _Inferred) -> tuple[list[ir.Node], set[ModulePath]]:
    """Return what moves the operands of attention, with it, and the modules that make them; none if others use them."""
    moved, makers, waiting = [node], set[ModulePath](), [v.producer() for v in node.inputs[:3] if v is not None]
    while waiting:
        before = waiting.pop()
        if before is None or _only_use(before) is None:
            return [], set()
        if before in inferred.scope:
            makers.add(inferred.scope[before])
        else:
            moved.append(before)
            waiting += [*_producers(before)] or [None]
    return moved, makers


def _innermost(scopes: list[ModulePath]) -> list[ModulePath]:
    """Return scopes without those around others: what an outer module makes, such as a mask, is an argument."""
    return [s for s in scopes if not any(len(other) > len(s) and other[: len(s)] == s for other in scopes)]


def _only_use(node: ir.Node) -> ir.Node | None:
    takers = [*users(node)]
    return takers[0] if len(takers) == 1 and not any(output.is_graph_output() for output in node.outputs) else None


def _of_weights(nodes: list[ir.Node], inferred: _Inferred) -> dict[ir.Node, ModulePath]:
    """Return the scopes of nodes that only compute with stored tensors: those of the nodes that use the results."""
    fixed: list[ir.Node] = []
    constant: set[ir.Value] = set()
    for node in nodes:
        values = [v for v in node.inputs if v is not None]
        is_fixed = values and all(v in constant or stored(v) is not None for v in values)
        if is_fixed and node not in inferred.scope:
            fixed.append(node)
            constant.update(node.outputs)
    result: dict[ir.Node, ModulePath] = {}
    for node in reversed(fixed):
        scopes = [result.get(user, inferred.scope.get(user)) for user in users(node)]
        known = [scope for scope in scopes if scope is not None]
        common = common_scope(known) if len(known) == len(scopes) else None
        if common is not None:
            result[node] = common
    return result


def _takes_weights(node: ir.Node, rank: int) -> bool:
    """True if a node takes a stored float tensor of at least this rank."""
    tensors = (stored(value) for value in node.inputs)
    return any(t is not None and len(t.shape) >= rank and t.dtype.is_floating_point() for t in tensors)


def _producers(node: ir.Node) -> Iterable[ir.Node]:
    """Yield the nodes that make the data of a node, without those that only read a size."""
    for value in node.inputs:
        producer = None if value is None else value.producer()
        if producer is not None and not is_a(producer, SIZES) and producer.op_type != "Constant":
            yield producer


def _merges(node: ir.Node) -> bool:
    """Return True if a node joins the branches of a module: a skip connection, a gate, channels side by side."""
    return is_a(node, ADDS, SCALES) or node.op_type == "Concat"
