"""A list that is taken apart again at once is none: `SplitToSequence` whose every part is taken by number is `Split`.

PyTorch's dynamo exporter writes `torch.split`, `chunk` and `unbind` so where it does not optimise (a training export).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.passes.rewrite import beside, drop
from onnxgen.passes.steps import constant, insert, replace_uses
from onnxgen.shapes.info import Info, info, set_info


def sequences(model: ir.Model, options: Options) -> None:
    """Rewrite every such list of a static number of parts; its items keep their names."""
    for node in all_nodes(model.graph):
        if node.op_type == "SplitToSequence" and node.domain == "" and node.graph is not None:
            sizes = _sizes(node)
            items = None if sizes is None else _items(node, len(sizes))
            if sizes is not None and items:
                _split(node, sizes, items)


def _sizes(node: ir.Node) -> list[int] | None:
    """The sizes of the parts along the axis."""
    shape = info(node.inputs[0]).shape
    given = node.inputs[1] if len(node.inputs) > 1 else None
    known = info(given).constant if given is not None else np.array(1)
    if not shape or known is None:
        return None
    if known.ndim > 1:
        return None
    if known.ndim == 1:
        return [int(size) for size in known]
    length, size = shape[_axis(node, len(shape))], int(known)
    if not isinstance(length, int) or size < 1:
        return None
    return [min(size, length - start) for start in range(0, length, size)]


def _axis(node: ir.Node, rank: int) -> int:
    return int(node.attributes["axis"].value) % rank if "axis" in node.attributes else 0


def _items(node: ir.Node, count: int) -> dict[ir.Node, int] | None:
    """The nodes that take the parts, with the number of the part; None if anything else uses the list."""
    output = node.outputs[0]
    items: dict[ir.Node, int] = {}
    for use in output.uses():
        position = info(use.node.inputs[1]).constant if use.node.op_type == "SequenceAt" else None
        if position is None or use.node.outputs[0].is_graph_output():
            return None
        number = int(position.reshape(-1)[0])
        if not -count <= number < count:
            return None
        items[use.node] = number % count
    return None if output.is_graph_output() else items


def _split(node: ir.Node, sizes: list[int], items: dict[ir.Node, int]) -> None:
    facts, name = info(node.inputs[0]), node.outputs[0].name
    assert facts.shape is not None
    axis = _axis(node, len(facts.shape))
    inputs = [node.inputs[0], constant(node, np.array(sizes), f"{name}.sizes")]
    split = ir.Node("", "Split", inputs, [ir.AttrInt64("axis", axis)], num_outputs=len(sizes), version=13)
    split.name = node.name
    beside(split, node)
    insert(node, split)
    for i, (part, size) in enumerate(zip(split.outputs, sizes)):
        part.name = f"{name}.{i}"
        set_info(part, Info(facts.dtype, (*facts.shape[:axis], size, *facts.shape[axis + 1 :])))
    # The specification: keepdims is ignored where a size is given.
    whole = (len(node.inputs) > 1 and node.inputs[1] is not None) or _keepdims(node)
    for item, number in items.items():
        part = split.outputs[number] if whole else _squeezed(item, split.outputs[number], axis)
        replace_uses(item.outputs[0], part)
        drop(item)


def _keepdims(node: ir.Node) -> bool:
    return "keepdims" not in node.attributes or bool(node.attributes["keepdims"].value)


def _squeezed(item: ir.Node, part: ir.Value, axis: int) -> ir.Value:
    squeeze = ir.Node("", "Squeeze", [part, constant(item, np.array([axis]), f"{part.name}.axis")], version=13)
    squeeze.name = item.name
    beside(squeeze, item)
    insert(item, squeeze)
    shape = info(part).shape or ()
    squeeze.outputs[0].name = item.outputs[0].name
    set_info(squeeze.outputs[0], Info(info(part).dtype, (*shape[:axis], *shape[axis + 1 :])))
    return squeeze.outputs[0]
