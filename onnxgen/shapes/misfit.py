"""Which nodes can't run on tensors of the ranks and sizes that are known: their rules find a contradiction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxgen.graph.nodes import has_subgraphs
from onnxgen.shapes.dims import Dim, TooComplex, substitute, symbols
from onnxgen.shapes.expression import symbol
from onnxgen.shapes.infer import STANDARD, rule_of
from onnxgen.shapes.info import Info, info
from onnxgen.shapes.node_facts import NONSENSE, Contradiction, NodeFacts, Symbols


def misfit(node: ir.Node, opset: int) -> str:
    """Return why a node can't run on inputs of the known sizes, however large the others are; "" if it may run.

    Sizes that are not known count as 1 or more: of nothing, a network may make anything.
    """
    rule = rule_of(node) if node.domain in STANDARD else None
    if rule is None:
        return ""
    try:
        rule(NodeFacts(node, opset, [None if v is None else _of_something(info(v)) for v in node.inputs], Symbols({})))
    except Contradiction as why:
        return str(why)
    except (*NONSENSE, TooComplex):
        return ""
    return ""


def fails(graph: ir.Graph, opset: int | None = None) -> bool:
    """Return True if a run of the graph certainly fails at one of its nodes, by the facts that are recorded now.

    A network that halves its picture and adds what it enlarges again to what it kept fails for most sizes.

    Args:
        opset: of the standard, for nodes that note none. Default: what the graph says.
    """
    opset = graph.opset_imports.get("", 1) if opset is None else opset
    return any(_fails(node, opset) for node in graph)


def _fails(node: ir.Node, opset: int) -> bool:
    if node.domain == "" and node.op_type == "If":
        condition = info(node.inputs[0]).constant
        taken = ["then_branch", "else_branch"]
        if condition is not None and condition.size == 1:
            taken = taken[:1] if condition.item() else taken[1:]
        return all(fails(node.attributes[name].as_graph(), opset) for name in taken)
    return not has_subgraphs(node) and bool(misfit(node, node.version or opset))


def _of_something(facts: Info) -> Info:
    shape = None if facts.shape is None else tuple(map(_at_least_one, facts.shape))
    data = facts.data
    if data is not None and data.dtype == object:
        made = np.empty(data.shape, object)
        made.reshape(-1)[:] = [_at_least_one(dim) for dim in data.flat]
        data = made
    return replace(facts, shape=shape, data=data)


def _at_least_one(dim: Dim) -> Dim:
    return substitute(dim, {name: symbol(name, known.source) + 1 for name, known in symbols(dim).items()})
