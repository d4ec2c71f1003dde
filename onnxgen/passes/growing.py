"""Rewrite a growing list of tensors, concatenated anew at each step: each Concat takes the result of the one before.

    Concat(a, b), Concat(a, b, c), Concat(a, b, c, d), ...
    x = Concat(a, b), x = Concat(x, c), x = Concat(x, d), ...

Every layer of DenseNet (Huang et al. 2017) takes a list of all earlier results. In a traced file each layer has a
different number of inputs, so no two layers would share a class. The elements are the same, and as many are copied.
Gradients are the same sums in another order.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.common.names import common_scope
from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.nodes import all_graphs
from onnxgen.options import Options
from onnxgen.passes.rewrite import replace
from onnxgen.passes.steps import stored_views
from onnxgen.shapes.info import info

MIN_CHAIN = 3  # two Concats may begin alike by chance


def growing(model: ir.Model, options: Options) -> None:
    """Rewrite every Concat of such a list."""
    weights = stored_views(model)
    for graph in all_graphs(model.graph):
        for chain in _chains([node for node in graph if _joins(node) and node.outputs[0] not in weights]):
            for before, node in reversed(list(zip(chain, chain[1:]))):
                _hand_on(before, node)


def _joins(node: ir.Node) -> bool:
    facts = info(node.outputs[0]) if node.op_type == "Concat" and node.domain == "" else None
    return facts is not None and facts.data is None and facts.rank is not None


def _chains(nodes: list[ir.Node]) -> list[list[ir.Node]]:
    """Return chains in which each Concat joins the inputs of the one before it and more. Chains share no node.

    Sequences of inputs are numbered: each is a node of a prefix tree, which has one root for each axis.
    """
    tree: dict[tuple[int, ir.Value | None], int] = {}  # (number of a sequence, next input) to the longer sequence
    chains: dict[int, list[ir.Node]] = {}  # by the sequence that the last node of the chain joins
    for node in nodes:
        sequence = ~(node.attributes["axis"].as_int() % (info(node.outputs[0]).rank or 1))  # the root, below zero
        longest = None
        for value in node.inputs:
            longest = sequence if sequence in chains else longest
            sequence = tree.setdefault((sequence, value), len(tree))
        if sequence not in chains:
            chains[sequence] = [*(chains.pop(longest) if longest is not None else ()), node]
    return [chain for chain in chains.values() if len(chain) >= MIN_CHAIN]


def _hand_on(before: ir.Node, node: ir.Node) -> None:
    """Let a Concat start with the result of the one before it, and move that one to their common scope."""
    inputs = [before.outputs[0], *node.inputs[len(before.inputs) :]]
    if SCOPE.has(before) and SCOPE.has(node):
        SCOPE.set(before, common_scope([SCOPE.get(before), SCOPE.get(node)]) or ())
    replace(node, ir.Node("", "Concat", inputs, list(node.attributes.values()), version=node.version))
