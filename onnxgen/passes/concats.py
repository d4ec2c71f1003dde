"""A Concat of a Concat along the same axis is one Concat: exporters write a list that grows in a loop as nested pairs.

Concat(Concat(Concat(a, b), c), d)   becomes   Concat(a, b, c, d)
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.options import Options
from onnxgen.passes.match import standard_nodes
from onnxgen.passes.rewrite import only_user, replace, together
from onnxgen.passes.steps import stored_views
from onnxgen.shapes.info import info


def concats(model: ir.Model, options: Options) -> None:
    """Rewrite every Concat that takes the results of others, in its own module, which nothing else takes."""
    weights = stored_views(model)
    for node in standard_nodes(model, "Concat"):  # the outer one of two comes later, and takes what was merged
        facts = info(node.outputs[0])
        if node.outputs[0] in weights or facts.rank is None or facts.data is not None:
            continue
        inner = [_inner(value, node, facts.rank) for value in node.inputs]
        if any(inner):
            parts = [part for made, value in zip(inner, node.inputs) for part in (made.inputs if made else [value])]
            replace(node, ir.node("Concat", parts, {"axis": _axis(node, facts.rank)}, version=node.version))


def _inner(value: ir.Value | None, outer: ir.Node, rank: int) -> ir.Node | None:
    """Return the Concat that makes an operand, if it joins along the same axis and only for the outer one."""
    made = made_by(value, "Concat")
    if made is None or value is None or only_user(value) is not outer or not together((made, outer)):
        return None
    return made if _axis(made, rank) == _axis(outer, rank) else None


def _axis(node: ir.Node, rank: int) -> int:
    return node.attributes["axis"].as_int() % rank
