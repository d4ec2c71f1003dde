"""Layers around attention become `nn.TransformerEncoderLayer` and `nn.TransformerDecoderLayer` where they compute that.

    x = norm1(x + dropout1(self_attn(x, x, x)))                     each block may have its norm first:
    x = norm2(x + dropout2(multihead_attn(x, memory, memory)))      x + dropout1(self_attn(norm1(x)))
    x = norm3(x + dropout3(linear2(dropout(activation(linear1(x))))))

Scopes must be those of torch's modules. All Dropouts must have one rate, that of the attention's probabilities too,
since torch's layer has one argument for them. Stacks of layers are joined by `passes.transformer_stacks`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import CLASSES, SCOPE, SITES
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.passes.attention_masks import only_hides
from onnxgen.passes.match import dropout_ratio, other, shape_of, source_of
from onnxgen.passes.rewrite import input_at, only_user, own
from onnxgen.passes.transformer_stacks import FIRST, Layer, Noted, Takers, join, put
from onnxgen.shapes.info import info
from onnxgen.weights.stored import Finder, Place, Views

ATTENTION_TENSORS = range(3, 11)  # inputs of `onnxgen.MultiheadAttention`
NAMES = {1: "TransformerEncoderLayer", 2: "TransformerDecoderLayer"}  # by the number of attentions


def transformer(model: ir.Model, options: Options) -> None:
    """Rewrite every layer, and then every stack of them; not with `--dropout`, which is for modules inside of them."""
    if options.dropout:
        return
    views, finder, classes = Views(model, options), Finder(model), CLASSES.get(model)
    first = [node for node in all_nodes(model.graph) if _begins(node)]
    candidates = [layer for node in first if (layer := _layer(node, views, classes)) is not None]
    if not candidates:
        return
    takers, nodes = Takers(model, views), defaultdict[ModulePath, list[ir.Node]](list)
    for layer in candidates:  # a layer may be called several times
        nodes[layer.scope] += layer.nodes
    alone = {scope for scope, own in nodes.items() if takers.are_alone(own, scope)}
    layers = []
    for node in (layer.attentions[0] for layer in candidates if layer.scope in alone):
        again = None if node.graph is None else _layer(node, views, classes)  # another one's result by now
        if again is not None:
            layers.append(_write(again, finder, views))
    join(model, layers, views, finder, classes)


def _begins(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == (DOMAIN, "MultiheadAttention") and SCOPE.get(node)[1:][-1:] == ("self_attn",)


def _layer(node: ir.Node, views: Views, classes: Mapping[ModulePath, str]) -> _Parts | None:

    for norm_first in (False, True):
        parts = _Reader(node, norm_first, views).layer()
        if parts is not None and classes.get(parts.scope, kind := NAMES[len(parts.attentions)]) == kind:
            return parts
    return None


@dataclass
class _Parts:
    """The nodes of a layer.

    Attributes:
        last: the value that the layer makes.
        dropout: the rates of all places that may have a Dropout, None where there is none.
    """

    scope: ModulePath
    norm_first: bool
    x: ir.Value
    last: ir.Value
    attentions: list[ir.Node] = field(default_factory=list)
    linears: list[ir.Node] = field(default_factory=list)
    norms: list[ir.Node] = field(default_factory=list)
    others: list[ir.Node] = field(default_factory=list)
    dropout: list[float | None] = field(default_factory=list)
    activation: str = ""

    @property
    def nodes(self) -> list[ir.Node]:
        return [*self.attentions, *self.norms, *self.linears, *self.others]


class _Reader:
    """Reads a layer from its first attention on."""

    def __init__(self, attention: ir.Node, norm_first: bool, views: Views) -> None:
        self.first, self.views = attention, views
        x = attention.inputs[0]
        start = source_of(x, "LayerNormalization") if norm_first else x
        assert x is not None
        self.parts = _Parts(SCOPE.get(attention)[:-1], norm_first, start or x, attention.outputs[0])
        self.is_started = start is not None

    def layer(self) -> _Parts | None:
        """Return the layer, or None if anything differs."""
        parts = self.parts
        y = self._attention(self.first, parts.x, "self_attn") if self.is_started else None
        cross = None if y is None else self._cross(y)
        if cross is None and not only_hides(input_at(self.first, 11)):
            return None
        if y is not None and cross is not None:
            y = self._attention(cross, y, "multihead_attn")
        y = None if y is None else self._feed_forward(y)
        if y is None or len(set(parts.dropout)) != 1 or not self._is_uniform():
            return None
        parts.last = y
        return parts

    def _cross(self, y: ir.Value) -> ir.Node | None:
        """Return the attention to the memory that comes next, else None."""
        pending = [use.node for use in y.uses()]
        pending += [use.node for n in pending if n.op_type == "LayerNormalization" for use in n.outputs[0].uses()]
        wanted = (*self.parts.scope, "multihead_attn")
        return next((n for n in pending if n.op_type == "MultiheadAttention" and SCOPE.get(n) == wanted), None)

    def _attention(self, node: ir.Node, x: ir.Value, name: str) -> ir.Value | None:
        """Return x after the block of an attention."""
        query, key, value = node.inputs[:3]
        is_masked = input_at(node, 11) is not None and node.attributes["need_weights"].as_int()
        if SCOPE.get(node) != (*self.parts.scope, name) or len(node.outputs) > 1 or key is not value or is_masked:
            return None
        if input_at(node, 12) is not None or (key is query) != (name == "self_attn") or query is None:
            return None
        self.parts.attentions.append(node)
        self.parts.dropout.append(node.attributes["dropout"].as_float() or None)
        return self._residual(x, query, {node}, node.outputs[0])

    def _residual(self, x: ir.Value, taken: ir.Value, first: set[ir.Node], result: ir.Value) -> ir.Value | None:
        """Return the sum of x and a block's result with its norm. `first`: those that take `taken`."""
        end = self._dropped(result)
        add = None if end is None else only_user(end, "Add")
        if end is None or add is None or other(add, end) is not x:
            return None
        self.parts.others.append(add)
        norm = self._norm_of(x, taken, first, add)
        if norm is None or not self._is_norm(norm):
            return None
        y, users = add.outputs[0], {norm, add}
        if not self.parts.norm_first:
            y, users = norm.outputs[0], {*first, add}
        return y if x is self.parts.x or _is_used_by(x, users) else None

    def _norm_of(self, x: ir.Value, taken: ir.Value, first: set[ir.Node], add: ir.Node) -> ir.Node | None:
        """Return the norm of a block: what makes `taken` of x, or what takes the sum."""
        if not self.parts.norm_first:
            return only_user(add.outputs[0], "LayerNormalization") if taken is x else None
        is_alone = source_of(taken, "LayerNormalization") is x and _is_used_by(taken, first)
        return taken.producer() if is_alone else None

    def _is_norm(self, node: ir.Node) -> bool:
        name = f"norm{len(self.parts.norms) + 1}"
        self.parts.norms.append(node)
        axis, rank = node.attributes.get_int("axis", -1), info(node.inputs[0]).rank
        tensors = [self.views(v) for v in node.inputs[1:3]]
        is_last = axis == -1 or (rank is not None and axis == rank - 1)
        return SCOPE.get(node) == (*self.parts.scope, name) and is_last and None not in tensors

    def _dropped(self, value: ir.Value) -> ir.Value | None:
        """Return a value after the Dropout that may follow; None if that is none of torch's."""
        node = only_user(value, "Dropout")
        rate = None if node is None else dropout_ratio(node)
        self.parts.dropout.append(rate or None)
        if node is None:
            return value
        self.parts.others.append(node)
        return None if rate is None else node.outputs[0]

    def _feed_forward(self, x: ir.Value) -> ir.Value | None:
        taken = x
        if self.parts.norm_first:
            norm = next((use.node for use in x.uses() if use.node.op_type == "LayerNormalization"), None)
            taken = x if norm is None else norm.outputs[0]
        first = next((use.node for use in taken.uses() if self._is_linear(use.node, "linear1")), None)
        active = None if first is None else only_user(first.outputs[0], "Relu", "Gelu")
        if first is None or active is None or active.attributes.get_string("approximate", "none") != "none":
            return None
        self.parts.activation = active.op_type.lower()
        dropped = self._dropped(active.outputs[0])
        second = None if dropped is None else only_user(dropped)
        if second is None or not self._is_linear(second, "linear2"):
            return None
        self.parts.linears += [first, second]
        self.parts.others.append(active)
        return self._residual(x, taken, {first}, second.outputs[0])

    def _is_linear(self, node: ir.Node, name: str) -> bool:
        is_linear = (node.domain, node.op_type) == (DOMAIN, "Linear") and SCOPE.get(node) == (*self.parts.scope, name)
        return is_linear and all(self.views(v) is not None for v in node.inputs[1:])

    def _is_uniform(self) -> bool:
        """True if all attentions are alike, all parts have biases or none has, and the sizes are those of one layer."""
        parts = self.parts
        kinds = {(a.attributes["heads"].as_int(), a.attributes["batch_first"].as_int()) for a in parts.attentions}
        biased = {input_at(a, 10) is not None for a in parts.attentions}
        biased |= {input_at(n, 2) is not None for n in (*parts.linears, *parts.norms)}
        widths = {shape_of(v)[-1:] for v in (parts.x, *(v for a in parts.attentions for v in a.inputs[:3]))}
        epsilons = {n.attributes.get_float("epsilon", 1e-5) for n in parts.norms}
        is_known = all(width and isinstance(width[0], int) for width in widths)
        return len(kinds) == len(biased) == len(epsilons) == len(widths) == 1 and is_known


def _is_used_by(value: ir.Value, nodes: set[ir.Node]) -> bool:
    return not value.is_graph_output() and {use.node for use in value.uses()} == nodes


def _write(parts: _Parts, finder: Finder, views: Views) -> Layer:
    """Replace the nodes of a layer by one, `onnxgen.Transformer`."""
    at = parts.last.producer()
    assert at is not None
    is_decoder = len(parts.attentions) == 2
    tensors: list[ir.Value | None] = []
    places: list[Place] = []
    noted: Noted = {}
    for node in parts.attentions:
        noted |= {FIRST + len(tensors) + i - 3: s for i, s in SITES.get(node).items()}
        tensors += [input_at(node, i) for i in ATTENTION_TENSORS]
    for node in (*parts.linears, *parts.norms):
        for i in (1, 2):
            value = input_at(node, i)
            source = views(value)
            if source is not None:
                places.append((FIRST + len(tensors), node, i, source))
            tensors.append(value)
    masks = [input_at(node, 11) for node in parts.attentions]
    first = parts.attentions[0]
    memory = parts.attentions[-1].inputs[1] if is_decoder else None
    inputs = [parts.x, memory, *([None, *masks] if is_decoder else [*masks, None, None])]
    new = own(
        "Transformer", [*inputs, *tensors], stacked=0, encoders=int(not is_decoder), decoders=int(is_decoder), norms=0,
        heads=first.attributes["heads"].as_int(), batch_first=first.attributes["batch_first"].as_int(),
        norm_first=int(parts.norm_first), dropout=parts.dropout[0] or 0.0, activation=parts.activation,
        epsilon=parts.norms[0].attributes.get_float("epsilon", 1e-5), norm_epsilon=0.0,
        starts=[s for node in parts.attentions for s in node.attributes["starts"].as_ints()],
        transposed=[node.attributes["transposed"].as_int() for node in parts.attentions],
    )  # fmt: skip
    finder.note(new, places)
    SITES.set(new, {**SITES.get(new), **noted})
    put(new, at, parts.last, parts.scope, parts.nodes)
    return Layer(new, parts.scope)
