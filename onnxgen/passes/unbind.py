"""All parts of one axis, taken one by one, are one `unbind` or one Split: `q, k, v = qkv.unbind(0)`.

    Split to size 1 and Squeeze      the legacy exporter's `unbind`
    Slice of one and Squeeze         the dynamo exporter's
    Gather of 0, 1, 2, ...           `qkv[0], qkv[1], qkv[2]`
    Slice of each piece              the legacy exporter's `chunk`, and `x[:, :8], x[:, 8:]`

ONNX has no operator with an output for each element of an axis, so the pass writes `onnxgen.Unbind(x)`.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.passes.cuts import cuts
from onnxgen.passes.rewrite import beside, drop, only_user, together
from onnxgen.passes.steps import known_ints, stored_views
from onnxgen.shapes.info import info, set_info

MOST = 8  # parts that are unpacked in one line
_Range = tuple[int, int, int]  # axis, start, end


def unbind(model: ir.Model, options: Options) -> None:
    """Rewrite the users of every value that take it apart between them."""
    weights = stored_views(model)
    for graph in model.graphs():
        values = [*graph.inputs, *(o for node in graph for o in node.outputs)]
        for value in values:
            if len(value.uses()) > 1 and value not in weights and info(value).data is None:
                _take_apart(value)
    for node in all_nodes(model.graph):
        is_split = node.op_type == "Split" and node.domain == "" and node.graph is not None
        if is_split and node.inputs[0] not in weights:
            _unbind_split(node)


def _take_apart(value: ir.Value) -> None:
    """Where every user takes a piece of one axis, and the pieces lie side by side, write one node for all."""
    users = [use.node for use in value.uses()]
    found = [_piece(node, value) for node in users]
    axes = {piece[0] for piece in found if piece is not None}
    shape, producer = info(value).shape, value.producer()
    if None in found or len(axes) != 1 or not together(users) or shape is None or value.is_graph_output():
        return
    if producer is not None and producer.graph is not users[0].graph:
        return
    pieces = sorted({piece for piece in found if piece is not None})
    axis = pieces[0][0]
    positions = [pieces.index(piece) for piece in found if piece is not None]
    whole = pieces[0][1] == 0 and pieces[-1][2] == shape[axis]
    if not 2 <= len(pieces) <= MOST or not whole or any(a[2] != b[1] for a, b in zip(pieces, pieces[1:])):
        return
    ends = [node if node.op_type == "Gather" else squeezed(node.outputs[0], axis) for node in users]
    single = all(end == start + 1 for _, start, end in pieces)
    attributes = [ir.AttrInt64("axis", axis)]
    if single and all(end is not None for end in ends):
        new = ir.Node(DOMAIN, "Unbind", [value], attributes, num_outputs=len(pieces), version=1)
        kept = [end for end in ends if end is not None]
    elif all(node.op_type == "Slice" for node in users):
        sizes = known_ints([end - start for _, start, end in pieces])
        new = ir.Node("", "Split", [value, sizes], attributes, num_outputs=len(pieces), version=13)
        kept = users
    else:
        return
    if not any(end.outputs[0].is_graph_output() for end in kept):
        _put(new, value, kept, positions)


def _piece(node: ir.Node, value: ir.Value) -> _Range | None:
    """The axis and range that a Slice of step 1, or a Gather of one element, takes; None if it is neither."""
    shape = info(value).shape
    if not shape or node.domain != "" or node.inputs[0] is not value or any(i is value for i in node.inputs[1:]):
        return None
    if node.op_type == "Gather":
        constant = info(node.inputs[1]).constant
        axis = int(node.attributes["axis"].value) % len(shape) if "axis" in node.attributes else 0
        size = shape[axis]
        if constant is None or constant.ndim != 0 or not isinstance(size, int):
            return None
        index = int(constant)
        index += size if index < 0 else 0
        return (axis, index, index + 1) if 0 <= index < size else None
    found = cuts(node)
    taken = found[0].range(shape[found[0].axis]) if found is not None and len(found) == 1 else None
    return (found[0].axis, *taken) if found is not None and taken is not None else None


def _ints(node: ir.Node, index: int, attribute: str) -> list[int] | None:
    if attribute in node.attributes:
        return [int(v) for v in node.attributes[attribute].value]
    constant = info(node.inputs[index]).constant if index < len(node.inputs) else None
    return None if constant is None else [int(v) for v in constant.reshape(-1)]


def squeezed(value: ir.Value, axis: int) -> ir.Node | None:
    """The node that takes this axis away, if it is all that uses the value."""
    node, rank = only_user(value), info(value).rank
    if node is None or node.op_type != "Squeeze" or node.domain != "" or rank is None:
        return None
    axes = _ints(node, 1, "axes")
    return node if axes is not None and [a % rank for a in axes] == [axis] else None


def _put(new: ir.Node, value: ir.Value, ends: list[ir.Node], positions: list[int]) -> None:
    """Place `new` right after the value that it takes apart; each output stands for what the nodes `ends` made."""
    producer, graph = value.producer(), ends[0].graph
    assert graph is not None
    if producer is not None:
        graph.insert_after(producer, new)
    else:
        graph.insert_before(graph[0], new)
    new.name = ends[0].name
    beside(new, ends[0])
    for i, (end, position) in enumerate(zip(ends, positions)):
        old, fresh = end.outputs[0], new.outputs[position]
        if position not in positions[:i]:
            fresh.name, fresh.type, fresh.shape = old.name, old.type, old.shape
            set_info(fresh, info(old))
        ir.convenience.replace_all_uses_with(old, fresh)
        drop(end)


def _unbind_split(node: ir.Node) -> None:
    """A Split into single elements whose every part loses its axis at once."""
    x, shape = node.inputs[0], info(node.inputs[0]).shape
    if x is None or not shape:
        return
    axis = int(node.attributes["axis"].value) % len(shape) if "axis" in node.attributes else 0
    parts = [(i, o) for i, o in enumerate(node.outputs) if o.uses() or o.is_graph_output()]
    sizes = {(info(o).shape or (None,) * len(shape))[axis] for _, o in parts}
    ends = [squeezed(o, axis) for _, o in parts]
    kept = [end for end in ends if end is not None and not end.outputs[0].is_graph_output()]
    if sizes != {1} or shape[axis] != len(node.outputs) or len(kept) < len(ends) or len(node.outputs) > MOST:
        return
    if not together((*kept, node)):
        return
    new = ir.Node(DOMAIN, "Unbind", [x], [ir.AttrInt64("axis", axis)], num_outputs=len(node.outputs), version=1)
    _put(new, x, kept, [i for i, _ in parts])
