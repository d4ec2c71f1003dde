"""Elements repeated side by side: `x.repeat_interleave(n, dim)`, written as `onnxgen.RepeatInterleave`.

    Unsqueeze(a + 1), Expand or Tile n times along it, Reshape to merge the axes a and a + 1

Exporters write torch's function like this, and also key and value heads that several query heads share (Ainslie et al.
2023, arXiv 2305.13245).
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.options import Options
from onnxgen.passes.match import standard_nodes
from onnxgen.passes.rewrite import only_user, own, replace
from onnxgen.passes.steps import stored_views
from onnxgen.shapes.info import info


def repeats(model: ir.Model, options: Options) -> None:
    """Rewrite every Reshape that ends such a chain."""
    weights = stored_views(model)
    for node in standard_nodes(model, "Reshape"):
        repeated = made_by(node.inputs[0], "Expand", "Tile")
        lengthened = None if repeated is None else made_by(repeated.inputs[0], "Unsqueeze", "Reshape")
        x = None if lengthened is None else lengthened.inputs[0]
        if repeated is None or x is None or x in weights or info(x).data is not None:
            continue
        if only_user(repeated.outputs[0]) is node:
            _rewrite(node, x, repeated)


def _rewrite(node: ir.Node, x: ir.Value, repeated: ir.Node) -> None:
    values = x, repeated.inputs[0], repeated.outputs[0], node.outputs[0]
    before, one, many, after = (info(v).shape or () for v in values)
    for axis, size in enumerate(before):
        head, tail, count = before[:axis], before[axis + 1 :], many[axis + 1] if axis + 1 < len(many) else 1
        wanted = (*head, size, 1, *tail), (*head, size, count, *tail), (*head, size * count, *tail)
        if isinstance(count, int) and count > 1 and (one, many, after) == wanted:
            replace(node, own("RepeatInterleave", [x], repeats=count, axis=axis))
            return
