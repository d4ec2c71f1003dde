"""LSTM, GRU and RNN nodes that torch's own layers compute become `onnxgen.LSTM(x, h, c, W0, R0, B0, W1, ...)` etc.

ONNX has a node for every layer, gives the directions an axis of their own, and takes initial states that exporters
fill with zeros. The pass undoes that: outputs are laid out as torch's, what moved their axes around is dropped, nodes
of one module that feed each other are its layers, and a transposed input and output make it `batch_first`. What
torch's layers do not compute (peepholes, clipping, other activations, lengths, ...) stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import is_trained
from onnxgen.graph.catalogue import is_a, known
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.traits import MOVES
from onnxgen.options import Options
from onnxgen.passes.recurrent_stack import SWAP, RecurrentLayer, layer_above, make_batch_first, merged
from onnxgen.passes.rewrite import beside, drop
from onnxgen.passes.steps import constant, input_at, insert, name_after, permuted, replace_uses, transposed
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import Info, info, set_info
from onnxgen.weights.stored import Views, stored

GATES = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}


def recurrent(model: ir.Model, options: Options) -> None:
    """Rewrite every node that a layer of torch computes, then merge the layers of one module."""
    layers: dict[ir.Value, RecurrentLayer] = {}
    views = Views(model, options)
    for node in all_nodes(model.graph):
        if node.op_type in GATES and node.domain == "":
            layer = _layer(node, views)
            if layer is not None:
                _rewrite(layer)
                layers[layer.new.outputs[0]] = layer
    chains = [[layer] for layer in layers.values()]
    for chain in chains:
        while chain and (above := layer_above(chain[-1], layers)) is not None:
            other = next(c for c in chains if c and c[0] is above)
            if len({layer.dropout for layer in (*chain, *other[:-1])}) > 1:
                break  # a module has one rate for all of its layers
            chain.extend(other)
            other.clear()
    for chain in [c for c in chains if c]:
        node = chain[0].new
        if len(chain) > 1:
            node = merged(chain)
            assert node.graph is not None
            node.graph.sort()  # what used the lower layers' final states stood before the upper layers
        make_batch_first(node)


# ---------------------------------------------------------------------------------------------- is it one of torch's?


def _layer(node: ir.Node, views: Views) -> RecurrentLayer | None:
    direction = _text(node, "direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    activations = _activations(node)[: directions * len(GATES[node.op_type])]
    relu = node.op_type == "RNN" and set(activations) == {"relu"}
    if direction == "reverse" or (activations and not relu and activations != GATES[node.op_type] * directions):
        return None
    if "clip" in node.attributes or _number(node, "input_forget") or input_at(node, 4) is not None:
        return None
    if input_at(node, 7) is not None or (node.op_type == "GRU" and not _number(node, "linear_before_reset")):
        return None
    given = [v for v in node.inputs[1:4] if v is not None]
    sources = [s for v in given if (s := views(v)) is not None]
    if len(sources) < len(given) or info(node.outputs[0]).rank not in (4, None) or info(node.inputs[0]).rank != 3:
        return None
    if len(sources) < 2 or any(len(s.shape) != 3 for s in sources[:2]):
        return None
    layer = RecurrentLayer(node, sources, sources[1].shape[2], directions, relu)
    return layer if _home(layer) else None


def _activations(node: ir.Node) -> list[str]:
    found = node.attributes.get("activations")
    return [t.lower() for t in found.as_strings()] if found is not None else []


def _text(node: ir.Node, name: str, default: str) -> str:
    return node.attributes[name].as_string() if name in node.attributes else default


def _number(node: ir.Node, name: str) -> int:
    return node.attributes[name].as_int() if name in node.attributes else 0


_KEY = re.compile(r"(?:weight|bias)_[ih]h_l(\d+)(?:_reverse)?$")


def _home(layer: RecurrentLayer) -> bool:
    """Note which module and layer the names of its tensors tell; False if they tell that it is no such module."""
    places = set()
    for name in {n for s in layer.sources for n in s.names}:
        path = param_path(name)
        if path is not None:
            key = _KEY.match(path[-1])
            if key is None:
                return False
            places.add((path[:-1], int(key[1])))
    if len(places) == 1:
        layer.home, layer.number = places.pop()
        return True
    return not places


# ------------------------------------------------------------------------------------------------------ one node


def _rewrite(layer: RecurrentLayer) -> None:
    """Put `onnxgen.LSTM` (GRU, RNN) in the node's place: it makes torch's `y`, `h` and `c`."""
    node, batched = layer.node, _number(layer.node, "layout") == 1
    states = [_state(node, i, batched) for i in range(5, 7 if node.op_type == "LSTM" else 6)]
    new = ir.Node(
        DOMAIN,
        node.op_type,
        [node.inputs[0], *states, *(input_at(node, i) for i in (1, 2, 3))],
        [
            ir.AttrInt64("hidden_size", layer.hidden),
            ir.AttrInt64("directions", layer.directions),
            ir.AttrInt64("batch_first", int(batched)),
            ir.AttrInt64("relu", int(layer.relu)),
        ],
        num_outputs=1 + len(states),
        version=1,
        name=node.name,
    )
    beside(new, node)
    insert(node, new)
    layer.new = new
    for old, state in zip(node.outputs[1:], new.outputs[1:]):
        name_after(state, old)
        set_info(state, permuted(info(old), SWAP) if batched else info(old))
        if old.uses() or old.is_graph_output():
            replace_uses(old, transposed(node, state, SWAP, info(old)) if batched else state)
    _plain_output(layer, node.outputs[0], new.outputs[0], batched)
    drop(node)


def _state(node: ir.Node, index: int, batched: bool) -> ir.Value | None:
    """An initial state as torch wants it ([directions, batch, hidden]; zeros are left out)."""
    value = input_at(node, index)
    if value is None or _is_zero(value):
        return None
    return transposed(node, value, SWAP, permuted(info(value), SWAP)) if batched else value


def _is_zero(value: ir.Value | None, depth: int = 0) -> bool:
    """Whether a value is all zeros, whatever its shape: stored so, or made by ConstantOfShape or Expand."""
    if value is None or depth > 8 or is_trained(value):
        return False
    tensor, node = stored(value), value.producer()
    if tensor is not None:
        return tensor.size <= 1 << 20 and not np.asarray(tensor.numpy()).any()
    if node is None or node.domain != "":
        return False
    if node.op_type == "ConstantOfShape":
        return "value" not in node.attributes or not node.attributes["value"].as_tensor().numpy().any()
    if not is_a(node, MOVES) and node.op_type != "Cast":
        return False
    data = known(node).data
    return all(_is_zero(v, depth + 1) for i, v in enumerate(node.inputs) if i in data and v is not None)


def _plain_output(layer: RecurrentLayer, old: ir.Value, y: ir.Value, batched: bool) -> None:
    """Let those that use Y, [seq, directions, batch, hidden], use torch's y, [seq, batch, directions * hidden].

    Whatever moves Y's axes to just that is dropped; for all else the axis is put back.
    """
    shape = info(old).shape
    if shape is None:
        x = info(layer.new.inputs[0]).shape or ()
        d: Dim = layer.directions
        shape = (x[0], x[1], d, layer.hidden) if batched else (x[0], d, x[1], layer.hidden)
    d_axis = 2 if batched else 1
    facts = Info(
        info(old).dtype, (*(d for i, d in enumerate(shape[:3]) if i != d_axis), layer.hidden * layer.directions)
    )
    set_info(y, facts)
    name_after(y, old, "y")
    labels = ["b", "s", "d", "h"] if batched else ["s", "d", "b", "h"]
    sizes: dict[str, Dim] = dict(zip(labels, shape))
    goal = [label for label in labels if label not in "dh"]
    swapped: ir.Value | None = None
    for value, axes in list(_moved(old, labels, sizes, layer.directions)):
        same = axes == [*goal, "h"]
        if not same and swapped is None and axes[2] == "h":
            swapped = transposed(layer.node, y, SWAP, permuted(facts, SWAP))
        made = y if same else swapped
        if axes[2] == "h" and made is not None and not (value.is_graph_output() and made.is_graph_output()):
            replace_uses(value, made)
            _drop_moves(value, layer.node)
    if old.uses() or old.is_graph_output():
        replace_uses(old, _put_back(layer, y, batched, Info(facts.dtype, shape)))


def _moved(
    value: ir.Value, labels: list[str], sizes: dict[str, Dim], directions: int
) -> Iterator[tuple[ir.Value, list[str]]]:
    """Values that are Y with its axes moved, squeezed and merged until three are left, and the axes that they have."""
    for user in [use.node for use in value.uses()]:
        axes = _axes_after(user, labels, sizes, directions)
        if axes is not None:
            yield from _moved(user.outputs[0], axes, sizes, directions)
            if len(axes) == 3:
                yield user.outputs[0], axes


def _drop_moves(value: ir.Value, until: ir.Node) -> None:
    """Remove the nodes that moved Y's axes for a value that nothing uses any more."""
    node = value.producer()
    while node is not None and node is not until and node.graph is not None:
        if any(o.uses() or o.is_graph_output() for o in node.outputs):
            return
        above = node.inputs[0]
        node.graph.remove(node, safe=True)
        node = None if above is None else above.producer()


def _axes_after(node: ir.Node, labels: list[str], sizes: dict[str, Dim], directions: int) -> list[str] | None:
    if node.domain != "":
        return None
    if node.op_type == "Transpose":
        perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else range(len(labels))[::-1]
        return [labels[i] for i in perm]
    shape = info(node.outputs[0]).shape
    if node.op_type not in ("Squeeze", "Reshape") or shape is None or len(labels) != 4:
        return None
    rest = [label for label in labels if label != "d"]
    if directions == 1:
        wanted: tuple[Dim, ...] = tuple(sizes[label] for label in rest)
        squeezes = node.op_type == "Squeeze" and _squeezed(node) == [labels.index("d")]
        return rest if squeezes or (node.op_type == "Reshape" and shape == wanted) else None
    if node.op_type != "Reshape" or labels[2:] != ["d", "h"]:
        return None
    hidden = sizes["h"]
    assert isinstance(hidden, int)
    return rest if shape == (sizes[labels[0]], sizes[labels[1]], directions * hidden) else None


def _squeezed(node: ir.Node) -> list[int] | None:
    """The axes that a Squeeze of a tensor of rank 4 names (attribute or input, by the opset)."""
    if "axes" in node.attributes:
        axes = list(node.attributes["axes"].as_ints())
    else:
        constant = info(input_at(node, 1)).constant
        if constant is None:
            return None
        axes = [int(a) for a in constant.reshape(-1)]
    return [a % 4 for a in axes]


def _put_back(layer: RecurrentLayer, y: ir.Value, batched: bool, facts: Info) -> ir.Value:
    """Y as ONNX has it, made of torch's y."""
    d, before = layer.directions, layer.node
    if d == 1:
        axes = constant(before, np.array([2 if batched else 1]), f"{y.name}.axes")
        made = ir.Node("", "Unsqueeze", [y, axes], version=13)
        insert(before, made)
        made.outputs[0].name = f"{y.name}.directions"
        set_info(made.outputs[0], facts)
        return made.outputs[0]
    shape = constant(before, np.array([0, 0, d, layer.hidden]), f"{y.name}.shape")
    split = ir.Node("", "Reshape", [y, shape], version=21)
    insert(before, split)
    split.outputs[0].name = f"{y.name}.split"
    if batched:
        set_info(split.outputs[0], facts)
        return split.outputs[0]
    perm = (0, 2, 1, 3)
    set_info(split.outputs[0], permuted(facts, perm))
    return transposed(before, split.outputs[0], perm, facts)
