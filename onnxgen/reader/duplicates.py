"""Remove Constant nodes that a graph has twice under one name with identical contents.

onnxruntime loads such files. It loads files whose constants of one name differ, too, and picks one without a word:
those are refused (`reader.check`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx


def drop_duplicates(proto: onnx.ModelProto) -> None:
    """Remove repeated Constant nodes from every graph and function."""
    _in_nodes(proto.graph.node)
    for function in proto.functions:
        _in_nodes(function.node)


def _in_nodes(nodes: Any) -> None:
    _drop(nodes, _constants(nodes))
    for node in nodes:
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _in_nodes(graph.node)


def _constants(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[int, str, Any]]:
    for i, node in enumerate(nodes):
        is_constant = node.op_type == "Constant" and node.domain in ("", "ai.onnx")
        if is_constant and len(node.output) == len(node.attribute) == 1:
            yield i, node.output[0], node.attribute[0]


def _drop(fields: Any, found: Iterable[tuple[int, str, Any]]) -> None:
    """Delete every field that equals the first field of the same name."""
    first: dict[str, Any] = {}
    twice = []
    for i, name, message in found:
        if name in first and first[name] == message:
            twice.append(i)
        first.setdefault(name, message)
    if twice:
        gone = set(twice)
        kept = [type(field).FromString(field.SerializeToString()) for i, field in enumerate(fields) if i not in gone]
        del fields[:]
        fields.extend(kept)
