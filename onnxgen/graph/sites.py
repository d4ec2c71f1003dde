"""Positions of values in the file. They are recorded after local functions are inlined and before any rewrite."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxgen.graph.annotations import CALLED, LOCAL, NODES
from onnxgen.graph.nodes import all_nodes

Site = tuple[str, int]  # name of a node's output in the file, and index of the node's input
Nodes = dict[str, tuple[tuple[Site, str], ...]]


def site(node: ir.Node, index: int) -> Site:
    """Return the position in the file of an input of a node."""
    return CALLED.get(node).get(index) or (next((o.name for o in node.outputs if o.name), "") or "", index)


def note_nodes(model: ir.Model) -> None:
    """Record in `model.meta` which values each node of the file takes."""
    noted: Nodes = {}
    for node in all_nodes(model.graph):
        inputs = tuple((site(node, i), v.name) for i, v in enumerate(node.inputs) if v is not None and v.name)
        noted |= {o.name: inputs for o in node.outputs if o.name}
    NODES.set(model, noted)


def note_body(call: ir.Node, function: ir.Function, values: Mapping[ir.Value, ir.Value | None]) -> None:
    """Record for an inlined function which inputs come from the call, and which tensors the function stores.

    `values`: for the function's own values, those of the body.
    """
    formal = {value: index for index, value in enumerate(function.inputs)}
    for node in function:
        made = next((new.producer() for o in node.outputs if (new := values.get(o)) is not None), None)
        if made is not None:
            CALLED.set(made, {i: site(call, formal[v]) for i, v in enumerate(node.inputs) if v in formal})
    stored = [o for node in all_nodes(function) if node.op_type == "Constant" for o in node.outputs]
    stored += [value for graph in function.subgraphs() for value in graph.initializers.values()]
    for value in stored:
        new = values.get(value)
        if new is not None:
            LOCAL.set(new, (*function.identifier(), value.name))
