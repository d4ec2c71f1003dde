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


@op("NegativeLogLikelihoodLoss", since=12, still="target weight")
def negative_log_likelihood_loss(
    b: Builder, input: Arg, target: Arg, weight: Arg | None = None, *, ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> ast.expr:  # fmt: skip
    """`F.nll_loss` of logarithms [batch, classes, ...] and class indices [batch, ...]."""
    return _loss(b, input, input.known_rank, target, weight, ignore_index, reduction)


@op("SoftmaxCrossEntropyLoss", since=12, still="labels weights")
def softmax_cross_entropy_loss(
    b: Builder, scores: Arg, labels: Arg, weights: Arg | None = None, *, ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Any:  # fmt: skip
    """`F.cross_entropy`; the second output is the logarithms of the probabilities."""
    if not b.wants(1) and _is_constant(weights):
        return [_loss(b, scores, scores.known_rank, labels, weights, ignore_index, reduction, "F.cross_entropy")]
    logs = b.let(b("F.log_softmax(x, dim=1)", x=scores), "log_probs")
    return [_loss(b, logs, scores.known_rank, labels, weights, ignore_index, reduction), logs]


def _loss(
    b: Builder, scores: Any, rank: int, target: Arg, weight: Arg | None, ignored: int, reduction: str,
    function: str = "F.nll_loss",
) -> ast.expr:  # fmt: skip
    if reduction not in REDUCTIONS:
        raise b.error(f"attribute 'reduction' must be one of {', '.join(REDUCTIONS)}, not {reduction!r}", WRITER)
    indices: Any = target if target.dtype == ir.DataType.INT64 else b.let(b("x.long()", x=target), "target")
    given = {"ignore_index": unless(ignored, IGNORED)}
    if _is_constant(weight):
        weights = unless(weight, None)
        return b.call(function, scores, indices, weight=weights, **given, reduction=unless(reduction, "mean"))
    # torch has no gradient for the weights of classes, so they are picked as the losses are; an ignored class gets 0
    table = b(f"-w.reshape(-1{', 1' * (rank - 2)}).expand_as(x)", w=weight, x=scores)
    factors = b.let(b.call("F.nll_loss", table, indices, **given, reduction="none"), "factors")
    losses = b.let(b.call("F.nll_loss", scores, indices, **given, reduction="none"), "losses")
    shown = {"none": "x * w", "sum": "(x * w).sum()", "mean": "(x * w).sum() / w.sum()"}[reduction]
    return b(shown, x=losses, w=factors)


def _is_constant(weight: Arg | None) -> bool:
    return weight is None or (weight.source is not None and not weight.is_trainable)
