"""Softmax, its logarithm and logsumexp, spelled out in elementary operators or between two Transposes.

    exp(x - max(x)) / sum(exp(x - max(x)))        with the maximum or without, by Div or by Reciprocal
    m + log(sum(exp(x - m)))                      m = max(x), or nothing at all

The maximum cancels out of the result and of its gradient. Without it a spelling overflows where the function does not.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.options import Options
from onnxgen.passes.idioms import Idiom, Table, same_as
from onnxgen.passes.match import standard_nodes
from onnxgen.passes.pattern import Match, Pattern
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.shapes.info import info

SHIFTED = "x - ReduceMax(x, axes)"


def _along(op_type: str, *patterns: Pattern) -> Idiom:
    """Make an idiom of a function of `x` along the only axis that is reduced."""

    def build(match: Match) -> ir.Node | None:
        if len(match.axes()) != 1 or not same_as(match):
            return None
        return ir.node(op_type, [match.tensor("x")], {"axis": match.axes()[0]}, version=13)

    return Idiom(patterns, build)


def _logsumexp(match: Match) -> ir.Node:
    keepdims = int(match.number("keep"))
    return ir.node("ReduceLogSumExp", [match.tensor("x")], {"axes": match.axes(), "keepdims": keepdims}, version=13)


TABLE = Table(
    [
        _along(
            "Softmax",
            Pattern("Exp(d) / ReduceSum(Exp(d), axes)", {"d": SHIFTED}),
            Pattern(f"Exp({SHIFTED}) / ReduceSum(Exp({SHIFTED}), axes)"),
            Pattern("Exp(x) / ReduceSum(Exp(x), axes)"),
        ),
        Idiom(
            (
                Pattern(f"ReduceMax(x, axes, keep) + Log(ReduceSum(Exp({SHIFTED}), axes, keep))"),
                Pattern(f"ReduceMax(x, axes, keep) + ReduceLogSumExp({SHIFTED}, axes, keep)"),
                Pattern("Log(ReduceSum(Exp(x), axes, keep))"),
                Pattern("ReduceLogSum(Exp(x), axes, keep)"),
            ),
            _logsumexp,
        ),
        _along(
            "LogSoftmax",
            Pattern("d - ReduceLogSumExp(d, axes)", {"d": SHIFTED}),
            Pattern(f"{SHIFTED} - ReduceLogSumExp({SHIFTED}, axes)"),
            Pattern("x - ReduceLogSumExp(x, axes)"),
        ),
    ]
)


def softmax(model: ir.Model, options: Options) -> None:
    """Rewrite every such spelling, and the softmax of a transposed tensor that is transposed back."""
    TABLE.rewrite(model)
    for node in standard_nodes(model, "Softmax", "LogSoftmax"):
        _remove_transposes(node)


def _remove_transposes(node: ir.Node) -> None:
    """Remove the Transposes around a softmax over another axis than the last.

    Before opset 13 these operators work on the last axis, so torch's legacy exporter swaps the other axis with it.
    """
    before, after = made_by(node.inputs[0], "Transpose"), only_user(node.outputs[0], "Transpose")
    rank, axis = info(node.inputs[0]).rank, node.attributes.get_int("axis", None)
    if before is None or after is None or only_user(before.outputs[0]) is not node:
        return
    there, back = (list(n.attributes.get_ints("perm", ())) for n in (before, after))
    if not rank or axis is None or axis % rank != rank - 1 or not there:
        return
    if sorted(there) == sorted(back) == list(range(rank)) == [there[p] for p in back]:
        replace(after, ir.node(node.op_type, [before.inputs[0]], {"axis": there[-1]}, version=13), origin=node)
