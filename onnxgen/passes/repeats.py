"""Elements repeated side by side: a new axis that is repeated, and merged into the one before it, is
`x.repeat_interleave(n, dim)`. So are key and value heads that several query heads share (Ainslie et al. 2023, arXiv
2305.13245), and torch's own function as exporters write it:

    Unsqueeze(a + 1), Expand or Tile n times along it, Reshape to merge the axes a and a + 1

It is written as `onnxgen.RepeatInterleave`.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import all_nodes, made_by
from onnxgen.options import Options
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.passes.steps import stored_views
from onnxgen.shapes.info import info


def repeats(model: ir.Model, options: Options) -> None:
    """Rewrite every Reshape that ends such a chain."""
    weights = stored_views(model)
    for node in all_nodes(model.graph):
        if node.op_type == "Reshape" and node.domain == "" and node.graph is not None:
            _rewrite(node, weights)


def _rewrite(node: ir.Node, weights: set[ir.Value]) -> None:
    repeated = made_by(node.inputs[0], "Expand", "Tile")
    lengthened = None if repeated is None else made_by(repeated.inputs[0], "Unsqueeze", "Reshape")
    x = None if lengthened is None else lengthened.inputs[0]
    if x is None or repeated is None or lengthened is None or x in weights or info(x).data is not None:
        return
    before, one, many, after = (info(v).shape for v in (x, lengthened.outputs[0], repeated.outputs[0], node.outputs[0]))
    if before is None or one is None or many is None or after is None or len(after) != len(before):
        return
    if only_user(repeated.outputs[0]) is not node:
        return
    for axis, size in enumerate(before):
        count = many[axis + 1] if len(many) == len(before) + 1 else None
        if not isinstance(count, int) or count < 2 or one != (*before[: axis + 1], 1, *before[axis + 1 :]):
            continue
        wide = (*before[: axis + 1], count, *before[axis + 1 :])
        if many == wide and after == (*before[:axis], size * count, *before[axis + 1 :]):
            attributes = [ir.AttrInt64("repeats", count), ir.AttrInt64("axis", axis)]
            replace(node, ir.Node(DOMAIN, "RepeatInterleave", [x], attributes, version=1))
            return
