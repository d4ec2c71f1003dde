"""An Expand whose users broadcast by themselves is removed: it hides patterns and costs a line of code.

    y = x / norm.expand_as(x)   is   y = x / norm

Every user must have another operand that already has the full shape. Users whose other operands are numbers may come
between: then their results are small, too.

    y = x + where(mask.expand_as(x), 0, low)   is   y = x + where(mask, 0, low)
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.catalogue import is_a
from onnxgen.graph.traits import BROADCASTS
from onnxgen.options import Options
from onnxgen.passes.match import scalar, standard_nodes
from onnxgen.passes.rewrite import drop
from onnxgen.shapes.info import Info, info, set_info


def broadcasts(model: ir.Model, options: Options) -> None:
    """Remove every Expand that changes nothing."""
    for node in standard_nodes(model, "Expand"):
        source, output = node.inputs[0], node.outputs[0]
        users = [use.node for use in output.uses()]
        if source is None or output.is_graph_output() or not users:
            continue
        between = list[ir.Value]()
        if all(_broadcasts_later(user, output, source, between) for user in users):
            ir.convenience.replace_all_uses_with(output, source)
            drop(node)
            for value in between:  # another value than the file's of that name
                value.name = f"{value.name}.small"
                set_info(value, Info(info(value).dtype, info(source).shape))


def _broadcasts_later(user: ir.Node, expanded: ir.Value, source: ir.Value, between: list[ir.Value]) -> bool:
    """True if a user broadcasts by itself, or all users of its result do that; `between` takes such results."""
    if broadcasts_itself(user, expanded, source):
        return True
    full, small, result = info(expanded).shape, info(source).shape, user.outputs[0]
    if not is_a(user, BROADCASTS) or None in (full, small) or info(result).shape != full or result.is_graph_output():
        return False
    rank, others = info(source).rank or 0, [v for v in user.inputs if v is not None and v is not expanded]
    if not all(scalar(v) is not None and (info(v).rank or 0) <= rank for v in others) or not result.uses():
        return False
    between.append(result)
    return all(_broadcasts_later(use.node, result, source, between) for use in result.uses())


def broadcasts_itself(node: ir.Node, expanded: ir.Value, source: ir.Value | None = None) -> bool:
    """True if a node's result has the same shape without the Expand of `source`, or of anything that broadcasts."""
    shape, made = info(source).shape or (), info(node.outputs[0]).shape
    if not is_a(node, BROADCASTS) or info(expanded).shape is None or made is None:
        return False
    others = [info(i).shape for i in node.inputs if i is not None and i is not expanded]
    known = [shape, *(other for other in others if other is not None)]
    return all(any(at <= len(dims) and dims[-at] == made[-at] for dims in known) for at in range(1, len(made) + 1))
