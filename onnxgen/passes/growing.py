"""A list of tensors that grows, all of it joined again at each step, is joined to what was joined before.

    Concat(a, b), Concat(a, b, c), Concat(a, b, c, d), ...
    x = Concat(a, b), x = Concat(x, c), x = Concat(x, d), ...

DenseNet's layers (Huang et al. 2017) are given a list of all that was made before them. A traced file shows each with a
number of inputs of its own, so that no two of them would be one class. The elements are the same ones, and as many are
copied; gradients are the same sums, in another order.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.annotations import SCOPE
from onnxgen.options import Options
from onnxgen.passes.rewrite import replace
from onnxgen.passes.steps import stored_views
from onnxgen.scopes.between import common_scope
from onnxgen.shapes.info import info

LEAST = 3  # that join each other: two share their beginning by chance, too


def growing(model: ir.Model, options: Options) -> None:
    """Rewrite every Concat of such a list."""
    weights = stored_views(model)
    for graph in model.graphs():
        for chain in _chains([node for node in graph if _joins(node) and node.outputs[0] not in weights]):
            for before, node in reversed(list(zip(chain, chain[1:]))):
                _hand_on(before, node)


def _joins(node: ir.Node) -> bool:
    value = node.outputs[0] if node.op_type == "Concat" and node.domain == "" else None
    return value is not None and info(value).data is None and info(value).rank is not None


def _chains(nodes: list[ir.Node]) -> list[list[ir.Node]]:
    """Nodes of which each joins all that the one before it does, and more. None is in two chains."""
    tree: dict[tuple[int, ir.Value | None], int] = {}  # from the values so far, by the next one, to those with it
    chains: dict[int, list[ir.Node]] = {}  # by the values that the last node of a chain joins
    for node in nodes:
        values = ~(int(node.attributes["axis"].value) % (info(node.outputs[0]).rank or 1))  # none yet, on this axis
        longest = None
        for value in node.inputs:
            longest = values if values in chains else longest
            values = tree.setdefault((values, value), len(tree))
        if values not in chains:
            chains[values] = [*(chains.pop(longest) if longest is not None else ()), node]
    return [chain for chain in chains.values() if len(chain) >= LEAST]


def _hand_on(before: ir.Node, node: ir.Node) -> None:
    """Let a node begin with what the one before it joined, which is no longer the own affair of who asked for it."""
    rest = node.inputs[len(before.inputs) :]
    attributes = list(node.attributes.values())
    if SCOPE.has(before) and SCOPE.has(node):
        SCOPE.set(before, common_scope([SCOPE.get(before), SCOPE.get(node)]) or ())
    replace(node, ir.Node("", "Concat", [before.outputs[0], *rest], attributes, version=node.version))
