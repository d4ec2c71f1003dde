"""An Expand whose users broadcast by themselves is removed: it hides patterns and costs a line of code.

    y = x / norm.expand_as(x)   is   y = x / norm

Every user must have another operand that already has the full shape.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.catalogue import is_a
from onnxgen.graph.traits import BROADCASTS
from onnxgen.options import Options
from onnxgen.passes.match import standard_nodes
from onnxgen.passes.rewrite import drop
from onnxgen.shapes.info import info


def broadcasts(model: ir.Model, options: Options) -> None:
    """Remove every Expand that changes nothing."""
    for node in standard_nodes(model, "Expand"):
        source, output = node.inputs[0], node.outputs[0]
        users = [use.node for use in output.uses()]
        if source is None or output.is_graph_output() or not users:
            continue
        if all(broadcasts_itself(user, output) for user in users):
            ir.convenience.replace_all_uses_with(output, source)
            drop(node)


def broadcasts_itself(node: ir.Node, expanded: ir.Value) -> bool:
    """True if an operand other than the expanded one has the shape of the node's result."""
    shape = info(expanded).shape
    if not is_a(node, BROADCASTS) or shape is None or info(node.outputs[0]).shape != shape:
        return False
    return any(i is not None and i is not expanded and info(i).shape == shape for i in node.inputs)
