"""The end of an axis put before its beginning is `torch.roll`: Concat of the two Slices that an axis is cut into.

    Concat(x[k:], x[:k]) = roll(x, -k)

Exporters write one such pair an axis (Swin's shifted windows); rolls of several axes are one node, `onnxgen.Roll`.
Only where the axis is surely long enough: of one that is shorter than k nothing is moved here, and torch counts again.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.passes.cuts import Cut, cuts, taken
from onnxgen.passes.rewrite import replace, together
from onnxgen.passes.steps import stored_views
from onnxgen.shapes.dims import Dim, nonnegative
from onnxgen.shapes.info import info

FAR = 2**31 - 1


def roll(model: ir.Model, options: Options) -> None:
    """Rewrite every such pair, the first one first: the next one may roll its result."""
    weights = stored_views(model)
    for node in all_nodes(model.graph):
        if node.op_type == "Concat" and node.domain == "" and len(node.inputs) == 2 and node.graph is not None:
            if node.outputs[0] not in weights:
                _rewrite(node)


def _rewrite(node: ir.Node) -> None:
    makers = [None if value is None else value.producer() for value in node.inputs]
    x = makers[0].inputs[0] if makers[0] is not None and makers[0].inputs else None
    shape = info(x).shape
    if x is None or not shape or makers[1] is None or makers[1].inputs[:1] != (x,):
        return
    axis = int(node.attributes["axis"].value) % len(shape)
    shift = _shift(node, x, axis, shape[axis])
    if shift is None:
        return
    shifts, axes, before = [shift], [axis], x.producer()
    if before is not None and before.op_type == "Roll" and before.domain == DOMAIN and together((before, node)):
        if {use.node for use in x.uses()} == set(makers) and not x.is_graph_output():
            shifts = [*before.attributes["shifts"].value, shift]
            axes = [*before.attributes["axes"].value, axis]
            x = before.inputs[0]
    attributes = [ir.AttrInt64s("shifts", shifts), ir.AttrInt64s("axes", axes)]
    replace(node, ir.Node(DOMAIN, "Roll", [x], attributes, version=1))


def _shift(node: ir.Node, x: ir.Value, axis: int, size: Dim) -> int | None:
    """By how much an axis of x is rolled, by a Split's parts or by Slices; None if it is not."""
    ranges = [taken(value, x, axis) for value in node.inputs]
    if ranges[0] is not None and ranges[1] is not None:
        (first, end), (start, last) = ranges[0], ranges[1]
        rolled = (start, last, end) == (0, first, size)
        return (size - first if 2 * first > size else -first) if rolled and isinstance(size, int) else None
    found = [cuts(None if value is None else value.producer()) for value in node.inputs]
    if any(f is None or [c.axis for c in f] != [axis] or f[0].step != 1 for f in found):
        return None
    before, after = (f[0] for f in found if f is not None)
    return _cut_shift(before, after, size)


def _cut_shift(first: Cut, second: Cut, size: Dim) -> int | None:
    """By how much x[k:] before x[:k] rolls an axis of this size."""
    k = first.start
    to_end = first.end == size or (isinstance(first.end, int) and first.end >= FAR)
    if not isinstance(k, int) or k == 0 or not to_end or second.start != 0 or second.end not in (k, size + k):
        return None
    return -k if nonnegative(size - abs(k)) else None
