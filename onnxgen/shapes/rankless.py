"""Which inputs of the file must be given a shape so that a value has a rank."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.graph.annotations import RANKLESS
from onnxgen.graph.nodes import all_nodes, subgraphs
from onnxgen.shapes.info import info

MAX_INPUTS_SHOWN = 3


def shape_option(value: ir.Value | None) -> str:
    """Return the way out that gives a value a rank, or "" if no input of the file without a rank leads to it."""
    found, seen, todo = dict[str, None](), {value}, [value]
    while todo:
        current = todo.pop()
        if current is None or info(current).rank is not None:
            continue
        if RANKLESS.get(current):
            found[printable(current.name or "")] = None
        node = current.producer()
        inner = [] if node is None else [n for graph in subgraphs(node) for n in all_nodes(graph)]
        used = [] if node is None else [v for n in (node, *inner) for v in n.inputs]
        todo += (new := [v for v in dict.fromkeys(used) if v not in seen])
        seen.update(new)
    if not found:
        return ""
    options = " ".join(f"--input-shape {name}=2,3" for name in list(found)[:MAX_INPUTS_SHOWN])
    names = ", ".join(found)
    return f"the file declares no rank for {names}: give all dims, such as {options} (-1 for a free one)"
