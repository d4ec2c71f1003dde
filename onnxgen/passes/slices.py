"""Parts of an axis: what a Slice or Split takes, Slices along several axes, and `unbind`.

    x[:, :, :n][..., :n]   is   x[:, :, :n, :n]     exporters write a Slice for each axis
    x[-1:].squeeze(0)      is   x[-1]               a part of one element, its axis is dropped

Nodes that take the parts of one axis one by one become one `unbind` or one Split: `q, k, v = qkv.unbind(0)`.

    Split to size 1 and Squeeze      the legacy exporter's `unbind`
    Slice of one and Squeeze         the dynamo exporter's
    Gather of 0, 1, 2, ...           `qkv[0], qkv[1], qkv[2]`
    Slice of each piece              the legacy exporter's `chunk`, and `x[:, :8], x[:, 8:]`

ONNX has no operator with an output for each element of an axis, so the pass writes `onnxgen.Unbind(x)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import onnx_ir as ir

from onnxgen.graph.nodes import all_graphs, all_nodes, made_by
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import RESHAPE
from onnxgen.options import Options
from onnxgen.passes.match import ints, shape_of, standard_nodes
from onnxgen.passes.rewrite import (
    beside,
    constant,
    drop,
    input_at,
    is_used,
    known_ints,
    only_user,
    own,
    replace,
    stored_views,
    take_facts,
    together,
)
from onnxgen.shapes.dims import Dim, Sym
from onnxgen.shapes.infer_layout import OPEN_END
from onnxgen.shapes.info import Shape, info


def slices(model: ir.Model, options: Options) -> None:
    """Merge every Slice into the Slice that makes its input, if the input is used nowhere else; index what is one."""
    weights = stored_views(model)
    for node in all_nodes(model.graph):
        if node.graph is not None and is_a(node, RESHAPE) and node.inputs[0] not in weights:
            _index(node)
    for node in standard_nodes(model, "Slice"):
        _merge(node)


def _merge(node: ir.Node) -> None:
    inner = made_by(node.inputs[0], "Slice")
    if inner is None or only_user(inner.outputs[0]) is not node or inner.graph is not node.graph:
        return
    first, second = cuts(inner), cuts(node)
    merged = [*first, *second] if first and second else []
    if merged and len({cut.axis for cut in merged}) == len(merged):
        columns = ([getattr(cut, key) for cut in merged] for key in ("start", "end", "axis", "step"))
        replace(node, ir.node("Slice", [inner.inputs[0], *map(known_ints, columns)], version=13))


def _index(node: ir.Node) -> None:
    """Replace a Slice of one element, and the Reshape that drops its axis, by that element."""
    part, output = made_by(node.inputs[0], "Slice"), node.outputs[0]
    cut = only_cut(part)
    if part is None or cut is None or cut.step != 1 or not isinstance(cut.start, int) or info(output).data is not None:
        return
    shape = shape_of(part.inputs[0])
    is_one = cut.end == cut.start + 1 if cut.start != -1 else cut.is_open
    if is_one and only_user(part.outputs[0]) is node and together((part, node)):
        if info(output).shape == (*shape[: cut.axis], *shape[cut.axis + 1 :]):
            place = constant(node, cut.start, f"{output.name}.place")
            replace(node, ir.node("Gather", [part.inputs[0], place], {"axis": cut.axis}, version=13))


@dataclass(frozen=True)
class Cut:
    """`start:end:step` of one axis as the file has it: negative positions count from the end, and may lie past it."""

    axis: int
    start: Dim
    end: Dim
    step: int

    @property
    def is_open(self) -> bool:
        """True if it ends where the axis ends, however long it is."""
        return isinstance(self.end, int) and self.end >= OPEN_END


def cuts(node: ir.Node | None) -> list[Cut] | None:
    """Return the cut of each axis that a Slice cuts; None for other nodes, or if bounds are not known."""
    if node is None or (node.domain, node.op_type) != ("", "Slice"):
        return None
    rank, keys = info(node.inputs[0]).rank, ("starts", "ends", "axes", "steps")
    columns = [column for i, key in enumerate(keys, 1) if (column := _dims(node, i, key)) is not None]
    if rank is None or len(columns) < len(keys):
        return None
    starts, ends, axes, steps = columns
    axes, steps = axes or list(range(len(starts))), steps or [1] * len(starts)
    known = [
        Cut(axis % rank, start, end, step)
        for axis, start, end, step in zip(axes, starts, ends, steps)
        if isinstance(axis, int) and isinstance(step, int)
    ]
    return known if len({len(known), len(starts), len(ends), len(axes), len(steps)}) == 1 else None


def only_cut(node: ir.Node | None) -> Cut | None:
    """Return the cut of a Slice that cuts one axis; None for other nodes, or if its bounds are not known."""
    known = cuts(node)
    return known[0] if known is not None and len(known) == 1 else None


def _dims(node: ir.Node, index: int, key: str) -> list[Dim] | None:
    """Return the numbers of an input or attribute: none if it is left out, None if they are not known."""
    if key in node.attributes:
        return list(node.attributes[key].as_ints())
    value = input_at(node, index)
    if value is None:
        return []
    data = info(value).data
    return None if data is None else [v if isinstance(v, Sym) else int(v) for v in data.flat]


@dataclass(frozen=True)
class Piece:
    """`x[start:end]` along one axis of static size; a Slice or a Split makes it."""

    x: ir.Value
    axis: int
    start: int
    end: int


def piece(value: ir.Value | None) -> Piece | None:
    """Return the piece of another value that a value is, else None."""
    node = made_by(value, "Slice", "Split")
    x = None if node is None else node.inputs[0]
    shape = shape_of(x)
    if node is None or x is None or not shape:
        return None
    if node.op_type == "Slice":
        return _piece_of_slice(node, x, shape)
    axis, start = node.attributes.get_int("axis", 0) % len(shape), 0
    for output in node.outputs:
        size = (info(output).shape or shape)[axis]
        if not isinstance(size, int):
            return None
        if output is value:
            return Piece(x, axis, start, start + size)
        start += size
    return None


def _piece_of_slice(node: ir.Node, x: ir.Value, shape: Shape) -> Piece | None:
    cut = only_cut(node)
    size = None if cut is None else shape[cut.axis]
    if cut is None or cut.step != 1 or not isinstance(size, int):
        return None
    if not isinstance(cut.start, int) or not isinstance(cut.end, int):
        return None
    start, end, _ = slice(cut.start, cut.end).indices(size)
    return Piece(x, cut.axis, start, end) if start < end else None


def make_up_axis(pieces: Sequence[Piece | None]) -> bool:
    """True if pieces of one axis of one value, in this order, lie end to end and cover the axis."""
    known = [p for p in pieces if p is not None]
    if len(known) < len(pieces) or len({(p.x, p.axis) for p in known}) != 1:
        return False
    size = (info(known[0].x).shape or ())[known[0].axis]
    return [0, *(p.end for p in known)] == [*(p.start for p in known), size]


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
    users = [use.node for use in value.uses()]
    taken = [part for node in users if (part := _part(node)) is not None and part.x is value]
    pieces = sorted(set(taken), key=attrgetter("start"))
    if len(taken) < len(users) or not 2 <= len(pieces) <= MAX_PARTS or not make_up_axis(pieces):
        return
    singles = _single_elements(users, pieces)
    ends = singles or [node for node in users if node.op_type == "Slice"]
    if len(ends) == len(users) and _may_unpack(value, users, ends):
        new = own("Unbind", [value], len(pieces), axis=pieces[0].axis) if singles else _split(value, pieces)
        _put(new, value, ends, [pieces.index(part) for part in taken])


def _may_unpack(value: ir.Value, users: list[ir.Node], ends: list[ir.Node]) -> bool:
    """True if a node behind a value is in the graph and the scope of all its users."""
    producer = value.producer()
    is_here = producer is None or producer.graph is users[0].graph
    return is_here and together(users) and not any(v.is_graph_output() for v in (value, *(n.outputs[0] for n in ends)))


def _split(value: ir.Value, pieces: list[Piece]) -> ir.Node:
    inputs = [value, known_ints([part.end - part.start for part in pieces])]
    return ir.node("Split", inputs, {"axis": pieces[0].axis}, num_outputs=len(pieces), version=13)


def _single_elements(users: list[ir.Node], pieces: list[Piece]) -> list[ir.Node]:
    """Return the nodes that give single elements: a Gather itself, and the Squeeze of a part; [] if a user has none."""
    if any(part.end - part.start != 1 for part in pieces):
        return []
    ends = (n if n.op_type == "Gather" else _squeeze_of(n.outputs[0], pieces[0].axis) for n in users)
    singles = [end for end in ends if end is not None]
    return singles if len(singles) == len(users) else []


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
    """Place `new` right after the value that it takes apart. Its outputs at `positions` replace those of `ends`."""
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
            take_facts(fresh, old)
        ir.convenience.replace_all_uses_with(old, fresh)
        drop(end)


def _unbind_split(node: ir.Node) -> None:
    """Rewrite a Split into single elements if a Squeeze removes the axis of every part that is used."""
    x, shape = node.inputs[0], shape_of(node.inputs[0])
    if x is None or not shape:
        return
    axis, count = node.attributes.get_int("axis", 0) % len(shape), len(node.outputs)
    used = [(i, o) for i, o in enumerate(node.outputs) if is_used(o)]
    if {(info(o).shape or shape)[axis] for _, o in used} != {1} or not shape[axis] == count <= MAX_PARTS:
        return
    ends = [end for _, o in used if (end := _squeeze_of(o, axis)) is not None and not end.outputs[0].is_graph_output()]
    if len(ends) == len(used) and together((*ends, node)):
        _put(own("Unbind", [x], count, axis=axis), x, ends, [i for i, _ in used])
