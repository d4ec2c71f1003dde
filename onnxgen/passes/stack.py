"""Tensors that each get a new axis and are joined along it are stacked: Unsqueeze of each and Concat is `torch.stack`.

ONNX says so of sequences only, so the pass writes `onnxgen.Stack(...)`.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import all_nodes, made_by
from onnxgen.options import Options
from onnxgen.passes.rewrite import replace
from onnxgen.passes.steps import stored_views
from onnxgen.shapes.info import info


def stack(model: ir.Model, options: Options) -> None:
    """Rewrite every Concat of several tensors that were given the axis along which they are joined."""
    weights = stored_views(model)
    for node in all_nodes(model.graph):
        if node.op_type == "Concat" and node.domain == "" and len(node.inputs) > 1 and node.graph is not None:
            if node.outputs[0] not in weights:
                _rewrite(node)


def _rewrite(node: ir.Node) -> None:
    rank = info(node.outputs[0]).rank
    if rank is None or info(node.outputs[0]).data is not None:
        return
    axis = int(node.attributes["axis"].value) % rank
    makers = [made_by(value, "Unsqueeze") for value in node.inputs]
    parts = [m.inputs[0] for m in makers if m is not None and _axes(m, rank) == [axis]]
    shapes = {info(part).shape for part in parts}
    if len(parts) < len(makers) or len(shapes) > 1 or None in shapes:
        return
    replace(node, ir.Node(DOMAIN, "Stack", parts, [ir.AttrInt64("axis", axis)], version=1))


def _axes(unsqueeze: ir.Node, rank: int) -> list[int] | None:
    if "axes" in unsqueeze.attributes:
        return [int(a) % rank for a in unsqueeze.attributes["axes"].value]
    constant = info(unsqueeze.inputs[1]).constant if len(unsqueeze.inputs) > 1 else None
    return None if constant is None else [int(a) % rank for a in constant.reshape(-1)]
