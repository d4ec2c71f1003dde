"""Replace operators of the standard by our bodies (`passes.standard`) where no function takes the call.

Most of them have no function at all. Attention has one that takes a call in its plain form only (`@op(takes=...)`); its
body leaves Attention in that form.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.nodes import all_nodes, opset_of
from onnxgen.graph.operators import find
from onnxgen.options import Options
from onnxgen.passes.contrib import written
from onnxgen.passes.standard import STANDARD_BODIES
from onnxgen.shapes import propagate

MAX_NESTING = 4  # of bodies in bodies: FlexAttention writes Attention


def expand(model: ir.Model, options: Options) -> None:
    """Replace every such node by its body, and propagate types and dims through the new nodes.

    A node whose body refuses it stays, and `lower` reports the reason.
    """
    for _ in range(MAX_NESTING):
        nodes = [node for node in all_nodes(model.graph) if _has_body(node, opset_of(node, model))]
        if sum(written(node, STANDARD_BODIES) for node in nodes) == 0:
            return
        propagate(model.graph, options)


def _has_body(node: ir.Node, version: int) -> bool:
    operator = find(node.domain, node.op_type, version)
    return (node.domain, node.op_type) in STANDARD_BODIES and (operator is None or not operator.takes(node))
