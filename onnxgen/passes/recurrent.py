"""LSTM, GRU and RNN nodes that torch's own layers compute become `onnxgen.LSTM(x, h, c, W0, R0, B0, W1, ...)` and so on.

ONNX has a node for every layer, gives the directions an axis of their own, and takes initial states that exporters fill with
zeros. The pass undoes that: outputs are laid out as torch's, what moved their axes around is dropped, nodes of one module
that feed each other are its layers, and a transposed input and output make it `batch_first`. What torch's layers do not
compute (peepholes, clipping, other activations, lengths, ...) stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxgen.options import Options
from onnxgen.passes.linear import DOMAIN
from onnxgen.passes.rewrite import drop
from onnxgen.propagate.dims import Dim
from onnxgen.propagate.info import Info, info, set_info
from onnxgen.reader.origin import param_path
from onnxgen.stored import stored, view_source
from onnxgen.wayback import Source

GATES = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}
SWAP = (1, 0, 2)


def recurrent(model: ir.Model, options: Options) -> None:
    """Rewrite every node that a layer of torch computes, then merge the layers of one module."""
    layers: dict[ir.Value, _Layer] = {}
    for node in list(model.graph.all_nodes()):
        if node.op_type in GATES and node.domain == "":
            layer = _layer(node)
            if layer is not None:
                _rewrite(layer)
                layers[layer.new.outputs[0]] = layer
    chains = [[layer] for layer in layers.values()]
    for chain in chains:
        while chain and (above := _layer_above(chain[-1], layers)) is not None:
            other = next(c for c in chains if c and c[0] is above)
            chain.extend(other)
            other.clear()
    for chain in [c for c in chains if c]:
        node = chain[0].new
        if len(chain) > 1:
            node = _merged(chain)
            assert node.graph is not None
            node.graph.sort()  # what used the lower layers' final states stood before the upper layers
        _batch_first(node)


@dataclass
class _Layer:
    """A node that torch's layer computes: its weights, and where their names say that they belong."""

    node: ir.Node
    sources: list[Source]
    hidden: int
    directions: int
    relu: bool
    home: tuple[str, ...] | None = None
    number: int = 0
    new: ir.Node = None  # type: ignore[assignment]  # made by `_rewrite`


# ---------------------------------------------------------------------------------------------- is it one of torch's?


def source_of(value: ir.Value | None) -> Source | None:
    """How a value is made of stored tensors by views alone, or None."""
    return None if value is None else view_source(value, source_of)


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _layer(node: ir.Node) -> _Layer | None:
    activations = _activations(node)
    direction = _text(node, "direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    relu = node.op_type == "RNN" and set(activations) == {"relu"}
    if direction == "reverse" or (activations and not relu and activations != GATES[node.op_type] * directions):
        return None
    if "clip" in node.attributes or _number(node, "input_forget") or _input(node, 4) is not None:
        return None
    if _input(node, 7) is not None or (node.op_type == "GRU" and not _number(node, "linear_before_reset")):
        return None
    given = [v for v in node.inputs[1:4] if v is not None]
    sources = [s for v in given if (s := source_of(v)) is not None]
    if len(sources) < len(given) or info(node.outputs[0]).rank not in (4, None) or info(node.inputs[0]).rank != 3:
        return None
    layer = _Layer(node, sources, sources[1].shape[2], directions, relu)
    return layer if _home(layer) else None


def _activations(node: ir.Node) -> list[str]:
    found = node.attributes.get("activations")
    return [t.lower() for t in found.as_strings()] if found is not None else []


def _text(node: ir.Node, name: str, default: str) -> str:
    return node.attributes[name].as_string() if name in node.attributes else default


def _number(node: ir.Node, name: str) -> int:
    return node.attributes[name].as_int() if name in node.attributes else 0


_KEY = re.compile(r"(?:weight|bias)_[ih]h_l(\d+)(?:_reverse)?$")


def _home(layer: _Layer) -> bool:
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


def _rewrite(layer: _Layer) -> None:
    """Put `onnxgen.LSTM` (GRU, RNN) in the node's place: it makes torch's `y`, `h` and `c`."""
    node, batched = layer.node, _number(layer.node, "layout") == 1
    states = [_state(node, i, batched) for i in range(5, 7 if node.op_type == "LSTM" else 6)]
    new = ir.Node(
        DOMAIN,
        node.op_type,
        [node.inputs[0], *states, *(_input(node, i) for i in (1, 2, 3))],
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
    new.meta["scope"] = node.meta.get("scope", ())
    _insert(node, new)
    layer.new = new
    for old, state in zip(node.outputs[1:], new.outputs[1:]):
        _name(state, old)
        set_info(state, _permuted(info(old), SWAP) if batched else info(old))
        if old.uses() or old.is_graph_output():
            _replace(old, _transposed(node, state, SWAP, info(old)) if batched else state)
    _plain_output(layer, node.outputs[0], new.outputs[0], batched)
    drop(node)


def _state(node: ir.Node, index: int, batched: bool) -> ir.Value | None:
    """An initial state as torch wants it ([directions, batch, hidden]; zeros are left out)."""
    value = _input(node, index)
    if value is None or _is_zero(value):
        return None
    return _transposed(node, value, SWAP, _permuted(info(value), SWAP)) if batched else value


def _is_zero(value: ir.Value | None, depth: int = 0) -> bool:
    """Whether a value is all zeros, whatever its shape: stored so, or made by ConstantOfShape or Expand."""
    if value is None or depth > 8 or value.meta.get("trainable", (False,))[0]:
        return False
    tensor, node = stored(value), value.producer()
    if tensor is not None:
        return tensor.size <= 1 << 20 and not np.asarray(tensor.numpy()).any()
    if node is None or node.domain != "":
        return False
    if node.op_type == "ConstantOfShape":
        return "value" not in node.attributes or not node.attributes["value"].as_tensor().numpy().any()
    if node.op_type == "Concat":
        return all(_is_zero(i, depth + 1) for i in node.inputs)
    moves = ("Expand", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Identity", "Cast", "Tile")
    return node.op_type in moves and _is_zero(node.inputs[0], depth + 1)


def _plain_output(layer: _Layer, old: ir.Value, y: ir.Value, batched: bool) -> None:
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
    _name(y, old, "y")
    labels = ["b", "s", "d", "h"] if batched else ["s", "d", "b", "h"]
    sizes: dict[str, Dim] = dict(zip(labels, shape))
    goal = [label for label in labels if label not in "dh"]
    swapped: ir.Value | None = None
    for value, axes in list(_moved(old, labels, sizes, layer.directions)):
        same = axes == [*goal, "h"]
        if not same and swapped is None and axes[2] == "h":
            swapped = _transposed(layer.node, y, SWAP, _permuted(facts, SWAP))
        made = y if same else swapped
        if axes[2] == "h" and made is not None and not (value.is_graph_output() and made.is_graph_output()):
            _replace(value, made)
            _drop_moves(value, layer.node)
    if old.uses() or old.is_graph_output():
        _replace(old, _put_back(layer, y, batched, Info(facts.dtype, shape)))


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
        constant = info(_input(node, 1)).constant
        if constant is None:
            return None
        axes = [int(a) for a in constant.reshape(-1)]
    return [a % 4 for a in axes]


def _put_back(layer: _Layer, y: ir.Value, batched: bool, facts: Info) -> ir.Value:
    """Y as ONNX has it, made of torch's y."""
    d, before = layer.directions, layer.node
    constant = _constant(before, np.array([0, 0, d, layer.hidden]), f"{y.name}.shape")
    split = ir.Node("", "Reshape", [y, constant], version=21)
    _insert(before, split)
    split.outputs[0].name = f"{y.name}.split"
    if batched:
        set_info(split.outputs[0], facts)
        return split.outputs[0]
    perm = (0, 2, 1, 3)
    set_info(split.outputs[0], _permuted(facts, perm))
    return _transposed(before, split.outputs[0], perm, facts)


# ------------------------------------------------------------------------------------------------- several layers


def _layer_above(layer: _Layer, layers: dict[ir.Value, _Layer]) -> _Layer | None:
    """The next layer of the same module: it alone takes this one's output, and names or scope say that they are one."""
    y = layer.new.outputs[0]
    users = [use.node for use in y.uses()]
    if len(users) != 1 or y.is_graph_output():
        return None
    above = layers.get(users[0].outputs[0])
    if above is None or above.new.inputs[0] is not y or above.new.graph is not layer.new.graph:
        return None
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
        scope = layer.new.meta.get("scope", ())
        together = bool(scope) and above.new.meta.get("scope", ()) == scope
    return above if same and together else None


def _states(node: ir.Node) -> list[ir.Value | None]:
    return list(node.inputs[1:-3])


def _merged(chain: list[_Layer]) -> ir.Node:
    """One node for several layers."""
    first, last = chain[0].new, chain[-1].new
    states = [_joined(last, [layer.new.inputs[1 + i] for layer in chain]) for i in range(len(_states(first)))]
    weights = [v for layer in chain for v in layer.new.inputs[-3:]]
    new = ir.Node(
        DOMAIN, first.op_type, [first.inputs[0], *states, *weights], list(first.attributes.values()),
        num_outputs=len(first.outputs), version=1, name=first.name,
    )  # fmt: skip
    new.meta["scope"] = first.meta.get("scope", ())
    _insert(last, new)
    y = new.outputs[0]
    _name(y, last.outputs[0])
    set_info(y, info(last.outputs[0]))
    _replace(last.outputs[0], y)
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
    _insert(before, joined)
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
        bounds = [info(_input(node, i)).constant for i in (1, 2, 3)]
        rows, size = info(part).shape, info(whole).shape
        if any(b is None or b.size != 1 for b in bounds) or _input(node, 4) is not None or rows is None or size is None:
            return None
        start, axis = (int(b.item()) for b in (bounds[0], bounds[2]) if b is not None)
        if axis != 0 or start != end or not isinstance(rows[0], int):
            return None
        end += rows[0]
    return whole if whole is not None and (info(whole).shape or (None,))[0] == end else None


def _split_states(chain: list[_Layer], new: ir.Node, index: int) -> None:
    """Let the final states of single layers be slices of the module's, and their Concat the module's."""
    olds, d = [layer.new.outputs[index] for layer in chain], chain[0].directions
    state, facts = new.outputs[index], info(olds[0])
    _name(state, olds[-1])
    shape = None if facts.shape is None else (d * len(chain), *facts.shape[1:])
    set_info(state, Info(facts.dtype, shape))
    for user in [use.node for use in olds[0].uses()]:
        if user.op_type == "Concat" and list(user.inputs) == olds and user.attributes["axis"].as_int() == 0:
            _replace(user.outputs[0], state)
            drop(user)
    for k, old in enumerate(olds):
        if old.uses() or old.is_graph_output():
            bounds = [_constant(chain[-1].new, np.array([v]), f"{state.name}.{k}.{v}") for v in (k * d, k * d + d, 0)]
            part = ir.Node("", "Slice", [state, *bounds], version=13)
            _insert(chain[-1].new, part)
            set_info(part.outputs[0], info(old))
            _name(part.outputs[0], old)
            _replace(old, part.outputs[0])


def _batch_first(node: ir.Node) -> None:
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
    set_info(y, _permuted(info(y), SWAP))
    for user in users:
        _replace(user.outputs[0], y)
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


# ------------------------------------------------------------------------------------------------------ small steps


def _insert(before: ir.Node, new: ir.Node) -> None:
    assert before.graph is not None
    before.graph.insert_before(before, new)


def _constant(before: ir.Node, array: np.ndarray[tuple[int, ...], np.dtype[np.int64]], name: str) -> ir.Value:
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(array.astype(np.int64)))], version=13)
    _insert(before, node)
    node.outputs[0].name = name
    set_info(node.outputs[0], Info(ir.DataType.INT64, array.shape, array.astype(np.int64)))
    return node.outputs[0]


def _transposed(before: ir.Node, value: ir.Value, perm: tuple[int, ...], facts: Info) -> ir.Value:
    node = ir.Node("", "Transpose", [value], [ir.AttrInt64s("perm", perm)], version=13)
    _insert(before, node)
    node.outputs[0].name = f"{value.name}.transposed"
    set_info(node.outputs[0], facts)
    return node.outputs[0]


def _permuted(facts: Info, perm: tuple[int, ...]) -> Info:
    return Info(facts.dtype, None if facts.shape is None else tuple(facts.shape[i] for i in perm))


def _name(new: ir.Value, old: ir.Value, suffix: str = "") -> None:
    new.name = f"{old.name}.{suffix}" if suffix and old.name else old.name


def _replace(old: ir.Value, new: ir.Value) -> None:
    """Let everything use `new`; a graph output keeps its name."""
    if old.is_graph_output():
        new.name = old.name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
