"""A `SplitToSequence` whose items are only taken by constant index becomes `Split`.

PyTorch's dynamo exporter writes `torch.split`, `chunk` and `unbind` like this if it does not optimise (for training).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.options import Options
from onnxgen.passes.match import standard_nodes
from onnxgen.passes.rewrite import constant, input_at, insert, take_over
from onnxgen.shapes.info import Info, info, set_info


def sequences(model: ir.Model, options: Options) -> None:
    """Rewrite every such list of a static number of parts; its items keep their names."""
    for node in standard_nodes(model, "SplitToSequence"):
        rank = info(node.inputs[0]).rank
        if rank:
            axis = node.attributes.get_int("axis", 0) % rank
            sizes = _sizes(node, axis)
            items = None if sizes is None else _items(node, len(sizes))
            if sizes is not None and items:
                _split(node, axis, sizes, items)


def _sizes(node: ir.Node, axis: int) -> list[int] | None:
    """Return the sizes of the parts along the axis, or None if they are not known."""
    split = input_at(node, 1)
    known = info(split).constant if split is not None else np.array(1)
    if known is None or known.ndim > 1:
        return None
    if known.ndim == 1:
        return [int(size) for size in known]
    length, size = (info(node.inputs[0]).shape or ())[axis], int(known)
    if not isinstance(length, int) or size < 1:
        return None
    return [min(size, length - start) for start in range(0, length, size)]


def _items(node: ir.Node, count: int) -> dict[ir.Node, int] | None:
    """Return the nodes that take items, each with the item's number; None if anything else uses the list."""
    output = node.outputs[0]
    items: dict[ir.Node, int] = {}
    for use in output.uses():
        position = info(use.node.inputs[1]).constant if use.node.op_type == "SequenceAt" else None
        number = count if position is None else int(position.reshape(-1)[0])
        if use.node.outputs[0].is_graph_output() or not -count <= number < count:
            return None
        items[use.node] = number % count
    return None if output.is_graph_output() else items


def _split(node: ir.Node, axis: int, sizes: list[int], items: dict[ir.Node, int]) -> None:
    facts, name = info(node.inputs[0]), node.outputs[0].name
    shape = facts.shape or ()
    head, tail = shape[:axis], shape[axis + 1 :]
    inputs = [node.inputs[0], constant(node, sizes, f"{name}.sizes")]
    split = ir.node("Split", inputs, {"axis": axis}, num_outputs=len(sizes), version=13, name=node.name)
    insert(node, split, scope_of=node)
    for i, (part, size) in enumerate(zip(split.outputs, sizes)):
        part.name = f"{name}.{i}"
        set_info(part, Info(facts.dtype, (*head, size, *tail)))
    # keepdims is ignored where sizes are given (ONNX SplitToSequence)
    keeps_axis = input_at(node, 1) is not None or bool(node.attributes.get_int("keepdims", 1))
    for item, number in items.items():
        part = split.outputs[number]
        if not keeps_axis:
            inputs = [part, constant(item, [axis], f"{part.name}.axis")]
            squeeze = ir.node("Squeeze", inputs, version=13, name=item.name)
            part = insert(item, squeeze, item.outputs[0].name, Info(facts.dtype, (*head, *tail)), item)
        take_over(item.outputs[0], part)
