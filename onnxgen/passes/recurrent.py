"""LSTM, GRU and RNN nodes that torch's layers can compute become `onnxgen.LSTM(x, h, c, W0, R0, B0, W1, ...)` etc.

ONNX has one node for each layer, a separate axis for the directions, and initial states that exporters fill with zeros.
The pass gives the outputs torch's layout, and removes nodes that moved their axes there. Nodes of one module that feed
each other become its layers. A module with a transposed input and output becomes `batch_first`. Nodes that torch's
layers can't compute (peepholes, clipping, other activations, lengths, ...) stay as they are.

A layer of one step becomes torch's cell, if its tensors are called as a cell's: `onnxgen.LSTMCell(...)`. torch's legacy
exporter writes `nn.LSTMCell` as an LSTM over a sequence of one step: it puts an axis before the input and the states,
and takes it off the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.nodes import made_by
from onnxgen.graph.operators import having, known
from onnxgen.graph.traits import Trait
from onnxgen.options import Options
from onnxgen.passes.match import dropout_ratio, ints, maker, shape_of, standard_nodes, uniform
from onnxgen.passes.rewrite import (
    constant,
    drop,
    input_at,
    insert,
    is_used,
    only_user,
    own,
    permuted,
    replace_uses,
    take_over,
    transposed,
)
from onnxgen.passes.roles import CELL, RECURRENT
from onnxgen.passes.slices import make_up_axis, piece
from onnxgen.passes.unrolled.cells import Rows, bare
from onnxgen.passes.unrolled.chains import same
from onnxgen.passes.unrolled.writing import TORCH_ORDER, concat, joined_rows, squeezed, unsqueezed
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import Info, info, set_info
from onnxgen.weights.provenance import Source
from onnxgen.weights.stored import Views

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
    y, ratio = layer.new.outputs[0], 0.0
    dropout = only_user(y, "Dropout")
    if dropout is not None and (layer.module is not None or _is_within(dropout, layer)):
        rate = dropout_ratio(dropout)
        if rate is None:
            return None
        y, ratio = dropout.outputs[0], rate
    user = only_user(y)
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
    return concat(before, known)


def _split_states(chain: list[RecurrentLayer], state: ir.Value, index: int) -> None:
    """Replace the final states of single layers by slices of the module's, and their Concat by the module's."""
    last, olds, d = chain[-1].new, [layer.new.outputs[index] for layer in chain], chain[0].directions
    facts = info(olds[0])
    state.name = olds[-1].name
    set_info(state, Info(facts.dtype, None if facts.shape is None else (d * len(chain), *facts.shape[1:])))
    for user in [use.node for use in olds[0].uses()]:
        if user.op_type == "Concat" and list(user.inputs) == olds and user.attributes["axis"].as_int() == 0:
            stand_for(user.outputs[0], state)
    for k, old in enumerate(olds):
        if is_used(old):
            bounds = [constant(last, [v], f"{state.name}.{k}.{v}") for v in (k * d, k * d + d, 0)]
            part = insert(last, ir.node("Slice", [state, *bounds], version=13), old.name, info(old))
            replace_uses(old, part)


def make_batch_first(node: ir.Node) -> None:
    """Remove the Transposes around a module whose input and output are batch-first."""
    x, y = node.inputs[0], node.outputs[0]
    producer, users = maker(x), [use.node for use in y.uses()]
    if producer is None or y.is_graph_output() or node.attributes["batch_first"].as_int():
        return
    if not all(map(_swaps, [producer, *users])):
        return
    node.attributes["batch_first"] = ir.AttrInt64("batch_first", 1)
    node.replace_input_with(0, producer.inputs[0])
    set_info(y, permuted(info(y), SWAP))
    for user in users:
        stand_for(user.outputs[0], y)
    drop(producer)


def stand_for(old: ir.Value, new: ir.Value) -> None:
    """Let `new` take the place of a value, with its name, unless it is an output of the graph."""
    if not new.is_graph_output():
        new.name = old.name
    take_over(old, new)


def _swaps(node: ir.Node) -> bool:
    transpose = made_by(node.outputs[0], "Transpose")
    return transpose is not None and tuple(transpose.attributes.get_ints("perm", ())) == SWAP


def is_cell(layer: RecurrentLayer) -> bool:
    """True if a layer runs one step, and its tensors are called as those of one cell of torch."""
    x, batched = info(layer.node.inputs[0]).shape or (), layer.node.attributes.get_int("layout", 0)
    paths = {path for name in (n for s in layer.sources for n in s.names) if (path := param_path(name)) is not None}
    one = len({path[:-1] for path in paths}) == 1 and all(CELL.match(path[-1]) for path in paths)
    return one and x[:1] == (1,) and layer.directions == 1 and not batched and layer.node.op_type in TORCH_ORDER


def write_cell(layer: RecurrentLayer) -> None:
    """Replace the node. What takes its results without the axis of the steps takes the cell's own."""
    node, kind = layer.node, layer.node.op_type
    states = [input_at(node, i) for i in range(5, 5 + len(node_states(kind)))]
    operands = [node.inputs[0], *(None if v is None or uniform(v) == 0 else v for v in states)]
    inputs = [None if v is None else _of_one_step(node, v) for v in operands]
    new = own(f"{kind}Cell", [*inputs, *_weights(layer)], len(states), **({"relu": 1} if layer.relu else {}))
    new.name = node.name
    shape = (*(info(inputs[0]).shape or ())[:1], layer.hidden)
    insert(node, new, scope_of=node)
    for k, state in enumerate(new.outputs):
        set_info(state, Info(info(node.inputs[0]).dtype, shape))
        state.name = f"{node.outputs[0].name}.{k}"
    for old, state in [*zip(node.outputs[1:], new.outputs), (node.outputs[0], new.outputs[0])]:
        _hand_over(node, old, state)
    drop(node)


def node_states(kind: str) -> str:
    return "hc" if kind.startswith("L") else "h"


def _of_one_step(before: ir.Node, value: ir.Value) -> ir.Value:
    """Return a value without the first axis."""
    shape, plain = (info(value).shape or ())[1:], bare(value)
    return plain if plain is not None and info(plain).shape == shape else squeezed(before, value, 0)


def _hand_over(before: ir.Node, old: ir.Value, state: ir.Value) -> None:
    """Let everything that takes a result of the node take the state, with as many axes as it expects."""
    shape = info(state).shape
    for value in [v for v in same(old) if info(v).shape == shape and v is not old]:
        take_over(value, state)
    if is_used(old):
        wide = state
        for _ in range((info(old).rank or 3) - len(shape or ())):
            wide = unsqueezed(before, wide)
        replace_uses(old, wide)


def _weights(layer: RecurrentLayer) -> Sequence[ir.Value]:
    """Return the matrices and biases of input and state, in torch's order."""
    node, order, size = layer.node, TORCH_ORDER[layer.node.op_type], layer.hidden
    flat = [squeezed(node, v, 0) for v in node.inputs[1:4] if v is not None]
    starts = [(flat[0], 0), (flat[1], 0), *((flat[2], k * len(order) * size) for k in (0, 1) if len(flat) > 2)]
    return [
        joined_rows(node, [Rows(value, False, start + g * size, start + (g + 1) * size) for g in order])
        for value, start in starts
    ]


def recurrent(model: ir.Model, options: Options) -> None:
    """Rewrite every node that a layer of torch computes, then merge the layers of each module."""
    layers: dict[ir.Value, RecurrentLayer] = {}
    views = Views(model, options)
    for node in standard_nodes(model, *having(Trait.RECURRENT)):
        layer = _layer(node, views)
        if layer is not None and is_cell(layer):
            write_cell(layer)
        elif layer is not None and _note_module(layer):
            _rewrite(layer)
            layers[layer.new.outputs[0]] = layer
    for chain in _modules(layers):
        if len(chain) > 1 and all(layer.module is None or layer.number == i for i, layer in enumerate(chain)):
            node = merged(chain)
            assert node.graph is not None
            node.graph.sort()  # users of the lower layers' final states were before the upper layers
            make_batch_first(node)
        else:
            for layer in chain:
                make_batch_first(layer.new)


def _modules(layers: dict[ir.Value, RecurrentLayer]) -> list[list[RecurrentLayer]]:
    """Return the layers of each module, by their first outputs, from the lowest to the highest."""
    chains = [[layer] for layer in layers.values()]
    for chain in chains:
        while chain and (above := layer_above(chain[-1], layers)) is not None:
            other = next(c for c in chains if c and c[0] is above)
            if len({layer.dropout for layer in (*chain, *other[:-1])}) > 1:
                break  # torch's layers share one dropout rate
            chain.extend(other)
            other.clear()
    return [chain for chain in chains if chain]


def _layer(node: ir.Node, views: Views) -> RecurrentLayer | None:
    form, weights = _form(node), [v for v in node.inputs[1:4] if v is not None]
    sources = [s for v in weights if (s := views(v)) is not None]
    if form is None or len(sources) < max(len(weights), 2) or any(len(s.shape) != 3 for s in sources[:2]):
        return None
    if info(node.outputs[0]).rank not in (4, None) or info(node.inputs[0]).rank != 3:
        return None
    return RecurrentLayer(node, sources, sources[1].shape[2], *form)


def _form(node: ir.Node) -> tuple[int, bool] | None:
    """Return the number of directions, and True for ReLU; None if torch has no layer with these attributes."""
    attributes, kind = node.attributes, node.op_type
    direction = attributes.get_string("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    usual = [*known(node).rules.activations] * directions
    activations = [text.lower() for text in attributes.get_strings("activations", ())][: len(usual)]
    relu = kind == "RNN" and set(activations) == {"relu"}
    if direction == "reverse" or (activations and not relu and activations != usual):
        return None
    if "clip" in attributes or attributes.get_int("input_forget", 0) != 0:
        return None
    if any(input_at(node, i) is not None for i in (4, 7)):  # lengths and peepholes
        return None
    return None if kind == "GRU" and not attributes.get_int("linear_before_reset", 0) else (directions, relu)


def _note_module(layer: RecurrentLayer) -> bool:
    """Note the module and layer number in its tensors' names. Returns False if they are not names of one such layer."""
    places = set()
    for path in map(param_path, {n for s in layer.sources for n in s.names}):
        if path is not None:
            key = RECURRENT.match(path[-1])
            if key is None:
                return False
            places.add((path[:-1], int(key[1])))
    if len(places) == 1:
        layer.module, layer.number = places.pop()
        return True
    return not places


def _rewrite(layer: RecurrentLayer) -> None:
    """Replace the node by `onnxgen.LSTM` (GRU, RNN), which makes torch's `y`, `h` and `c`."""
    node, batched = layer.node, layer.node.attributes.get_int("layout", 0)
    states = [_state(node, i, batched) for i in range(5, 7 if node.op_type == "LSTM" else 6)]
    inputs = [node.inputs[0], *states, *(input_at(node, i) for i in (1, 2, 3))]
    options = {"directions": layer.directions, "batch_first": batched, "relu": int(layer.relu)}
    layer.new = own(node.op_type, inputs, 1 + len(states), hidden_size=layer.hidden, **options)
    layer.new.name = node.name
    insert(node, layer.new, scope_of=node)
    for old, state in zip(node.outputs[1:], layer.new.outputs[1:]):
        state.name = old.name
        set_info(state, permuted(info(old), SWAP) if batched else info(old))
        if is_used(old):
            replace_uses(old, transposed(node, state, SWAP, info(old)) if batched else state)
    _replace_output(layer, node.outputs[0], layer.new.outputs[0], batched)
    drop(node)


def _state(node: ir.Node, index: int, batched: int) -> ir.Value | None:
    """Return an initial state in torch's layout, [directions, batch, hidden]; None for zeros."""
    value = input_at(node, index)
    if value is None or uniform(value) == 0:
        return None
    return transposed(node, value, SWAP) if batched else value


def _replace_output(layer: RecurrentLayer, old: ir.Value, y: ir.Value, batched: int) -> None:
    """Replace ONNX's Y by torch's y, of [seq, batch, directions * hidden] or [batch, seq, directions * hidden].

    Nodes that move Y's axes to that layout are removed. For other users the axis of the directions is restored.
    """
    labels, goal = (["b", "s", "d", "h"], ["b", "s", "h"]) if batched else (["s", "d", "b", "h"], ["s", "b", "h"])
    x = shape_of(layer.new.inputs[0])
    known: dict[str, Dim] = {"d": layer.directions, "h": layer.hidden, **dict(zip(goal[:2], x))}
    shape = info(old).shape or tuple(known[label] for label in labels)
    sizes = dict(zip(labels, shape))
    facts = Info(info(old).dtype, (sizes[goal[0]], sizes[goal[1]], layer.hidden * layer.directions))
    set_info(y, facts)
    y.name = old.name and f"{old.name}.y"
    swapped: ir.Value | None = None
    for value, axes in list(_moved(old, labels, sizes, layer.directions)):
        if not is_used(value) or axes[2] != "h":
            continue  # an unused one only led to a value that is already replaced
        if axes != goal and swapped is None:
            swapped = transposed(layer.node, y, SWAP)
        replacement = y if axes == goal or swapped is None else swapped
        if not (value.is_graph_output() and replacement.is_graph_output()):
            stand_for(value, replacement)
    if is_used(old):
        replace_uses(old, _put_back(layer, y, batched, Info(facts.dtype, shape)))


def _moved(
    value: ir.Value, labels: list[str], sizes: dict[str, Dim], directions: int
) -> Iterator[tuple[ir.Value, list[str]]]:
    """Yield the values that are Y with its axes moved, squeezed and merged into three, each with its axes."""
    for user in [use.node for use in value.uses()]:
        axes = _axes_after(user, labels, sizes, directions)
        if axes is not None:
            yield from _moved(user.outputs[0], axes, sizes, directions)
            if len(axes) == 3:
                yield user.outputs[0], axes


def _axes_after(node: ir.Node, labels: list[str], sizes: dict[str, Dim], directions: int) -> list[str] | None:
    """Return the labels of a node's output axes, given those of its input; None if it does more than move axes."""
    if made_by(node.outputs[0], "Transpose"):
        return [labels[i] for i in node.attributes.get_ints("perm", range(len(labels))[::-1])]
    shape = info(node.outputs[0]).shape
    if not made_by(node.outputs[0], "Squeeze", "Reshape") or shape is None or len(labels) != 4:
        return None
    at, rest = labels.index("d"), [label for label in labels if label != "d"]
    if node.op_type == "Squeeze":
        return rest if directions == 1 and ints(node, "axes", 1) in ([at], [at - 4]) else None
    widths = {**sizes, "h": sizes["h"] * directions}
    is_merged = directions == 1 or labels[2:] == ["d", "h"]
    return rest if is_merged and shape == tuple(widths[label] for label in rest) else None


def _put_back(layer: RecurrentLayer, y: ir.Value, batched: int, facts: Info) -> ir.Value:
    """Return ONNX's Y, computed from torch's y."""
    d, before = layer.directions, layer.node
    if d == 1:
        axes = constant(before, [2 if batched else 1], f"{y.name}.axes")
        return insert(before, ir.node("Unsqueeze", [y, axes], version=13), f"{y.name}.directions", facts)
    shape, perm = constant(before, [0, 0, d, layer.hidden], f"{y.name}.shape"), (0, 2, 1, 3)
    split = ir.node("Reshape", [y, shape], version=21)
    if batched:
        return insert(before, split, f"{y.name}.split", facts)
    return transposed(before, insert(before, split, f"{y.name}.split", permuted(facts, perm)), perm, facts)
