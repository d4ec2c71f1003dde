"""Rows of attention without any key, which are replaced after the softmax, get a gradient of zero instead of NaN.

    Where(empty, 0, Softmax(scores))   becomes   Where(empty, 0, Softmax(Where(empty, 0, scores)))

`empty` has one truth value for each row of the softmax (the mask may hide all keys). The result is the same. But the
softmax of a row of -inf is NaN, and the gradient is NaN times 0, which is NaN.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.options import Options
from onnxgen.passes.match import standard_nodes
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.passes.steps import filled, insert
from onnxgen.shapes.info import info


def empty_rows(model: ir.Model, options: Options) -> None:
    """Rewrite every such Where."""
    opset = model.opset_imports.get("", 1)
    for node in standard_nodes(model, "Where"):
        _rewrite(node, opset)


def _rewrite(where: ir.Node, opset: int) -> None:
    empty, zeros, value = where.inputs
    chain = []
    node = made_by(value, "Softmax", "Cast")
    while node is not None and only_user(node.outputs[0]) is not None:
        chain.append(node)
        node = made_by(node.inputs[0], "Softmax", "Cast") if node.op_type == "Cast" else None
    softmax = chain[-1] if chain and chain[-1].op_type == "Softmax" else None
    if softmax is None or empty is None or not _is_one_a_row(empty, softmax):
        return
    scores = softmax.inputs[0]
    facts = info(scores)
    if (softmax.version or opset) < 13 or scores is None or facts.dtype is None:  # before 13 over several axes
        return
    made = ir.node("Where", [empty, filled(where, (), 0, facts.dtype), scores], version=where.version)
    value = insert(where, made, f"{scores.name}.filled", facts, where)
    for old in reversed(chain):
        made = ir.Node("", old.op_type, [value], list(old.attributes.values()), version=old.version)
        value = insert(where, made, f"{old.outputs[0].name}.kept", info(old.outputs[0]), old)
    replace(where, ir.node("Where", [empty, zeros, value], version=where.version))


def _is_one_a_row(empty: ir.Value, softmax: ir.Node) -> bool:
    """True if a condition has one element along the axis of a softmax."""
    rank, shape = info(softmax.outputs[0]).rank, info(empty).shape
    if rank is None or shape is None:
        return False
    axis = softmax.attributes.get_int("axis", -1)
    from_end = -axis if axis < 0 else rank - axis
    return len(shape) < from_end or shape[-from_end] == 1
