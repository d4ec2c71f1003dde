"""The turned half of a rotary embedding (Su et al. 2021, arXiv 2104.09864), `x * cos + turned * sin`.

    Concat(-x[..., n/2:], x[..., :n/2])                         of the two halves, or
    Concat(-x[..., 1::2], x[..., ::2]) after one more axis      of neighbours, put side by side again

Both are written as one node, `onnxgen.RotateHalf` or `onnxgen.RotatePairs`, and generated as the function that authors
write: `rotate_half(x)`.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import all_nodes, made_by
from onnxgen.options import Options
from onnxgen.passes.cuts import cuts, taken
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.shapes.info import info


def rotary(model: ir.Model, options: Options) -> None:
    """Rewrite every turned half."""
    for node in all_nodes(model.graph):
        if node.op_type == "Concat" and node.domain == "" and node.graph is not None and len(node.inputs) == 2:
            _rewrite(node)


def _rewrite(node: ir.Node) -> None:
    rank = info(node.outputs[0]).rank
    if rank is None or int(node.attributes["axis"].value) % rank != rank - 1:
        return
    x = _halves(node, rank - 1)
    if x is not None:
        replace(node, ir.Node(DOMAIN, "RotateHalf", [x], version=1))
        return
    x, last = _pairs(node, rank - 1), only_user(node.outputs[0])
    if x is not None and last is not None and last.op_type == "Reshape" and last.domain == "":
        if info(last.outputs[0]).shape == info(x).shape:
            replace(last, ir.Node(DOMAIN, "RotatePairs", [x], version=1), origin=node)


def _halves(node: ir.Node, axis: int) -> ir.Value | None:
    """x, if what is joined are its negated second half and its first."""
    negated = made_by(node.inputs[0], "Neg")
    first, second = node.inputs[1], None if negated is None else negated.inputs[0]
    maker = None if second is None else second.producer()
    x = None if maker is None or not maker.inputs else maker.inputs[0]
    shape = info(x).shape
    size = None if shape is None or len(shape) != axis + 1 else shape[axis]
    if not isinstance(size, int) or size % 2 or size == 0:
        return None
    return x if taken(first, x, axis) == (0, size // 2) and taken(second, x, axis) == (size // 2, size) else None


def _pairs(node: ir.Node, axis: int) -> ir.Value | None:
    """x, if what is joined along a new last axis are its negated odd elements and its even ones."""
    parts = [made_by(v, "Unsqueeze") for v in node.inputs]
    if any(p is None or info(p.outputs[0]).shape != (*(info(p.inputs[0]).shape or ()), 1) for p in parts):
        return None
    odd, even = (p.inputs[0] for p in parts if p is not None)
    negated = made_by(odd, "Neg")
    slices = made_by(even, "Slice"), None if negated is None else made_by(negated.inputs[0], "Slice")
    if slices[0] is None or slices[1] is None or slices[0].inputs[0] is not slices[1].inputs[0]:
        return None
    x = slices[0].inputs[0]
    size = (info(x).shape or (None,))[-1]
    if not isinstance(size, int) or size % 2 or info(x).rank != axis:
        return None
    for start, node_ in enumerate(slices):
        found = cuts(node_)
        if found is None or [(c.axis, c.start, c.step) for c in found] != [(axis - 1, start, 2)]:
            return None
        if not isinstance(found[0].end, int) or not (found[0].end >= size or found[0].end == size - 1 + start):
            return None
    return x
