"""Which graphs can't run: a node gets a tensor of a rank that its operator's definition excludes.

Only operators are asked whose kernels onnxruntime has check the rank themselves. Unknown ranks are no reason.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxgen.graph.nodes import has_subgraphs
from onnxgen.shapes.info import Info, info

Rule = Callable[[ir.Node, list[Info]], bool]


def fails(graph: ir.Graph) -> bool:
    """Return True if a run of the graph certainly fails at one of its nodes, by the facts that are recorded now."""
    return any(_fails(node) for node in graph)


def _fails(node: ir.Node) -> bool:
    if node.domain != "":
        return False
    if node.op_type == "If":
        condition = info(node.inputs[0]).constant
        taken = ["then_branch", "else_branch"]
        if condition is not None and condition.size == 1:
            taken = taken[:1] if condition.item() else taken[1:]
        return all(fails(node.attributes[name].as_graph()) for name in taken)
    rule = RULES.get(node.op_type)
    return rule is not None and not has_subgraphs(node) and rule(node, [info(v) for v in node.inputs])


def _rank(rank: int) -> Rule:
    return lambda node, given: given[0].rank not in (None, rank)


def _as_weight(node: ir.Node, given: list[Info]) -> bool:
    ranks = {facts.rank for facts in given[:2]}
    return None not in ranks and len(ranks) > 1


def _all_alike(node: ir.Node, given: list[Info]) -> bool:
    return len({facts.rank for facts in given} - {None}) > 1


def _permuted(node: ir.Node, given: list[Info]) -> bool:
    perm = node.attributes.get_ints("perm", None)
    return perm is not None and given[0].rank not in (None, len(perm))


RULES: dict[str, Rule] = {
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _rank(3)),
    **dict.fromkeys(("Conv", "ConvTranspose"), _as_weight),
    "Gemm": _rank(2),
    "Concat": _all_alike,
    "Transpose": _permuted,
}
