"""An Expand whose users broadcast by themselves is dropped: it only hides patterns, and lines of code.

    y = x / norm.expand_as(x)   is   y = x / norm

Only where another operand of every user has the full shape already.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.traits import BROADCASTS
from onnxgen.options import Options
from onnxgen.passes.rewrite import drop
from onnxgen.shapes.info import info


def broadcasts(model: ir.Model, options: Options) -> None:
    """Drop every Expand that changes nothing."""
    for node in all_nodes(model.graph):
        if node.op_type != "Expand" or node.domain != "" or node.inputs[0] is None or node.graph is None:
            continue
        output = node.outputs[0]
        users = [use.node for use in output.uses()]
        if output.is_graph_output() or not users or not all(_broadcasts(user, output) for user in users):
            continue
        ir.convenience.replace_all_uses_with(output, node.inputs[0])
        drop(node)


def _broadcasts(node: ir.Node, expanded: ir.Value) -> bool:
    """Whether an operand other than the expanded one has the shape of the node's result."""
    shape = info(expanded).shape
    if not is_a(node, BROADCASTS) or shape is None or info(node.outputs[0]).shape != shape:
        return False
    return any(i is not None and i is not expanded and info(i).shape == shape for i in node.inputs)
