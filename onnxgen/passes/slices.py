"""Read the part of an axis that a Slice or Split takes, and merge Slices of one tensor along different axes into one.

x[:, :, :n][..., :n]   is   x[:, :, :n, :n]            exporters write a Slice for each axis that is indexed
x[-1:].squeeze(0)      is   x[-1]                      a part of one element, whose axis is then dropped
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import all_nodes, made_by
from onnxgen.graph.traits import RESHAPE
from onnxgen.options import Options
from onnxgen.passes.match import standard_nodes
from onnxgen.passes.rewrite import only_user, replace, together
from onnxgen.passes.steps import constant, input_at, known_ints, stored_views
from onnxgen.shapes.dims import Dim, Sym
from onnxgen.shapes.infer_slice import OPEN_END
from onnxgen.shapes.info import info


def slices(model: ir.Model, options: Options) -> None:
    """Merge every Slice into the Slice that makes its input, if the input is used nowhere else; index what is one."""
    weights = stored_views(model)
    for node in all_nodes(model.graph):
        if node.graph is not None and is_a(node, RESHAPE) and node.inputs[0] not in weights:
            _index(node)
    for node in standard_nodes(model, "Slice"):
        inner = made_by(node.inputs[0], "Slice")
        if inner is None or only_user(inner.outputs[0]) is not node or inner.graph is not node.graph:
            continue
        first, second = cuts(inner), cuts(node)
        merged = [*first, *second] if first and second else []
        if merged and len({cut.axis for cut in merged}) == len(merged):
            columns = ([getattr(cut, key) for cut in merged] for key in ("start", "end", "axis", "step"))
            replace(node, ir.node("Slice", [inner.inputs[0], *map(known_ints, columns)], version=13))


def _index(node: ir.Node) -> None:
    """Replace a Slice of one element, and the Reshape that drops its axis, by that element."""
    part = made_by(node.inputs[0], "Slice")
    (cut,) = found if part is not None and (found := cuts(part)) is not None and len(found) == 1 else (None,)
    if (
        part is None
        or cut is None
        or cut.step != 1
        or not isinstance(cut.start, int)
        or info(node.outputs[0]).data is not None
    ):
        return
    shape = info(part.inputs[0]).shape or ()
    is_one = cut.end == cut.start + 1 if cut.start != -1 else isinstance(cut.end, int) and cut.end >= OPEN_END
    if is_one and only_user(part.outputs[0]) is node and together((part, node)):
        if info(node.outputs[0]).shape == (*shape[: cut.axis], *shape[cut.axis + 1 :]):
            place = constant(node, cut.start, f"{node.outputs[0].name}.place")
            replace(node, ir.node("Gather", [part.inputs[0], place], {"axis": cut.axis}, version=13))


@dataclass(frozen=True)
class Cut:
    """`start:end:step` of one axis as the file has it: negative positions count from the end, and may lie past it."""

    axis: int
    start: Dim
    end: Dim
    step: int


def cuts(node: ir.Node | None) -> list[Cut] | None:
    """Return the cut of each axis that a Slice cuts; None for other nodes, or if bounds are not known."""
    rank = None if node is None else info(node.inputs[0]).rank
    if node is None or rank is None or node.op_type != "Slice" or node.domain != "":
        return None
    starts, ends, axes, steps = (_dims(node, i, key) for i, key in enumerate(("starts", "ends", "axes", "steps"), 1))
    if starts is None or ends is None or axes is None or steps is None:
        return None
    axes, steps = axes or list(range(len(starts))), steps or [1] * len(starts)
    found = [
        Cut(axis % rank, start, end, step)
        for axis, start, end, step in zip(axes, starts, ends, steps)
        if isinstance(axis, int) and isinstance(step, int)
    ]
    return found if len({len(found), len(starts), len(ends), len(axes), len(steps)}) == 1 else None


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
    shape = info(x).shape
    if node is None or x is None or not shape:
        return None
    if node.op_type == "Slice":
        found = cuts(node)
        cut = found[0] if found is not None and len(found) == 1 else None
        size = None if cut is None else shape[cut.axis]
        if cut is None or cut.step != 1 or not isinstance(size, int):
            return None
        if not isinstance(cut.start, int) or not isinstance(cut.end, int):
            return None
        start, end, _ = slice(cut.start, cut.end).indices(size)
        return Piece(x, cut.axis, start, end) if start < end else None
    axis, start = node.attributes.get_int("axis", 0) % len(shape), 0
    for output in node.outputs:
        size = (info(output).shape or shape)[axis]
        if not isinstance(size, int):
            return None
        if output is value:
            return Piece(x, axis, start, start + size)
        start += size
    return None


def make_up_axis(pieces: Sequence[Piece | None]) -> bool:
    """True if pieces of one axis of one value, in this order, lie end to end and cover the axis."""
    found = [p for p in pieces if p is not None]
    if len(found) < len(pieces) or len({(p.x, p.axis) for p in found}) != 1:
        return False
    size = (info(found[0].x).shape or ())[found[0].axis]
    return [0, *(p.end for p in found)] == [*(p.start for p in found), size]
