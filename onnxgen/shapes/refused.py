"""Which graphs can't run: a node gets a tensor of a rank that its operator's definition excludes.

Only operators are asked whose kernels onnxruntime has check the rank themselves. Unknown ranks are no reason. Of sizes
that are numbers, `first_misfit` tells the same.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest

import onnx_ir as ir

from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import has_subgraphs
from onnxgen.graph.traits import BROADCASTS
from onnxgen.shapes.info import Info, Shape, info

Rule = Callable[[ir.Node, list[Info]], bool]


def fails(graph: ir.Graph) -> bool:
    """Return True if a run of the graph certainly fails at one of its nodes, by the facts that are recorded now."""
    return any(_fails(node) for node in graph)


def first_misfit(graph: ir.Graph) -> ir.Node | None:
    """Return the first node that joins or combines tensors of sizes that do not go together; None if there is none.

    A network that halves its picture and adds what it enlarges again to what it kept has one for most sizes.
    """
    return next((node for node in graph if node.domain == "" and _misfits(node)), None)


def _misfits(node: ir.Node) -> bool:
    shapes = [shape for value in node.inputs if value is not None and (shape := info(value).shape) is not None]
    if node.op_type == "Concat" and shapes and len({len(shape) for shape in shapes}) == 1:
        axis = node.attributes.get_int("axis", 1) % max(len(shapes[0]), 1)
        return _differ([(*shape[:axis], *shape[axis + 1 :]) for shape in shapes])
    by_axis = "axis" in node.attributes or "broadcast" in node.attributes  # of opset 6: the first axes may be equal
    return not by_axis and is_a(node, BROADCASTS) and _differ(shapes, besides=1)


def _differ(shapes: list[Shape], besides: int | None = None) -> bool:
    """Return True if an axis, counted from the last, has two numbers; `besides` is not counted."""
    axes = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=besides)
    return any(len({dim for dim in dims if isinstance(dim, int) and dim != besides}) > 1 for dims in axes)


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
