"""Remove repeated Constant nodes: those with the same output name and the same contents in one graph.

onnxruntime loads such files. It also loads files where constants of one name differ, and silently picks one.
`reader.check` refuses those.
"""

from __future__ import annotations

from typing import Any

import onnx

from onnxgen.reader.protos import inner_graphs, put


def drop_duplicates(proto: onnx.ModelProto) -> None:
    """Remove repeated Constant nodes from every graph and function."""
    _in_nodes(proto.graph.node)
    for function in proto.functions:
        _in_nodes(function.node)


def _in_nodes(nodes: Any) -> None:
    first: dict[str, onnx.AttributeProto] = {}
    kept = []
    for node in nodes:
        is_constant = node.op_type == "Constant" and node.domain in ("", "ai.onnx")
        if is_constant and len(node.output) == len(node.attribute) == 1:
            name, value = node.output[0], node.attribute[0]
            if name in first and first[name] == value:
                continue
            first.setdefault(name, value)
        kept.append(node)
    if len(kept) < len(nodes):
        put(nodes, kept)
    for node in nodes:
        for graph in inner_graphs(node):
            _in_nodes(graph.node)
