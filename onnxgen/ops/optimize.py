"""Optimizers (ai.onnx.preview.training). Their inputs: a rate, a count, then several groups of as many tensors."""

from __future__ import annotations

import ast
from typing import Any

from onnxgen.code.quote import shortest
from onnxgen.common.names import printable
from onnxgen.errors import CHECK
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.shapes.bodies import TRAINING


@op("Adagrad", domain=TRAINING)
def adagrad(
    b: Builder,
    R: Arg,
    T: Arg,
    *inputs: Arg,
    decay_factor: float = 0.0,
    epsilon: float = 0.0,
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
    epsilon: float = 0.0,
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
    given = [shortest(option) if isinstance(option, float) else option for option in options]
    made = [b.let(b.call(function, *inputs[i::number], rate, count, *given), "updated") for i in range(number)]
    return [b("u[i]", u=updated, i=place) for place in range(groups - 1) for updated in made]
