"""Expand, Tile and ConstantOfShape: tensors of one number, operands that broadcast, and repeated elements.

    torch.zeros(n, 1) + 8                      is   torch.full((n, 1), 8.0)
    y = x / norm.expand_as(x)                  is   y = x / norm
    y = x + where(mask.expand_as(x), 0, low)   is   y = x + where(mask, 0, low)
    Unsqueeze(a + 1), Expand or Tile n times   is   x.repeat_interleave(n, dim), written as
    along it, Reshape to merge a and a + 1          `onnxgen.RepeatInterleave`

An Expand hides patterns and costs a line of code. It is removed if every user has another operand that already has the
full shape. Users whose other operands are numbers may come between: then their results are small, too. Exporters repeat
key and value heads that several query heads share (Ainslie et al. 2023, arXiv 2305.13245), too.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.graph.nodes import made_by
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import BROADCASTS
from onnxgen.options import Options
from onnxgen.passes.match import scalar, shape_of, source_of, standard_nodes, uniform
from onnxgen.passes.rewrite import drop, only_user, own, replace, stored_views
from onnxgen.shapes.elements import evaluate
from onnxgen.shapes.info import Info, NodeFacts, Symbols, info, set_info


def filled(model: ir.Model, options: Options) -> None:
    """Compute the number once, where the file computes it for each element."""
    for fill in standard_nodes(model, "ConstantOfShape"):
        while (user := only_user(fill.outputs[0])) is not None and (number := _number(fill, user)) is not None:
            new = ir.node(fill.op_type, fill.inputs, {"value": ir.tensor(number)}, version=fill.version)
            replace(user, new)
            fill = new


def _number(fill: ir.Node, user: ir.Node) -> NDArray[np.generic] | None:
    """Return the one number of a node that takes a tensor of one number, and otherwise constants; None if unknown."""
    tensor, output = info(fill.outputs[0]), info(user.outputs[0])
    if user.domain or not is_a(user, BROADCASTS) or tensor.shape is None or tensor.shape != output.shape:
        return None
    inputs: list[Info | None] = []
    for value in user.inputs:
        number, dtype = uniform(value) if value is fill.outputs[0] else scalar(value), info(value).dtype
        if number is None or dtype is None or not dtype.is_floating_point():
            return None
        inputs.append(Info(dtype, (1,), np.asarray([number], dtype.numpy())))
    facts = NodeFacts(user, user.version or 1, inputs, Symbols({}))
    facts.inferred = [Info(output.dtype, (1,))]
    is_float = output.dtype is not None and output.dtype.is_floating_point()
    return evaluate(facts, 1)[0].constant if is_float else None


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
    if full is None or small is None or not is_a(user, BROADCASTS):
        return False
    others = [v for v in user.inputs if v is not None and v is not expanded]
    if not all(_is_number(v, len(small)) for v in others) or info(result).shape != full:
        return False
    if result.is_graph_output() or not result.uses():
        return False
    between.append(result)
    return all(_broadcasts_later(use.node, result, source, between) for use in result.uses())


def _is_number(value: ir.Value, rank: int) -> bool:
    return scalar(value) is not None and len(shape_of(value)) <= rank


def broadcasts_itself(node: ir.Node, expanded: ir.Value, source: ir.Value | None = None) -> bool:
    """True if a node's result has the same shape without the Expand of `source`, or of anything that broadcasts."""
    target = info(node.outputs[0]).shape
    if not is_a(node, BROADCASTS) or info(expanded).shape is None or target is None:
        return False
    known = [shape_of(source), *(shape_of(i) for i in node.inputs if i is not None and i is not expanded)]
    return all(any(at <= len(dims) and dims[-at] == target[-at] for dims in known) for at in range(1, len(target) + 1))


def repeats(model: ir.Model, options: Options) -> None:
    """Rewrite every Reshape that ends such a chain."""
    weights = stored_views(model)
    for node in standard_nodes(model, "Reshape"):
        repeated = made_by(node.inputs[0], "Expand", "Tile")
        lengthened = None if repeated is None else repeated.inputs[0]
        x = source_of(lengthened, "Unsqueeze", "Reshape")
        if repeated is None or x is None or x in weights or info(x).data is not None:
            continue
        if only_user(repeated.outputs[0]) is node:
            _rewrite(node, x, repeated)


def _rewrite(node: ir.Node, x: ir.Value, repeated: ir.Node) -> None:
    before, one, many, after = map(shape_of, (x, repeated.inputs[0], repeated.outputs[0], node.outputs[0]))
    for axis, size in enumerate(before):
        head, tail, count = before[:axis], before[axis + 1 :], many[axis + 1] if axis + 1 < len(many) else 1
        wanted = (*head, size, 1, *tail), (*head, size, count, *tail), (*head, size * count, *tail)
        if isinstance(count, int) and count > 1 and (one, many, after) == wanted:
            replace(node, own("RepeatInterleave", [x], repeats=count, axis=axis))
            return
