"""Softmax, its logarithm and logsumexp, spelled out in elementary operators or between two Transposes.

    exp(x - max(x)) / sum(exp(x - max(x)))        with the maximum or without, by Div or by Reciprocal
    m + log(sum(exp(x - m)))                      m = max(x), or nothing at all

The maximum cancels out of the result and of its gradient; without it a spelling overflows where the function does not.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.nodes import all_nodes, made_by
from onnxgen.options import Options
from onnxgen.passes.idioms import Idiom, Table, same_as
from onnxgen.passes.pattern import Match, Pattern
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.shapes.info import info

SHIFTED = "x - ReduceMax(x, axes)"


def _along(op_type: str, *patterns: Pattern) -> Idiom:
    """A function of `x` along the one axis that was reduced."""

    def build(match: Match) -> ir.Node | None:
        if len(match.axes()) != 1 or not same_as(match):
            return None
        return ir.Node("", op_type, [match.tensor("x")], [ir.AttrInt64("axis", match.axes()[0])], version=13)

    return Idiom(patterns, build)


def _logsumexp(match: Match) -> ir.Node:
    axes = ir.AttrInt64s("axes", match.axes())
    keepdims = ir.AttrInt64("keepdims", int(match.number("keep")))
    return ir.Node("", "ReduceLogSumExp", [match.tensor("x")], [axes, keepdims], version=13)


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
    for node in all_nodes(model.graph):
        if node.op_type in ("Softmax", "LogSoftmax") and node.domain == "" and node.graph is not None:
            _untranspose(node)


def _untranspose(node: ir.Node) -> None:
    """Before opset 13 both are over the last axis, and torch's legacy exporter swaps another one with it."""
    before, after = made_by(node.inputs[0], "Transpose"), only_user(node.outputs[0])
    facts = info(node.inputs[0])
    if before is None or after is None or after.op_type != "Transpose" or only_user(before.outputs[0]) is not node:
        return
    there, back = (list(n.attributes["perm"].value) if "perm" in n.attributes else [] for n in (before, after))
    axis = node.attributes["axis"].value if "axis" in node.attributes else None
    if not facts.rank or axis is None or axis % facts.rank != facts.rank - 1 or not there:
        return
    if sorted(there) == sorted(back) == list(range(facts.rank)) == [there[p] for p in back]:
        over = ir.AttrInt64("axis", there[-1])
        replace(after, ir.Node("", node.op_type, [before.inputs[0]], [over], version=13), origin=node)
