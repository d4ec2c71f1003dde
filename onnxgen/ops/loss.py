"""Losses of the standard."""

from __future__ import annotations

import ast
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import unless
from onnxgen.errors import WRITER
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder

REDUCTIONS = ("none", "sum", "mean")
IGNORED = -100  # torch's default class that does not count; ONNX has none, but no class is negative


@op("NegativeLogLikelihoodLoss", since=12, still="target")
def negative_log_likelihood_loss(
    b: Builder, input: Arg, target: Arg, weight: Arg | None = None, *, ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> ast.expr:  # fmt: skip
    """`F.nll_loss` of logarithms [batch, classes, ...] and class indices [batch, ...]."""
    return _loss(b, "F.nll_loss", input, target, weight, ignore_index, reduction)


@op("SoftmaxCrossEntropyLoss", since=12, still="labels")
def softmax_cross_entropy_loss(
    b: Builder, scores: Arg, labels: Arg, weights: Arg | None = None, *, ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Any:  # fmt: skip
    """`F.cross_entropy`; the second output is the logarithms of the probabilities."""
    if not b.wants(1):
        return [_loss(b, "F.cross_entropy", scores, labels, weights, ignore_index, reduction)]
    logs = b.let(b("F.log_softmax(x, dim=1)", x=scores), "log_probs")
    return [_loss(b, "F.nll_loss", logs, labels, weights, ignore_index, reduction), logs]


def _loss(
    b: Builder, function: str, scores: Any, target: Arg, weight: Arg | None, ignored: int, reduction: str
) -> ast.expr:
    if reduction not in REDUCTIONS:
        raise b.error(f"attribute 'reduction' must be one of {', '.join(REDUCTIONS)}, not {reduction!r}", WRITER)
    indices = target if target.dtype == ir.DataType.INT64 else b("x.long()", x=target)
    return b.call(
        function, scores, indices, weight=unless(weight, None), ignore_index=unless(ignored, IGNORED),
        reduction=unless(reduction, "mean"),
    )  # fmt: skip
