"""Recurrent layers that take the batch first (`layout=1`), as layers that take the time first: onnxruntime runs no
others.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

from onnxgen.common.names import Namer
from onnxgen.reader.protos import every_node, graphs_of, put

STANDARD = ("", "ai.onnx")
STATES = (5, 6)  # inputs
SWAPPED = [1, 0, 2]
BATCH_FIRST = [2, 0, 1, 3]  # of all steps, [time, directions, batch, hidden] before


def time_first(model: onnx.ModelProto) -> int:
    """Put Transpose nodes around the layers that take the batch first, in place. Returns the number of layers."""
    names = Namer(name for node in every_node(model) for name in (*node.input, *node.output))
    return sum(_changed(nodes, names) for nodes in (model.graph.node, *(f.node for f in model.functions)))


def _changed(nodes: Any, names: Namer) -> int:
    """Change the nodes of one graph, and of the graphs inside it."""
    count, new_nodes = 0, list[onnx.NodeProto]()
    for node in list(nodes):
        for attribute in node.attribute:
            count += sum(_changed(graph.node, names) for graph in graphs_of(attribute))
        # no other operator of the standard has this attribute
        if node.domain not in STANDARD or not any(a.name == "layout" and a.i == 1 for a in node.attribute):
            new_nodes.append(node)
            continue
        count += 1
        new_nodes += _with_time_first(node, names)
    if count:
        put(nodes, new_nodes)
    return count


def _with_time_first(node: onnx.NodeProto, names: Namer) -> list[onnx.NodeProto]:
    new = onnx.NodeProto()
    new.CopyFrom(node)
    put(new.attribute, [a for a in node.attribute if a.name != "layout"])
    before, after = list[onnx.NodeProto](), list[onnx.NodeProto]()
    for i, name in enumerate(node.input):
        if name and (i == 0 or i in STATES):
            new.input[i] = names.take(f"{name}.time_first")
            before.append(helper.make_node("Transpose", [name], [new.input[i]], perm=SWAPPED))
    for i, name in enumerate(node.output):
        if name:
            new.output[i] = names.take(f"{name}.time_first")
            perm = SWAPPED if i else BATCH_FIRST
            after.append(helper.make_node("Transpose", [new.output[i]], [name], perm=perm))
    return [*before, new, *after]
