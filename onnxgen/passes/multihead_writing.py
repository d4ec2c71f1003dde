"""Writes the `onnxgen.MultiheadAttention` that `passes.multihead` found into the graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import SCOPE, STANDS_FOR
from onnxgen.graph.nodes import made_by
from onnxgen.passes.layouts import MAX_CHAIN, Sizes, arrangement
from onnxgen.passes.match import ints
from onnxgen.passes.multihead_masks import Masks
from onnxgen.passes.rewrite import drop, names_of, only_user, own, replace
from onnxgen.passes.steps import insert, known_ints, permuted, replace_uses
from onnxgen.passes.views import arranges
from onnxgen.shapes.info import Info, info, set_info
from onnxgen.weights.sites import Finder, Place
from onnxgen.weights.stored import Views

SWAP = (1, 0, 2)


@dataclass
class Projection:
    """`result = x @ weight + bias`, with the weight as [in, out]; `product` is the node without the bias."""

    product: ir.Node
    result: ir.Value
    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None


@dataclass
class End:
    """The projection of the output: its product, the node with its result, and the module that it belongs to."""

    taken: ir.Value
    product: ir.Node
    last: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    transposed: bool
    module: ModulePath


@dataclass
class Probabilities:
    """What the product with v takes, the softmax that makes it, and the Dropout between."""

    value: ir.Value
    softmax: ir.Node
    dropout: float


@dataclass
class Found:
    """A layer.

    Attributes:
        node: the product of the probabilities with v.
        starts: the first column of q, k and v in their projections.
        full: the shape of the scores.
    """

    node: ir.Node
    end: End
    projections: list[Projection]
    starts: list[int]
    heads: int
    width: int
    weights: Probabilities
    masks: Masks
    sizes: Sizes
    full: tuple[int, int, int, int]


def write(found: Found, order: dict[ir.Node, int], finder: Finder, views: Views) -> None:
    """Replace the nodes by one. It stands before the softmax, if what it takes is computed by then.

    `order`: the position of each node of the graph.
    """
    at = found.weights.softmax
    xs = [p.x for p in found.projections]
    taken = [*xs, *(m for m in (found.masks.attention, found.masks.padding) if m is not None)]
    if at.graph is not found.end.last.graph or any(_position(v, order) > order.get(at, -1) for v in taken):
        return
    sources = [_unswapped(x) for x in xs]
    swapped = [s for s in sources if s is not None]
    batch_first = len(swapped) == len(xs)
    users = [use.node for use in found.weights.value.uses() if use.node is not found.node]
    averaged = _averages(found, users)
    rank4 = info(found.node.outputs[0]).rank == 4
    wanted = bool(users) or found.weights.value.is_graph_output() or found.masks.may_empty or not rank4
    new = own(
        "MultiheadAttention",
        [*(swapped if batch_first else xs), *_tensors(found), found.masks.attention, found.masks.padding],
        2 if users or found.weights.value.is_graph_output() else 1,
        heads=found.heads, starts=found.starts, transposed=int(found.end.transposed), batch_first=int(batch_first),
        dropout=found.weights.dropout, need_weights=int(wanted), average=int(bool(averaged) or not users),
    )  # fmt: skip
    new.name = found.end.last.name
    facts = info(xs[0])
    straight = Info(facts.dtype, (*(facts.shape or ())[:2], found.width))
    gone = [found.weights.softmax, found.node, found.end.last]
    y = insert(at, new, None, permuted(straight, SWAP) if batch_first else straight)
    SCOPE.set(new, found.end.module)
    finder.note(new, _places(found, views))
    _put_weights(found, new, averaged)
    _put_result(found, new, y, batch_first, straight)
    STANDS_FOR.set(new, tuple(dict.fromkeys(name for node in gone for name in names_of(node))))


def _tensors(found: Found) -> list[ir.Value | None]:
    weights, biases = [p.weight for p in found.projections], [p.bias for p in found.projections]
    return [*weights, *biases, found.end.weight, found.end.bias]


def _places(found: Found, views: Views) -> Iterator[Place]:
    """Yield where the older nodes take the tensors (see `Finder.note`)."""
    made = [(p.product, p.result.producer(), p.weight, p.bias) for p in found.projections]
    made.append((found.end.product, found.end.last, found.end.weight, found.end.bias))
    for i, (product, last, weight, bias) in enumerate(made):
        at = (3 + i, 6 + i) if i < 3 else (9, 10)
        for index, node, value in zip(at, (product, last), (weight, bias)):
            source = views(value)
            if node is not None and value is not None and source is not None:
                yield index, node, node.inputs.index(value), source


def _position(value: ir.Value, order: dict[ir.Node, int]) -> int:
    node = value.producer()
    return -1 if node is None else order.get(node, -1)


def _unswapped(value: ir.Value) -> ir.Value | None:
    """Return the tensor [batch, length, size] that is transposed to a layer's input, else None."""
    node = made_by(value, "Transpose")
    return node.inputs[0] if node is not None and tuple(node.attributes.get_ints("perm", ())) == SWAP else None


def _averages(found: Found, users: list[ir.Node]) -> list[ir.Node]:
    """Return the nodes that average the probabilities over the heads, if nothing else uses these."""
    ends = []
    for node in users:
        value = found.weights.value
        if info(value).rank == 3:
            value = node.outputs[0]
            after = only_user(value) if arranges(node) else None
            if after is None:
                return []
            node = after
        positions = arrangement(value, found.weights.value, found.sizes)
        if node.op_type != "ReduceMean" or ints(node, "axes", 1) not in ([1], [-3]) or positions is None:
            return []
        if (
            node.attributes.get_int("keepdims", 1)
            or positions.shape != found.full
            or (np.diff(positions.flat) != 1).any()
        ):
            return []
        ends.append(node)
    return [] if found.weights.value.is_graph_output() else ends


def _put_weights(found: Found, new: ir.Node, averaged: list[ir.Node]) -> None:
    if len(new.outputs) < 2:
        return
    old, weights = found.weights.value, new.outputs[1]
    (length, batch), keys = (info(found.projections[0].result).shape or ())[:2], (info(old).shape or ())[-1]
    whole = Info(info(old).dtype, (batch, found.heads, length, keys))
    if averaged:
        weights.name = averaged[0].outputs[0].name
        set_info(weights, Info(whole.dtype, (batch, length, keys)))
        for node in averaged:
            replace_uses(node.outputs[0], weights)
            drop(node)
        return
    weights.name = f"{old.name}.heads"
    set_info(weights, whole)
    if info(old).rank == 3:
        shaped = ir.node("Reshape", [weights, known_ints(info(old).shape or ())], version=13)
        weights = insert(found.weights.softmax, shaped, f"{old.name}.merged", info(old), new)
    for use in list(old.uses()):
        if use.node is not found.node:
            use.node.replace_input_with(use.idx, weights)


def _put_result(found: Found, new: ir.Node, y: ir.Value, batch_first: bool, straight: Info) -> None:
    """Let the users of the output projection take the new node's result, past the views that give it its shape."""
    last, old = found.end.last, found.end.last.outputs[0]
    y.name = f"{old.name}.layer"
    target = _target(found, batch_first)
    if target is not None:
        y.name = target.name
        producer = target.producer()
        replace_uses(target, y)
        if producer is not None:
            drop(producer)
        return
    if batch_first:
        turned = ir.node("Transpose", [y], {"perm": SWAP}, version=13)
        y = insert(last, turned, f"{old.name}.turned", straight, new)
    replace(last, ir.node("Reshape", [y, known_ints(info(old).shape or ())], version=13))


def _target(found: Found, batch_first: bool) -> ir.Value | None:
    """Return the value after the output projection that has the shape of the layer's result, else None."""
    old = found.end.last.outputs[0]
    batch, _, length, _ = found.full
    wanted = np.arange(length * batch * found.width).reshape(length, batch, found.width)
    wanted = wanted.transpose(SWAP) if batch_first else wanted
    value, chain = old, [old]
    for _ in range(MAX_CHAIN):
        user = only_user(value)
        if user is None or not arranges(user):
            break
        value = user.outputs[0]
        chain.append(value)
    for value in reversed(chain):
        if found.sizes.shape(value) == wanted.shape:
            positions = arrangement(value, old, found.sizes)
            if positions is not None and np.array_equal(positions, wanted):
                return value
    return None
