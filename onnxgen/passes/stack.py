"""Unsqueeze of several tensors and Concat along the new axis is `torch.stack`.

ONNX has such an operator for sequences only, so the pass writes `onnxgen.Stack(...)`.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.options import Options
from onnxgen.passes.match import ints, standard_nodes
from onnxgen.passes.rewrite import own, replace
from onnxgen.passes.steps import stored_views
from onnxgen.shapes.info import info


def stack(model: ir.Model, options: Options) -> None:
    """Rewrite every Concat of several tensors that were given the axis along which they are joined."""
    weights = stored_views(model)
    for node in standard_nodes(model, "Concat"):
        facts = info(node.outputs[0])
        if len(node.inputs) < 2 or node.outputs[0] in weights or facts.rank is None or facts.data is not None:
            continue
        axis = node.attributes["axis"].as_int() % facts.rank
        makers = [made_by(value, "Unsqueeze") for value in node.inputs]
        parts = [m.inputs[0] for m in makers if m is not None and _axes(m, facts.rank) == [axis]]
        shapes = {info(part).shape for part in parts}
        if len(parts) == len(makers) and len(shapes) == 1 and None not in shapes:
            replace(node, own("Stack", parts, axis=axis))


def _axes(unsqueeze: ir.Node, rank: int) -> list[int]:
    return [a % rank for a in ints(unsqueeze, "axes", 1) or ()]
