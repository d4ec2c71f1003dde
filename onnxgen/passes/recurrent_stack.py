"""Merge recurrent nodes of one module that feed each other as its layers; find `batch_first` (`passes.recurrent`)."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.nodes import made_by
from onnxgen.passes.match import dropout_ratio
from onnxgen.passes.rewrite import drop, only_user, own
from onnxgen.passes.slices import make_up_axis, piece
from onnxgen.passes.steps import constant, insert, permuted, replace_uses
from onnxgen.shapes.info import Info, info, set_info
from onnxgen.weights.provenance import Source

SWAP = (1, 0, 2)


@dataclass
class RecurrentLayer:
    """A node that a layer of torch computes.

    Attributes:
        sources: the stored tensors of W, R and, if it has one, B.
        module, number: the module and the number of the layer in it, from its tensors' names; None if not known.
        new: the node that replaces it.
        dropout: the dropout rate between this layer and the next one of the module.
    """

    node: ir.Node
    sources: list[Source]
    hidden: int
    directions: int
    relu: bool
    module: ModulePath | None = None
    number: int = 0
    new: ir.Node = None  # type: ignore[assignment]
    dropout: float = 0.0


def layer_above(layer: RecurrentLayer, layers: dict[ir.Value, RecurrentLayer]) -> RecurrentLayer | None:
    """Return the next layer of the same module, else None.

    It must be the only user of this layer's output. Tensor names or the scope must show that they are one module; the
    exporter may have folded some names away. A Dropout may be between them, as in training exports, if the names show
    that they are one module, or its scope.
    """
    y = layer.new.outputs[0]
    user, ratio = only_user(y), 0.0
    if (
        user is not None
        and made_by(user.outputs[0], "Dropout")
        and (layer.module is not None or _is_within(user, layer))
    ):
        found = dropout_ratio(user)
        if found is None or any(o.uses() or o.is_graph_output() for o in user.outputs[1:]):
            return None
        y, ratio, user = user.outputs[0], found, only_user(user.outputs[0])
    above = None if user is None else layers.get(user.outputs[0])
    if above is None or above.new.inputs[0] is not y or above.new.graph is not layer.new.graph:
        return None
    layer.dropout = ratio
    return above if _are_one(layer, above) and _kind(above) == _kind(layer) else None


def _is_within(node: ir.Node, layer: RecurrentLayer) -> bool:
    """True if a node is in the layer's own scope."""
    scope = SCOPE.get(layer.new)
    return bool(scope) and SCOPE.get(node) == scope


def _are_one(layer: RecurrentLayer, above: RecurrentLayer) -> bool:
    """True if two layers are neighbours in one module. A layer without names gets its number from the other one."""
    if layer.module is not None and above.module is not None:
        return (above.module, above.number) == (layer.module, layer.number + 1)
    if not _is_within(above.new, layer):
        return False
    if layer.module is None and above.module is not None:
        if above.module != SCOPE.get(layer.new) or above.number == 0:
            return False
        layer.module, layer.number = above.module, above.number - 1
    elif layer.module is not None:
        if layer.module != SCOPE.get(above.new):
            return False
        above.module, above.number = layer.module, layer.number + 1
    return True


def _kind(layer: RecurrentLayer) -> tuple[object, ...]:
    """Return what layers of one module have in common."""
    attributes = {name: a.value for name, a in layer.new.attributes.items()}
    dtypes, states = [s.dtype for s in layer.sources], [s is None for s in _states(layer.new)]
    return layer.new.op_type, attributes, dtypes, states


def _states(node: ir.Node) -> list[ir.Value | None]:
    return list(node.inputs[1:-3])


def merged(chain: list[RecurrentLayer]) -> ir.Node:
    """Replace the nodes of several layers by one."""
    first, last = chain[0].new, chain[-1].new
    states = [_joined(last, list(each)) for each in zip(*(_states(layer.new) for layer in chain))]
    weights = [v for layer in chain for v in layer.new.inputs[-3:]]
    attributes = {**first.attributes, "dropout": chain[0].dropout}
    new = own(first.op_type, [first.inputs[0], *states, *weights], len(first.outputs), **attributes)
    new.name = first.name
    y = insert(last, new, last.outputs[0].name, info(last.outputs[0]), first)
    replace_uses(last.outputs[0], y)
    for i in range(1, len(new.outputs)):
        _split_states(chain, new.outputs[i], i)
    for layer in reversed(chain):
        drop(layer.new)
    return new


def _joined(before: ir.Node, states: list[ir.Value | None]) -> ir.Value | None:
    """Return the initial states of all layers as one value: the value that they are slices of, or their Concat."""
    known = [s for s in states if s is not None]
    if not known:
        return None
    pieces = [piece(s) for s in known]
    if make_up_axis(pieces) and pieces[0] is not None and pieces[0].axis == 0:
        return pieces[0].x
    joined = ir.node("Concat", known, {"axis": 0}, version=13)
    facts, rows = info(known[0]), [(info(s).shape or ("?",))[0] for s in known]
    total = sum(n for n in rows if isinstance(n, int))
    shape = None if facts.shape is None else (total, *facts.shape[1:])
    return insert(before, joined, f"{known[0].name}.all", Info(facts.dtype, shape))


def _split_states(chain: list[RecurrentLayer], state: ir.Value, index: int) -> None:
    """Replace the final states of single layers by slices of the module's, and their Concat by the module's."""
    last, olds, d = chain[-1].new, [layer.new.outputs[index] for layer in chain], chain[0].directions
    facts = info(olds[0])
    state.name = olds[-1].name
    set_info(state, Info(facts.dtype, None if facts.shape is None else (d * len(chain), *facts.shape[1:])))
    for user in [use.node for use in olds[0].uses()]:
        if user.op_type == "Concat" and list(user.inputs) == olds and user.attributes["axis"].as_int() == 0:
            stand_for(user.outputs[0], state)
            drop(user)
    for k, old in enumerate(olds):
        if old.uses() or old.is_graph_output():
            bounds = [constant(last, [v], f"{state.name}.{k}.{v}") for v in (k * d, k * d + d, 0)]
            part = insert(last, ir.node("Slice", [state, *bounds], version=13), old.name, info(old))
            replace_uses(old, part)


def make_batch_first(node: ir.Node) -> None:
    """Remove the Transposes around a module whose input and output are batch-first."""
    x, y = node.inputs[0], node.outputs[0]
    producer, users = None if x is None else x.producer(), [use.node for use in y.uses()]
    if producer is None or y.is_graph_output() or not all(map(_swaps, [producer, *users])):
        return
    if node.attributes["batch_first"].as_int():
        return
    node.attributes["batch_first"] = ir.AttrInt64("batch_first", 1)
    node.replace_input_with(0, producer.inputs[0])
    set_info(y, permuted(info(y), SWAP))
    for user in users:
        stand_for(user.outputs[0], y)
        drop(user)
    drop(producer)


def stand_for(old: ir.Value, new: ir.Value) -> None:
    """Let everything use `new`, which has the name of the value that it is, unless it is an output of the graph."""
    if not new.is_graph_output():
        new.name = old.name
    replace_uses(old, new)


def _swaps(node: ir.Node) -> bool:
    transpose = made_by(node.outputs[0], "Transpose")
    return transpose is not None and tuple(transpose.attributes.get_ints("perm", ())) == SWAP
