"""LSTM, GRU and RNN nodes that torch's layers can compute become `onnxgen.LSTM(x, h, c, W0, R0, B0, W1, ...)` etc.

ONNX has one node for each layer, a separate axis for the directions, and initial states that exporters fill with zeros.
The pass gives the outputs torch's layout, and removes nodes that moved their axes there. Nodes of one module that feed
each other become its layers. A module with a transposed input and output becomes `batch_first`. Nodes that torch's
layers can't compute (peepholes, clipping, other activations, lengths, ...) stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxgen.graph.catalogue import having, known
from onnxgen.graph.traits import Trait
from onnxgen.options import Options
from onnxgen.passes.exporters import RECURRENT
from onnxgen.passes.match import ints, standard_nodes, uniform
from onnxgen.passes.recurrent_cell import is_cell, write_cell
from onnxgen.passes.recurrent_stack import SWAP, RecurrentLayer, layer_above, make_batch_first, merged, stand_for
from onnxgen.passes.rewrite import drop, own
from onnxgen.passes.steps import constant, input_at, insert, permuted, replace_uses, transposed
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import Info, info, set_info
from onnxgen.weights.stored import Views


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
    chains = [[layer] for layer in layers.values()]
    for chain in chains:
        while chain and (above := layer_above(chain[-1], layers)) is not None:
            other = next(c for c in chains if c and c[0] is above)
            if len({layer.dropout for layer in (*chain, *other[:-1])}) > 1:
                break  # torch's layers share one dropout rate
            chain.extend(other)
            other.clear()
    for chain in [c for c in chains if c]:
        if len(chain) > 1 and all(layer.module is None or layer.number == i for i, layer in enumerate(chain)):
            node = merged(chain)
            assert node.graph is not None
            node.graph.sort()  # users of the lower layers' final states were before the upper layers
            make_batch_first(node)
        else:
            for layer in chain:
                make_batch_first(layer.new)


# ---- which nodes are layers of torch ----


def _layer(node: ir.Node, views: Views) -> RecurrentLayer | None:
    given, kind = node.attributes, node.op_type
    direction = given.get_string("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    usual = [*known(node).rules.activations] * directions
    activations = [text.lower() for text in given.get_strings("activations", ())][: len(usual)]
    relu = kind == "RNN" and set(activations) == {"relu"}
    if direction == "reverse" or (activations and not relu and activations != usual):
        return None
    if "clip" in given or given.get_int("input_forget", 0) != 0:
        return None
    if input_at(node, 4) is not None or input_at(node, 7) is not None:
        return None
    if kind == "GRU" and not given.get_int("linear_before_reset", 0):
        return None
    weights = [v for v in node.inputs[1:4] if v is not None]
    sources = [s for v in weights if (s := views(v)) is not None]
    if len(sources) < len(weights) or info(node.outputs[0]).rank not in (4, None) or info(node.inputs[0]).rank != 3:
        return None
    if len(sources) < 2 or any(len(s.shape) != 3 for s in sources[:2]):
        return None
    return RecurrentLayer(node, sources, sources[1].shape[2], directions, relu)


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


# ---- one node ----


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
        if old.uses() or old.is_graph_output():
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
    labels = ["b", "s", "d", "h"] if batched else ["s", "d", "b", "h"]
    x = info(layer.new.inputs[0]).shape or ()
    known: dict[str, Dim] = {**dict(zip("bs" if batched else "sb", x)), "d": layer.directions, "h": layer.hidden}
    shape = info(old).shape or tuple(known[label] for label in labels)
    sizes = dict(zip(labels, shape))
    goal = [label for label in labels if label not in "dh"]
    facts = Info(info(old).dtype, (*(sizes[label] for label in goal), layer.hidden * layer.directions))
    set_info(y, facts)
    y.name = old.name and f"{old.name}.y"
    swapped: ir.Value | None = None
    for value, axes in list(_moved(old, labels, sizes, layer.directions)):
        if not value.uses() and not value.is_graph_output():
            continue  # it only led to a value that is already replaced; the layer's node may be removed, too
        same = axes == [*goal, "h"]
        if not same and swapped is None and axes[2] == "h":
            swapped = transposed(layer.node, y, SWAP)
        made, producer = y if same else swapped, value.producer()
        if axes[2] == "h" and made is not None and not (value.is_graph_output() and made.is_graph_output()):
            stand_for(value, made)
            if producer is not None:
                drop(producer)
    if old.uses() or old.is_graph_output():
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
    if node.domain != "":
        return None
    if node.op_type == "Transpose":
        return [labels[i] for i in node.attributes.get_ints("perm", range(len(labels))[::-1])]
    shape = info(node.outputs[0]).shape
    if node.op_type not in ("Squeeze", "Reshape") or shape is None or len(labels) != 4:
        return None
    rest = [label for label in labels if label != "d"]
    if node.op_type == "Squeeze":
        axes = [axis % 4 for axis in ints(node, "axes", 1) or ()]
        return rest if directions == 1 and axes == [labels.index("d")] else None
    if directions > 1 and labels[2:] != ["d", "h"]:
        return None
    return rest if shape == tuple(sizes[label] * (directions if label == "h" else 1) for label in rest) else None


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
