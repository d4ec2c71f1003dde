"""Stacks of transformer layers become `nn.TransformerEncoder` and `nn.TransformerDecoder`.

A stack is `layers.0`, `layers.1`, ... of one module, each with the result of the last, and perhaps a norm behind them.
All layers have one form, the same masks and, in a decoder, the same memory.

torch's composite layers use their own submodules: `nn.TransformerEncoder` applies what is called `norm`, a layer what
is called `dropout1`. So nodes become such a layer only if the file has nothing else in the module (`Takers`): no other
node in a submodule takes a parameter, and no other node takes one of the layer's. Else the class is the author's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import SCOPE, SITES, Site, is_trained
from onnxgen.graph.nodes import all_nodes
from onnxgen.passes.match import elements
from onnxgen.passes.rewrite import drop, input_at, insert, note_replaced, only_user, own, replace_uses
from onnxgen.passes.trainable import stored_values
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.info import info
from onnxgen.weights.stored import Finder, Views, is_uniform


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


FIRST = 5  # inputs of `onnxgen.Transformer` before the tensors: source, target or memory, and three masks
Noted = dict[int, Mapping[str, Set[Site]]]  # see `SITES`
ALIKE = ("encoders", "decoders", "heads", "batch_first", "norm_first", "dropout", "activation", "epsilon")


@dataclass
class Layer:
    """A layer or a stack, and its module."""

    node: ir.Node
    scope: ModulePath


def join(model: ir.Model, layers: list[Layer], views: Views, finder: Finder, classes: Mapping[ModulePath, str]) -> None:
    """Join the layers of each stack."""
    by_scope = {layer.scope: layer for layer in layers}
    listed, takers = _all_listed(layers), Takers(model, views)
    for layer in layers:
        if len(layer.scope) > 2 and layer.scope[-2:] == ("layers", "0"):
            kind = "TransformerDecoder" if layer.node.attributes["decoders"].as_int() else "TransformerEncoder"
            module = layer.scope[:-2]
            chain = _chain(layer, by_scope)
            if classes.get(module, kind) == kind and len(listed[module]) == len(chain):
                norm = _norm(chain[-1], module, views)
                if takers.are_alone([*chain, *([] if norm is None else [norm])], module):
                    _stacked(chain, norm, module, views, finder)


def _all_listed(layers: Sequence[Layer]) -> Mapping[ModulePath, Set[str]]:
    """Return the items of the list `layers` of each module that has one: all of them must be of a stack."""
    items: dict[ModulePath, set[str]] = defaultdict(set)
    graphs = dict.fromkeys(layer.node.graph for layer in layers)
    for node in (node for graph in graphs for node in graph or ()):
        scope = SCOPE.get(node) or ()
        for i, name in enumerate(scope[:-1]):
            if name == "layers":
                items[scope[:i]].add(scope[i + 1])
    return items


def _chain(first: Layer, by_scope: Mapping[ModulePath, Layer]) -> list[ir.Node]:
    """Return the layers of a stack, in order. If they are not all of it, only the first."""
    chain = [first.node]
    while (above := by_scope.get((*first.scope[:-1], str(len(chain))))) is not None:
        node, y = above.node, chain[-1].outputs[0]
        if node.inputs[0] is not y or only_user(y) is not node or not _alike(chain[0], node):
            return [first.node]
        chain.append(node)
    return chain


def _alike(a: ir.Node, b: ir.Node) -> bool:
    """True if two layers have one form, the same memory and the same masks."""
    options = all(a.attributes[name].value == b.attributes[name].value for name in ALIKE)
    shapes = [[info(v).shape for v in node.inputs[FIRST + 1 :] if v is not None] for node in (a, b)]
    return options and shapes[0][-1:] == shapes[1][-1:] and all(map(_same, a.inputs[1:FIRST], b.inputs[1:FIRST]))


def _same(a: ir.Value | None, b: ir.Value | None) -> bool:
    """True if two values are one, or constants with the same elements."""
    first, second = elements(a), elements(b)
    if a is b or first is None or second is None:
        return a is b
    return first.dtype == second.dtype and np.array_equal(first, second)


def _norm(last: ir.Node, module: ModulePath, views: Views) -> ir.Node | None:
    """Return the norm of a stack, behind its last layer."""
    norm = only_user(last.outputs[0], "LayerNormalization")
    if norm is None or SCOPE.get(norm) != (*module, "norm"):
        return None
    axis, rank = norm.attributes.get_int("axis", -1), info(norm.inputs[0]).rank or 0
    is_stored = all(value is None or views(value) is not None for value in norm.inputs[1:3])
    return norm if axis in (-1, rank - 1) and is_stored else None


def _stacked(chain: Sequence[ir.Node], norm: ir.Node | None, module: ModulePath, views: Views, finder: Finder) -> None:
    """Replace the layers of a stack by one node, with the norm behind them."""
    first, y = chain[0], chain[-1].outputs[0]
    nodes, places = list(chain), []
    tensors: list[ir.Value | None] = []
    noted: Noted = {}
    for node in chain:
        noted |= {len(tensors) + i: sites for i, sites in SITES.get(node).items()}
        tensors += node.inputs[FIRST:]
    attributes = {name: a.value for name, a in first.attributes.items()}
    for key in ("starts", "transposed"):
        attributes[key] = [v for node in chain for v in node.attributes[key].as_ints()]
    attributes |= {key: attributes[key] * len(chain) for key in ("encoders", "decoders")} | {"stacked": 1}
    if norm is not None:
        nodes, y = [*nodes, norm], norm.outputs[0]
        attributes |= {"norms": 1, "norm_epsilon": norm.attributes.get_float("epsilon", 1e-5)}
        sources = ((i, views(input_at(norm, i))) for i in (1, 2))
        places = [(FIRST + len(tensors) + i - 1, norm, i, source) for i, source in sources if source is not None]
        tensors += [input_at(norm, 1), input_at(norm, 2)]
    new = own("Transformer", [*first.inputs[:FIRST], *tensors], **attributes)
    finder.note(new, places)
    SITES.set(new, {**SITES.get(new), **noted})
    put(new, nodes[-1], y, module, nodes)


def put(new: ir.Node, at: ir.Node, last: ir.Value, scope: ModulePath, nodes: Sequence[ir.Node]) -> None:
    """Let a new node make the value `last`, in the place of the nodes that made it, whose last one is `at`."""
    note_replaced(new, nodes)
    new.name = at.name
    y = insert(at, new, last.name, info(last))
    SCOPE.set(new, scope)
    replace_uses(last, y)
    drop(at)
