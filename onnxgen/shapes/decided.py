"""Conditions on sizes that are the same in every run which returns something.

torch exports `x.squeeze(-1)` of a size that is free as an If on that size: both branches differ in the rank of their
result. Often only one of them can be meant: behind the other, a later node gets a tensor of a rank that its operator
does not have, and onnxruntime stops there. So a condition on sizes is assumed to be true, and then false. If everything
fails under one assumption, the other one holds.

A condition that depends on an input's elements is not asked: it is an argument of the network.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import SIZES
from onnxgen.options import Options
from onnxgen.shapes import propagate
from onnxgen.shapes.infer import fails
from onnxgen.shapes.info import info

MAX_TRIALS = 32  # propagations through the whole graph for one file
BRANCHES = {True: "then_branch", False: "else_branch"}


def decided(graph: ir.Graph, options: Options) -> dict[ir.Value, bool]:
    """Return the conditions of Ifs that are decided by the ranks behind them. Runs `propagate`, also with them."""
    choices: dict[ir.Value, bool] = {}
    trials, known = 0, -1
    while known < len(choices):
        known = len(choices)
        for node in choosing(graph):
            condition = node.inputs[0]
            if condition is None or condition in choices or trials >= MAX_TRIALS:
                continue
            if choice_of(node) is None and _changes_rank(node) and _of_sizes(condition):
                trials += len(BRANCHES)
                choice = _possible(graph, node, condition, choices, options)
                choices |= {} if choice is None else {condition: choice}
                propagate(graph, options, assumed=choices)
    return choices


def choosing(graph: ir.Graph) -> list[ir.Node]:
    """Return every If of a graph, and those in its branches."""
    return [node for node in all_nodes(graph) if not node.domain and BRANCHES[True] in node.attributes]


def choice_of(node: ir.Node) -> bool | None:
    """Return what the condition of an If is known to be, else None."""
    return info(node.inputs[0]).truth


def _changes_rank(node: ir.Node) -> bool:
    """True if the branches return tensors of different ranks."""
    then, other = (node.attributes[name].as_graph().outputs for name in BRANCHES.values())
    pairs = [(info(a).rank, info(b).rank) for a, b in zip(then, other, strict=False)]
    return any(a != b and a is not None and b is not None for a, b in pairs)


def _of_sizes(value: ir.Value) -> bool:
    """True if a value depends on nothing but sizes and constants."""
    pending: list[ir.Value | None] = [value]
    seen = set[ir.Value]()
    while pending:
        one = pending.pop()
        if one is None or one in seen or info(one).data is not None:
            continue
        seen.add(one)
        node = one.producer()
        if node is None:
            return False
        pending += () if is_a(node, SIZES) else node.inputs
    return True


def _possible(
    graph: ir.Graph, node: ir.Node, condition: ir.Value, choices: dict[ir.Value, bool], options: Options
) -> bool | None:
    """Return the only value of a condition with which the node's graph can run; None if it can with both or none."""
    able = []
    for choice in BRANCHES:
        propagate(graph, options, assumed={**choices, condition: choice})
        assert node.graph is not None
        able += [] if fails(node.graph, graph.opset_imports.get("", 1)) else [choice]
    return able[0] if len(able) == 1 else None
