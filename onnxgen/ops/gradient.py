"""Gradient: the function is written under `torch.enable_grad()`, then differentiated by `torch.autograd.grad`."""

from __future__ import annotations

import ast

import onnx_ir as ir

from onnxgen.code.module_def import Assign, Statement, With
from onnxgen.errors import CHECK
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.shapes.bodies import TRAINING
from onnxgen.shapes.info import Info, info


@op("Gradient", domain=TRAINING)
def gradient(
    b: Builder, *Inputs: Arg, xs: list[str], zs: list[str] | None = None, y: str, body: ir.Graph
) -> list[ast.expr | None]:
    """The derivatives of the sum of `body`'s result by its first inputs; they can be differentiated again."""
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
