"""Rows that a softmax has nothing to share out in, and that are replaced afterwards, get no NaN as a gradient.

    Where(empty, 0, Softmax(scores))   becomes   Where(empty, 0, Softmax(Where(empty, 0, scores)))

where `empty` is one truth value a row: of attention whose mask may hide all keys. The result is the same number for
number. But the softmax of a row of -inf is NaN, and NaN times the gradient 0 of what is not used is NaN.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.options import Options
from onnxgen.passes.rewrite import beside, only_user, replace
from onnxgen.passes.steps import filled, insert
from onnxgen.shapes.info import info, set_info


def empty_rows(model: ir.Model, options: Options) -> None:
    """Rewrite every such Where."""
    opset = model.opset_imports.get("", 1)
    for graph in model.graphs():
        for node in list(graph):
            if node.op_type == "Where" and node.domain == "":
                _rewrite(node, opset)


def _rewrite(where: ir.Node, opset: int) -> None:
    empty, _, probs = where.inputs
    chain = []
    node = made_by(probs, "Softmax", "Cast")
    while node is not None and only_user(node.outputs[0]) is not None:
        chain.append(node)
        node = made_by(node.inputs[0], "Softmax", "Cast") if node.op_type == "Cast" else None
    if not chain or chain[-1].op_type != "Softmax" or empty is None or not _is_of_rows(empty, chain[-1]):
        return
    if (chain[-1].version or opset) < 13:
        return  # over several axes
    scores = chain[-1].inputs[0]
    dtype = info(scores).dtype
    if scores is None or dtype is None:
        return
    value = _node(where, "Where", [empty, filled(where, (), 0, dtype), scores], scores)
    for old in reversed(chain):
        value = _node(where, old.op_type, [value], old.outputs[0], old)
    replace(where, ir.Node("", "Where", [empty, where.inputs[1], value], version=where.version))


def _is_of_rows(empty: ir.Value, softmax: ir.Node) -> bool:
    """Whether a condition is the same along the softmax's axis, whatever the rank."""
    rank, shape = info(softmax.outputs[0]).rank, info(empty).shape
    if rank is None or shape is None:
        return False
    attribute = softmax.attributes.get("axis")
    axis = -1 if attribute is None else attribute.as_int()
    behind = -axis if axis < 0 else rank - axis
    return len(shape) < behind or shape[-behind] == 1


def _node(
    before: ir.Node, op_type: str, inputs: list[ir.Value | None], like: ir.Value, old: ir.Node | None = None
) -> ir.Value:
    """The output of a new node, of the type and dims of `like`."""
    attributes = [] if old is None else list(old.attributes.values())
    node = ir.Node("", op_type, inputs, attributes, version=before.version if old is None else old.version)
    insert(before, node)
    beside(node, before if old is None else old)
    output = node.outputs[0]
    output.name = f"{like.name}.filled" if old is None else f"{like.name}.kept"
    set_info(output, info(like))
    return output
