"""Gradients and optimizers as nodes (ai.onnx.training, ai.onnx.preview.training)."""

from __future__ import annotations

import ast
from typing import Any

import onnx_ir as ir

from onnxgen.code.module_def import Assign, Statement, With
from onnxgen.code.quote import shortest
from onnxgen.common.names import printable
from onnxgen.errors import CHECK
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.shapes.bodies import TRAINING
from onnxgen.shapes.bodies import gradient as gradient_facts
from onnxgen.shapes.info import Info, info


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
    made = b("torch.autograd.grad(y, xs, create_graph=again, materialize_grads=True)", y=total, xs=by, again=again)
    names = [b.define(b.node.outputs[i]) if b.wants(i) else b.fresh("unused") for i in range(count)]
    block += [*statements, Assign(tuple(names), made, b.scope, b.nodes, "" if count > 1 else "{},")]
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
    given = [shortest(option) if isinstance(option, float) else option for option in options]
    made = [b.let(b.call(function, *inputs[i::number], rate, count, *given), "updated") for i in range(number)]
    return [b("u[i]", u=updated, i=place) for place in range(groups - 1) for updated in made]
