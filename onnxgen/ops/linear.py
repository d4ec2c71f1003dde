"""Matrix products: MatMul, Gemm, and the linear layer that a pass makes of MatMul and Add."""

from __future__ import annotations

import ast
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import OMIT, MemberRef, unless
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.graph.traits import PRODUCT, WHOLE
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.fake_quant import QuantizedLayer, layer
from onnxgen.ops.rules import rules
from onnxgen.ops.wide import INTEGERS, computed
from onnxgen.scopes.origin import param_path
from onnxgen.shapes import own
from onnxgen.weights.dequantised import DequantisedTensor
from onnxgen.weights.provenance import Source
from onnxgen.weights.stored import viewed_from


@op("MatMul", traits=[WHOLE, PRODUCT], matrix="B", **rules("matmul"))
def matmul(b: Builder, A: Arg, B: Arg) -> ast.expr:
    return computed(b, A.dtype, lambda x, y: b("x @ y", x=x, y=y), A, B)


@op("Linear", traits=[PRODUCT], domain=DOMAIN, matrix="weight", bias="bias", reference=own.Linear)
def linear(b: Builder, x: Arg, weight: Arg, bias: Arg | None = None) -> ast.expr:
    """`x @ weight + bias`, with the weight as [in, out]."""
    if bias is None or bias.source is not None:
        module = _module(b, weight, None if bias is None else bias.source, transposed=True)
        if module is not None:
            return b("m(x)", m=module, x=x)
    label = _original_name(weight, bias)
    if label and weight.is_trainable:
        original = b.parameter(weight, label, transposed=True)
        inside = bias is not None and bias.rank == 1
        product = b.call("F.linear", x, original, bias if inside else OMIT)
        return product if bias is None or inside else b("p + c", p=product, c=bias)
    product = b("x @ w", x=x, w=weight)
    return product if bias is None else b("p + c", p=product, c=bias)


def _original_name(weight: Arg, bias: Arg | None) -> str:
    """Return the original name of a matrix that an exporter transposed and stored without its name; "" if unknown.

    The dynamo exporter records it. Otherwise it follows from the bias: `attn.in_proj_bias` belongs to
    `attn.in_proj_weight`.
    """
    if weight.value is None or param_path(weight.name) is not None:
        return ""
    recorded = viewed_from(weight.value)
    path = param_path(bias.name) if bias is not None else None
    if recorded or path is None or "bias" not in path[-1]:
        return recorded
    return ".".join((*path[:-1], path[-1].replace("bias", "weight")))


def _module(b: Builder, weight: Arg, bias: Source | None, transposed: bool) -> MemberRef | None:
    """Return the layer of a stored weight, given as [in, out] if `transposed`, else as torch has it: [out, in]."""
    if weight.rank != 2:
        return None
    made = layer(b, weight, "Linear", transposed)
    return linear_module(b, bias, made)


def linear_module(b: Builder, bias: Source | None, made: QuantizedLayer) -> MemberRef | None:
    """Return the layer `made` of a stored weight [out, in].

    A parameter that still has its dotted name has the orientation that its author gave it. So one that is stored as
    [in, out] was not an `nn.Linear` (e.g. GPT-2's Conv1D) and stays a parameter. Quantised weights are an exception:
    onnxruntime's quantiser transposes the matrix of a Gemm and keeps its name.
    """
    weight = made.weight
    if weight is None or len(weight.shape) != 2 or not weight.dtype.is_floating_point():
        return None
    if len(weight.names) == 1 and param_path(weight.names[0]) is not None and not weight.is_identity:
        if not any(isinstance(piece.tensor, DequantisedTensor) for piece in weight.pieces):
            return None
    columns, rows = weight.shape[1], weight.shape[0]
    dtype = unless(weight.dtype, ir.DataType.FLOAT)
    if bias is not None and bias.shape != (rows,):
        if any(d != 1 for d in bias.shape[:-1]) or bias.shape[-1:] != (rows,):
            return None
        bias = bias.reshape((rows,))
    build = made.build(b, columns, rows, bias=unless(bias is not None, True), dtype=dtype)
    return b.module("fc", build, **made.keys, bias=bias)


@op("Gemm", traits=[PRODUCT], since=1, matrix="B", bias="C", weights="A B C", **rules("gemm"))
def gemm(
    b: Builder,
    A: Arg,
    B: Arg,
    C: Arg | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    broadcast: int = 0,
) -> ast.expr:
    """`alpha * A' @ B' + beta * C`, where C broadcasts (before opset 7 only if `broadcast`)."""
    a = b("x.T", x=A) if transA else A.expr
    if alpha == 1.0 and (C is None or (beta == 1.0 and C.source is not None)):
        module = _module(b, B, None if C is None else C.source, transposed=not transB)
        if module is not None:
            return b("m(x)", m=module, x=a)
    if A.dtype in INTEGERS:
        if not (alpha.is_integer() and beta.is_integer()):
            raise b.error("attribute 'alpha' or 'beta' scales integers by a fraction", "cast the inputs to float")
        alpha, beta = int(alpha), int(beta)

    def formula(x: Any, y: Any, c: Any = None) -> ast.expr:
        made = b("a @ y", a=b("x.T", x=x) if transA else x, y=b("x.T", x=y) if transB else y)
        if alpha != 1:
            made = b("alpha * p", alpha=alpha, p=made)
        if c is None:
            return made
        return b("p + c", p=made, c=c) if beta == 1 else b("p + beta * c", p=made, beta=beta, c=c)

    return computed(b, A.dtype, formula, A, B, *([] if C is None or beta == 0 else [C]))
