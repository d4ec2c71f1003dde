"""Recurrent nodes of one module that feed each other as its layers, and `batch_first` (see `passes.recurrent`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.domains import DOMAIN
from onnxgen.passes.match import dropout_ratio
from onnxgen.passes.rewrite import beside, drop, only_user
from onnxgen.passes.steps import constant, input_at, insert, name_after, permuted, replace_uses
from onnxgen.shapes.info import Info, info, set_info
from onnxgen.weights.provenance import Source

SWAP = (1, 0, 2)


@dataclass
class RecurrentLayer:
    """A node that torch's layer computes: its weights, and where their names say that they belong."""

    node: ir.Node
    sources: list[Source]
    hidden: int
    directions: int
    relu: bool
    home: tuple[str, ...] | None = None
    number: int = 0
    new: ir.Node = None  # type: ignore[assignment]  # made when it is rewritten
    dropout: float = 0.0  # between this layer and the next one of the module


def layer_above(layer: RecurrentLayer, layers: dict[ir.Value, RecurrentLayer]) -> RecurrentLayer | None:
    """The next layer of the same module: it alone takes this one's output, and names or scope say that they are one.

    Between them may be Dropout, as there is in training exports, if the tensors' own names tell that they are one.
    """
    y = layer.new.outputs[0]
    user, ratio = only_user(y), 0.0
    if user is not None and user.op_type == "Dropout" and user.domain == "" and layer.home is not None:
        found = dropout_ratio(user)
        if found is None or any(o.uses() or o.is_graph_output() for o in user.outputs[1:]):
            return None
        y, ratio, user = user.outputs[0], found, only_user(user.outputs[0])
    above = None if user is None else layers.get(user.outputs[0])
    if above is None or above.new.inputs[0] is not y or above.new.graph is not layer.new.graph:
        return None
    layer.dropout = ratio
    same = (
        above.new.op_type == layer.new.op_type
        and above.hidden == layer.hidden
        and above.directions == layer.directions
        and above.relu == layer.relu
        and len(above.sources) == len(layer.sources)
        and all(a.dtype == b.dtype for a, b in zip(above.sources, layer.sources))
        and above.new.attributes["batch_first"].value == layer.new.attributes["batch_first"].value
        and [s is None for s in _states(above.new)] == [s is None for s in _states(layer.new)]
    )
    if layer.home is not None or above.home is not None:
        together = above.home == layer.home and above.number == layer.number + 1
    else:
        scope = SCOPE.get(layer.new)
        together = bool(scope) and SCOPE.get(above.new) == scope
    return above if same and together else None


def _states(node: ir.Node) -> list[ir.Value | None]:
    return list(node.inputs[1:-3])


def merged(chain: list[RecurrentLayer]) -> ir.Node:
    """One node for several layers."""
    first, last = chain[0].new, chain[-1].new
    states = [_joined(last, [layer.new.inputs[1 + i] for layer in chain]) for i in range(len(_states(first)))]
    weights = [v for layer in chain for v in layer.new.inputs[-3:]]
    new = ir.Node(
        DOMAIN, first.op_type, [first.inputs[0], *states, *weights],
        [*first.attributes.values(), ir.AttrFloat32("dropout", chain[0].dropout)],
        num_outputs=len(first.outputs), version=1, name=first.name,
    )  # fmt: skip
    beside(new, first)
    insert(last, new)
    y = new.outputs[0]
    name_after(y, last.outputs[0])
    set_info(y, info(last.outputs[0]))
    replace_uses(last.outputs[0], y)
    for i in range(1, len(new.outputs)):
        _split_states(chain, new, i)
    for layer in reversed(chain):
        drop(layer.new)
    return new


def _joined(before: ir.Node, states: list[ir.Value | None]) -> ir.Value | None:
    """The initial states of all layers as one: the tensor that they are the slices of, or their Concat."""
    known = [s for s in states if s is not None]
    if not known:
        return None
    whole = _whole(known)
    if whole is not None:
        return whole
    joined = ir.Node("", "Concat", known, [ir.AttrInt64("axis", 0)], version=13)
    insert(before, joined)
    shape = info(known[0]).shape
    rows = [info(s).shape for s in known]
    total = sum(s[0] for s in rows if s is not None and isinstance(s[0], int))
    set_info(joined.outputs[0], Info(info(known[0]).dtype, None if shape is None else (total, *shape[1:])))
    joined.outputs[0].name = f"{known[0].name}.all"
    return joined.outputs[0]


def _whole(parts: list[ir.Value]) -> ir.Value | None:
    """The tensor whose first axis these values, in order, slice up."""
    end, whole = 0, None
    for part in parts:
        node = part.producer()
        if (
            node is None
            or node.op_type != "Slice"
            or node.domain != ""
            or (whole or node.inputs[0]) is not node.inputs[0]
        ):
            return None
        whole = node.inputs[0]
        bounds = [info(input_at(node, i)).constant for i in (1, 2, 3)]
        rows, size = info(part).shape, info(whole).shape
        if (
            any(b is None or b.size != 1 for b in bounds)
            or input_at(node, 4) is not None
            or rows is None
            or size is None
        ):
            return None
        start, axis = (int(b.item()) for b in (bounds[0], bounds[2]) if b is not None)
        if axis != 0 or start != end or not isinstance(rows[0], int):
            return None
        end += rows[0]
    return whole if whole is not None and (info(whole).shape or (None,))[0] == end else None


def _split_states(chain: list[RecurrentLayer], new: ir.Node, index: int) -> None:
    """Let the final states of single layers be slices of the module's, and their Concat the module's."""
    olds, d = [layer.new.outputs[index] for layer in chain], chain[0].directions
    state, facts = new.outputs[index], info(olds[0])
    name_after(state, olds[-1])
    shape = None if facts.shape is None else (d * len(chain), *facts.shape[1:])
    set_info(state, Info(facts.dtype, shape))
    for user in [use.node for use in olds[0].uses()]:
        if user.op_type == "Concat" and list(user.inputs) == olds and user.attributes["axis"].as_int() == 0:
            replace_uses(user.outputs[0], state)
            drop(user)
    for k, old in enumerate(olds):
        if old.uses() or old.is_graph_output():
            bounds = [constant(chain[-1].new, np.array([v]), f"{state.name}.{k}.{v}") for v in (k * d, k * d + d, 0)]
            part = ir.Node("", "Slice", [state, *bounds], version=13)
            insert(chain[-1].new, part)
            set_info(part.outputs[0], info(old))
            name_after(part.outputs[0], old)
            replace_uses(old, part.outputs[0])


def make_batch_first(node: ir.Node) -> None:
    """Drop the transposes around a module whose input and output are batch-first."""
    x, y = node.inputs[0], node.outputs[0]
    producer = None if x is None else x.producer()
    users = [use.node for use in y.uses()]
    if not _swaps(producer) or y.is_graph_output() or not all(map(_swaps, users)) or producer is None:
        return
    if node.attributes["batch_first"].as_int():
        return
    node.attributes["batch_first"] = ir.AttrInt64("batch_first", 1)
    node.replace_input_with(0, producer.inputs[0])
    set_info(y, permuted(info(y), SWAP))
    for user in users:
        replace_uses(user.outputs[0], y)
        drop(user)
    drop(producer)


def _swaps(node: ir.Node | None) -> bool:
    return (
        node is not None
        and node.op_type == "Transpose"
        and node.domain == ""
        and "perm" in node.attributes
        and tuple(node.attributes["perm"].as_ints()) == SWAP
    )
