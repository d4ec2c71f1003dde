"""Losses, gradients and optimizers as nodes (ai.onnx.training, ai.onnx.preview.training)."""

from __future__ import annotations

import ast
from typing import Any

import onnx_ir as ir

from onnxgen.code.module_def import Assign, Statement, With
from onnxgen.code.quote import shortest, unless
from onnxgen.common.names import printable
from onnxgen.errors import CHECK, WRITER
from onnxgen.graph.operators import op
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.shapes.bodies import TRAINING
from onnxgen.shapes.bodies import gradient as gradient_facts
from onnxgen.shapes.info import Info, info

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
    options = {"ignore_index": unless(ignored, IGNORED)}
    if _is_constant(weight):
        weights = unless(weight, None)
        return b.call(function, scores, indices, weight=weights, **options, reduction=unless(reduction, "mean"))
    # torch has no gradient for the weights of classes, so they are picked as the losses are; an ignored class gets 0
    table = b(f"-w.reshape(-1{', 1' * (rank - 2)}).expand_as(x)", w=weight, x=scores)
    factors = b.let(b.call("F.nll_loss", table, indices, **options, reduction="none"), "factors")
    losses = b.let(b.call("F.nll_loss", scores, indices, **options, reduction="none"), "losses")
    shown = {"none": "x * w", "sum": "(x * w).sum()", "mean": "(x * w).sum() / w.sum()"}[reduction]
    return b(shown, x=losses, w=factors)


def _is_constant(weight: Arg | None) -> bool:
    return weight is None or (weight.source is not None and not weight.is_trainable)


@op("Gradient", domain=TRAINING, inner=gradient_facts)
def gradient(
    b: Builder, *Inputs: Arg, xs: list[str], zs: list[str] | None = None, y: str, body: ir.Graph
) -> list[ast.expr | None]:
    """The derivatives of the sum of `body`'s result by its first inputs; they can be differentiated again.

    The function is written under `torch.enable_grad()`, then differentiated by `torch.autograd.grad`.
    """
    inputs, count = Inputs, len(xs)
    for arg in inputs[:count]:
        if not arg.is_float:
            raise b.error(f"input {arg.name!r}, a variable of the gradient, must be a floating-point tensor", CHECK)
    again = b.let(b("torch.is_grad_enabled()"), "create_graph", Info(kind="bool"))
    block: list[Statement] = []
    with b.writing(block):
        variables: list[ast.expr] = [b.let(b("as_variable(x)", x=x), x.name, x.info) for x in inputs[:count]]
        statements, (result,) = b.block(body, [*variables, *(z.expr for z in inputs[count:])])
    total = result if info(body.outputs[0]).rank == 0 else b("y.sum()", y=result)
    by = ast.Tuple(variables, ast.Load())
    derivatives = b(
        "torch.autograd.grad(y, xs, create_graph=again, materialize_grads=True)", y=total, xs=by, again=again
    )
    names = [b.define(b.node.outputs[i]) if b.wants(i) else b.fresh("unused") for i in range(count)]
    block += [*statements, Assign(tuple(names), derivatives, b.scope, b.nodes, "" if count > 1 else "{},")]
    b.emit(With(b("torch.enable_grad()"), block, tuple(names), b.scope, b.nodes))
    return [None] * count


# ---- optimizers: a rate, a count, then several groups of as many tensors -------------------------------------------


@op("Adagrad", domain=TRAINING)
def adagrad(
    b: Builder,
    R: Arg,
    T: Arg,
    *inputs: Arg,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> list[ast.expr]:
    return _steps(b, "adagrad_step", R, T, inputs, 3, decay_factor, norm_coefficient, epsilon)


@op("Adam", domain=TRAINING)
def adam(
    b: Builder,
    R: Arg,
    T: Arg,
    *inputs: Arg,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> list[ast.expr]:
    return _steps(b, "adam_step", R, T, inputs, 4, alpha, beta, norm_coefficient, norm_coefficient_post, epsilon)


@op("Momentum", domain=TRAINING)
def momentum(
    b: Builder, R: Arg, T: Arg, *inputs: Arg, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> list[ast.expr]:
    if mode not in ("standard", "nesterov"):
        raise b.error(f"attribute 'mode' must be standard or nesterov, not {printable(mode)!r}", CHECK)
    return _steps(b, "momentum_step", R, T, inputs, 3, alpha, beta, norm_coefficient, mode == "nesterov")


def _steps(
    b: Builder, function: str, rate: Arg, count: Arg, inputs: tuple[Arg, ...], groups: int, *options: Any
) -> list[ast.expr]:
    """Write a call for each tensor. The outputs are in groups, too: all tensors, then all states of the first kind."""
    number, rest = divmod(len(inputs), groups)
    if rest:
        raise b.error(f"the node has {len(inputs)} tensors, not {groups} for each one that it updates", CHECK)
    numbers = [shortest(option) if isinstance(option, float) else option for option in options]
    steps = [b.let(b.call(function, *inputs[i::number], rate, count, *numbers), "updated") for i in range(number)]
    return [b("u[i]", u=updated, i=place) for place in range(groups - 1) for updated in steps]
