"""Nodes that take the parts of one axis one by one become one `unbind` or one Split: `q, k, v = qkv.unbind(0)`.

    Split to size 1 and Squeeze      the legacy exporter's `unbind`
    Slice of one and Squeeze         the dynamo exporter's
    Gather of 0, 1, 2, ...           `qkv[0], qkv[1], qkv[2]`
    Slice of each piece              the legacy exporter's `chunk`, and `x[:, :8], x[:, 8:]`

ONNX has no operator with an output for each element of an axis, so the pass writes `onnxgen.Unbind(x)`.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.nodes import all_graphs, made_by
from onnxgen.options import Options
from onnxgen.passes.match import ints, standard_nodes
from onnxgen.passes.rewrite import beside, drop, only_user, own, together
from onnxgen.passes.slices import Piece, make_up_axis, piece
from onnxgen.passes.steps import known_ints, stored_views
from onnxgen.shapes.info import info, set_info

MAX_PARTS = 8  # parts that are unpacked in one line


def unbind(model: ir.Model, options: Options) -> None:
    """Rewrite the users of every value if together they take it apart."""
    weights = stored_views(model)
    for graph in all_graphs(model.graph):
        for value in [*graph.inputs, *(o for node in graph for o in node.outputs)]:
            if len(value.uses()) > 1 and value not in weights and info(value).data is None:
                _take_apart(value)
    for node in standard_nodes(model, "Split"):
        if node.inputs[0] not in weights:
            _unbind_split(node)


def _take_apart(value: ir.Value) -> None:
    """Replace the users of a value by one node if each takes a part of one axis and the parts make up the axis."""
    users, producer = [use.node for use in value.uses()], value.producer()
    taken = [part for node in users if (part := _part(node)) is not None and part.x is value]
    pieces = sorted(set(taken), key=lambda part: part.start)
    if len(taken) < len(users) or not 2 <= len(pieces) <= MAX_PARTS or not make_up_axis(pieces):
        return
    if not together(users) or value.is_graph_output():
        return
    if producer is not None and producer.graph is not users[0].graph:
        return
    axis, sizes = pieces[0].axis, [part.end - part.start for part in pieces]
    ends = [node if node.op_type == "Gather" else _squeeze_of(node.outputs[0], axis) for node in users]
    singles = [end for end in ends if end is not None]
    if set(sizes) == {1} and len(singles) == len(users):
        new, kept = own("Unbind", [value], len(pieces), axis=axis), singles
    elif all(node.op_type == "Slice" for node in users):
        inputs = [value, known_ints(sizes)]
        new, kept = ir.node("Split", inputs, {"axis": axis}, num_outputs=len(pieces), version=13), users
    else:
        return
    if not any(end.outputs[0].is_graph_output() for end in kept):
        _put(new, value, kept, [pieces.index(part) for part in taken])


def _part(node: ir.Node) -> Piece | None:
    """Return the piece that a Slice takes, or the element that a Gather takes, else None."""
    value = node.outputs[0]
    if made_by(value, "Gather") is None:
        return piece(value) if node.op_type == "Slice" else None
    x, shape, index = node.inputs[0], info(node.inputs[0]).shape, info(node.inputs[1]).constant
    if x is None or not shape or index is None or index.ndim != 0:
        return None
    axis = node.attributes.get_int("axis", 0) % len(shape)
    size, at = shape[axis], int(index)
    if not isinstance(size, int) or not -size <= at < size:
        return None
    return Piece(x, axis, at % size, at % size + 1)


def _squeeze_of(value: ir.Value, axis: int) -> ir.Node | None:
    """Return the Squeeze that removes this axis if nothing else uses the value, else None."""
    node, rank = only_user(value, "Squeeze"), info(value).rank
    axes = None if node is None or rank is None else ints(node, "axes", 1)
    return node if axes is not None and rank is not None and [a % rank for a in axes] == [axis] else None


def _put(new: ir.Node, value: ir.Value, ends: list[ir.Node], positions: list[int]) -> None:
    """Place `new` right after the value that it takes apart, and let its outputs replace those of the nodes `ends`.

    `positions`: for each of `ends`, the index of the output.
    """
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
    """Rewrite a Split into single elements if a Squeeze removes the axis of every part that is used."""
    x, shape = node.inputs[0], info(node.inputs[0]).shape
    if x is None or not shape:
        return
    axis, count = node.attributes.get_int("axis", 0) % len(shape), len(node.outputs)
    used = [(i, o) for i, o in enumerate(node.outputs) if o.uses() or o.is_graph_output()]
    ends = [end for _, o in used if (end := _squeeze_of(o, axis)) is not None and not end.outputs[0].is_graph_output()]
    single = {(info(o).shape or shape)[axis] for _, o in used} == {1} and shape[axis] == count <= MAX_PARTS
    if single and len(ends) == len(used) and together((*ends, node)):
        _put(own("Unbind", [x], count, axis=axis), x, ends, [i for i, _ in used])
