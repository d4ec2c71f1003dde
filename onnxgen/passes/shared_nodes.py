"""Give each module its own copy of a node that the exporter wrote once for several modules.

PyTorch's exporters merge equal nodes (TorchScript's, and dynamo's of torch 2.9 to 2.13): the first layer prepares the
mask that all layers use, or the activation of the value that all branches take. With a copy in each, the layers are
equal again, as their author wrote them. Only cheap nodes are copied: views, arithmetic on the network's inputs and
constants, and functions of one value that comes into the layer (leaky ReLU, Mish). The scopes of the users must differ
only in numbers; those of such functions may also be other modules with a part of the same name (`time`).

`shared_views` does it early, for views of a vector of equal numbers. Biases are equal before training, and the dynamo
exporter merges equal tensors and then equal nodes. So the attentions of a decoder all read one Split of an encoder's
`in_proj_bias`. With a node in each module, the parameter is that module's own. A tied weight has no equal numbers once
it is trained.
"""

from __future__ import annotations

import re
from collections import defaultdict

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import SCOPE, STANDS_FOR, copy_all, is_trained
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import ELEMENTWISE, MOVES, RANDOM, STRIDES
from onnxgen.options import Options
from onnxgen.passes.rewrite import drop, names_of
from onnxgen.passes.views import arranges
from onnxgen.shapes.info import info, set_info
from onnxgen.weights.stored import is_uniform, stored


def shared_views(model: ir.Model, options: Options) -> None:
    """Copy every such node into the scopes of its users."""
    for node in all_nodes(model.graph):
        if not _cuts_equal_numbers(node):
            continue
        users: dict[ModulePath, list[Use]] = defaultdict(list)
        for use in _uses(node):
            users[SCOPE.get(use[0])].append(use)
        x = node.inputs[0]
        if () in users or x is not None and len(users) == len(x.uses()) == 1:
            continue
        for scope in [s for s in users if _is_apart(s, SCOPE.get(node))]:
            copy = _copy(node, scope)
            assert node.graph is not None
            node.graph.insert_before(node, copy)
            _hand_over(copy, users[scope])
        drop(node)


Use = tuple[ir.Node, int, int]  # the node that uses a result, the input, and the position of the result


def _uses(node: ir.Node) -> list[Use]:
    return [(user, index, place) for place, value in enumerate(node.outputs) for user, index in value.uses()]


def _hand_over(copy: ir.Node, uses: list[Use]) -> None:
    for user, index, place in uses:
        user.replace_input_with(index, copy.outputs[place])


def _cuts_equal_numbers(node: ir.Node) -> bool:
    """True if each output has less than all elements of a trained vector of equal numbers."""
    x = node.inputs[0] if is_a(node, MOVES) else None
    tensor, shapes = stored(x), [info(output).shape for output in node.outputs]
    if x is None or tensor is None or not is_trained(x) or not is_uniform(tensor):
        return False
    return all(s and len(s) == 1 and isinstance(s[0], int) and s[0] < tensor.size for s in shapes)


def _is_apart(a: ModulePath, b: ModulePath) -> bool:
    """True if neither module is in the other."""
    return any(x != y for x, y in zip(a, b))


def shared_nodes(model: ir.Model, options: Options) -> None:
    """Copy every such node, users before producers: the copies are users of the producers, too."""
    for graph in (model.graph, *model.graph.subgraphs()):
        layers = _Layers(graph)
        for node in reversed(list(graph)):
            if SCOPE.get(node) and (node in layers.prepared or node in layers.entering or _arranges(node)):
                layers.share_out(node)


class _Layers:
    """The nodes of a graph by scope, and their order.

    Attributes:
        prepared: nodes that only compute with the graph's inputs and constants, by views and arithmetic.
        entering: nodes that only compute with one value from outside their layer and constants, element by element.
        nodes: those of the file, in order.
        order: the position of each node. A copy has the position of the node that it stands before.
        copies: by that position, the copies that stand there, in order.
        own: by scope, the nodes that are not prepared.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.graph, self.prepared, self.entering = graph, _prepared(graph), _entering(graph)
        self.nodes = list(graph)
        self.order = {node: position for position, node in enumerate(self.nodes)}
        self.copies: dict[int, list[ir.Node]] = {}
        self.own: dict[ModulePath, list[ir.Node]] = defaultdict(list)
        for node in graph:
            scope = SCOPE.get(node)
            for end in range(1, len(scope) + 1) if node not in self.prepared else ():
                self.own[scope[:end]].append(node)

    def share_out(self, node: ir.Node) -> None:
        """Copy a node into the other layers that use it."""
        if any(value.is_graph_output() or info(value).data is not None for value in node.outputs):
            return
        uses = _uses(node)
        elsewhere = self._elsewhere(node, uses)
        if sum(map(len, elsewhere.values())) == len(uses):
            return  # its own scope does not use the result but passes it on, like one layer of a sequence
        for layer, users in elsewhere.items():
            copy = _copy(node, layer)
            self._insert(copy, [user for user, _, _ in users] + self._counterpart(node, layer))
            _hand_over(copy, users)

    def _elsewhere(self, node: ir.Node, uses: list[Use]) -> dict[ModulePath, list[Use]]:
        """Return the uses in other layers, by layer; {} if one is in a layer of another kind or another graph."""
        scope = SCOPE.get(node)
        elsewhere: dict[ModulePath, list[Use]] = {}
        parts = {SCOPE.get(user)[len(scope) :] for user, _, _ in uses if SCOPE.get(user)[: len(scope)] == scope}
        for use in uses:
            layer = SCOPE.get(use[0])[: len(scope)]
            if layer == scope:
                continue
            if node in self.entering and (beside := _beside(SCOPE.get(use[0]), parts)) is not None:
                layer = beside
            elif _role(layer) != _role(scope):
                return {}
            if use[0].graph is not self.graph:
                return {}
            elsewhere.setdefault(layer, []).append(use)
        return elsewhere

    def _insert(self, copy: ir.Node, users: list[ir.Node]) -> None:
        """Insert a copy before the first of its users, and before the copies of later nodes that stand there."""
        position = min(self.order[user] for user in users)
        near = self.copies.setdefault(position, [])
        self.graph.insert_before(near[0] if near else self.nodes[position], copy)
        self.order[copy] = position
        near.insert(0, copy)

    def _counterpart(self, node: ir.Node, layer: ModulePath) -> list[ir.Node]:
        """Return the node of another layer that the copy must precede, so that both layers have the same order."""
        if node not in self.prepared:
            return []
        before = sum(self.order[other] < self.order[node] for other in self.own[SCOPE.get(node)])
        after = self.own[layer][before : before + 1]
        return [other for other in after if self.order[other] > self.order[node]]


def _arranges(node: ir.Node) -> bool:
    return arranges(node) or node.op_type == "Expand"


def _is_function(node: ir.Node) -> bool:
    """True for what computes element by element, and draws nothing: all users of a draw have the same numbers."""
    return is_a(node, ELEMENTWISE) and not is_a(node, RANDOM) and node.op_type != "Dropout"


def _prepared(graph: ir.Graph) -> set[ir.Node]:
    known = set(graph.inputs)
    prepared: set[ir.Node] = set()
    for node in graph:
        is_cheap = is_a(node, STRIDES) or _is_function(node) or not (node.inputs or is_a(node, RANDOM))
        if node.domain in ("", DOMAIN) and (_arranges(node) or is_cheap):
            if all(v is None or v in known or (v.is_initializer() and not is_trained(v)) for v in node.inputs):
                known.update(v for v in node.outputs if not is_trained(v))
                prepared.add(node)
    return prepared


def _entering(graph: ir.Graph) -> dict[ir.Node, ir.Value]:
    """Return the nodes that are a function, element by element, of one value from outside their scope, with it."""
    entering: dict[ir.Node, ir.Value] = {}
    for node in graph:
        values = {v for v in node.inputs if v is not None and (v.const_value is None or is_trained(v))}
        entered = {_entered(v, SCOPE.get(node), entering) for v in values}
        value = entered.pop() if len(entered) == 1 else None
        if value is not None and not is_trained(value) and _is_function(node) and node.domain in ("", DOMAIN):
            entering[node] = value
    return entering


def _entered(value: ir.Value, scope: ModulePath, entering: dict[ir.Node, ir.Value]) -> ir.Value | None:
    """Return the value from outside a scope that a value is, or is a function of; None if there is no such one."""
    maker = value.producer()
    if maker is None or SCOPE.get(maker)[: len(scope)] != scope:
        return value
    return entering.get(maker)


def _beside(scope: ModulePath, parts: set[ModulePath]) -> ModulePath | None:
    """Return the module whose part a scope is, if it is called like a part of the layer that computes the value."""
    modules = (scope[: -len(part)] for part in parts if part and scope[-len(part) :] == part)
    return next(modules, None)


def _role(scope: ModulePath) -> str:
    return re.sub(r"\d+", "#", ".".join(scope))


def _copy(node: ir.Node, scope: ModulePath) -> ir.Node:
    copy = ir.Node(
        node.domain, node.op_type, node.inputs, list(node.attributes.values()), num_outputs=len(node.outputs),
        version=node.version, name=node.name,
    )  # fmt: skip
    copy_all(node, copy)
    SCOPE.set(copy, scope)
    STANDS_FOR.set(copy, names_of(node))
    for old, new in zip(node.outputs, copy.outputs, strict=True):
        new.type, new.shape = old.type, old.shape
        set_info(new, info(old))
    return copy
