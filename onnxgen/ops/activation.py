"""Activations: elementwise functions of one tensor, and the softmax family."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from onnxgen.code.quote import OMIT, shortest, unless
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import Lowering, op
from onnxgen.graph.traits import ACTIVATION, ELEMENTWISE, RECTIFIER, SIGMOID, SOFTMAX, Trait
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.ops.cast import WIDER
from onnxgen.ops.index import shown_axis
from onnxgen.ops.math import unary
from onnxgen.ops.rules import rules
from onnxgen.shapes import own, usual
from onnxgen.shapes.dims import dim_max

# Operators with one input, no attribute and the same meaning at every opset: a trait, a lower bound of the result, and
# what numpy computes.
UNARY: dict[str, tuple[str, Trait, float, Callable[..., Any]]] = {
    "Relu": ("F.relu(x)", RECTIFIER, 0.0, lambda x: np.maximum(x, x.dtype.type(0))),
    "Sigmoid": ("torch.sigmoid(x)", SIGMOID, 0.0, usual.sigmoid),
    "Tanh": ("torch.tanh(x)", ACTIVATION, -1.0, np.tanh),
    "Softsign": ("F.softsign(x)", RECTIFIER, -1.0, lambda x: x / (1 + np.abs(x))),
    "HardSwish": ("F.hardswish(x)", RECTIFIER, -0.375, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "Mish": ("F.mish(x)", RECTIFIER, -0.309, lambda x: x * np.tanh(np.logaddexp(0, x))),
}


for _name, (_template, _trait, _least, _numbers) in UNARY.items():
    op(
        _name, renames={"input": "X"}, traits=[_trait], least=_least, numbers=_numbers,
        dims=(lambda d: dim_max(d, 0)) if _name == "Relu" else None,
    )(unary(_template))  # fmt: skip


@op("Softplus", traits=[RECTIFIER], least=0.0, numbers=lambda x: np.logaddexp(0, x))
def softplus(b: Builder, X: Arg) -> ast.expr:
    return b.call("F.softplus", X, threshold=_threshold(X))


def _threshold(x: Arg) -> Any:
    """F.softplus is linear above its threshold; the default, 20, is too low for float64."""
    return OMIT if x.dtype is not None and x.dtype.itemsize <= 4 else 40


@op("Softplus", domain=DOMAIN, traits=[ELEMENTWISE], reference=own.Softplus)
def softplus_scaled(b: Builder, x: Arg, *, beta: float) -> ast.expr:
    """`softplus(beta * x) / beta`"""
    beta = shortest(beta, x.dtype)
    return b.call("F.softplus", x, beta=unless(int(beta) if beta == int(beta) else beta, 1), threshold=_threshold(x))


op("LogSigmoid", domain=DOMAIN, traits=[ELEMENTWISE], reference=own.LogSigmoid)(unary("F.logsigmoid(x)"))


@op("Glu", domain=DOMAIN, reference=own.Glu)
def glu(b: Builder, x: Arg, *, axis: int) -> ast.expr:
    return b.call("F.glu", x, dim=unless(shown_axis(axis, x.rank), -1))


@op("Elu", traits=[RECTIFIER], bound=lambda node, bounds: -node.attributes.get_float("alpha", 1.0))
def elu(b: Builder, X: Arg, *, alpha: float = 1.0) -> ast.expr:
    return b.call("F.elu", X, alpha=unless(shortest(alpha, X.dtype), 1.0))


@op("Celu", traits=[RECTIFIER])
def celu(b: Builder, X: Arg, *, alpha: float = 1.0) -> ast.expr:
    """`max(0, x) + min(0, alpha * (exp(x / alpha) - 1))`."""
    if alpha == 0:
        raise b.error("attribute 'alpha' is 0, by which the operator divides", "give it another value")
    return b.call("F.celu", X, alpha=unless(shortest(alpha, X.dtype), 1.0))


@op("Selu", traits=[RECTIFIER])
def selu(
    b: Builder, X: Arg, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> ast.expr:
    if abs(alpha - 1.6732632423543772) < 1e-6 and abs(gamma - 1.0507009873554805) < 1e-6:
        return b("F.selu(x)", x=X)
    return b("gamma * F.elu(x, alpha=alpha)", x=X, alpha=shortest(alpha, X.dtype), gamma=shortest(gamma, X.dtype))


@op("LeakyRelu", traits=[RECTIFIER], **rules("leaky_relu"))
def leaky_relu(b: Builder, X: Arg, *, alpha: float = 0.01) -> ast.expr:
    return b.call("F.leaky_relu", X, unless(shortest(alpha, X.dtype), 0.01))


@op("ThresholdedRelu", traits=[RECTIFIER])
def thresholded_relu(b: Builder, X: Arg, *, alpha: float = 1.0) -> ast.expr:
    return b("torch.where(x > alpha, x, 0.0)", x=X, alpha=shortest(alpha, X.dtype))


@op("HardSigmoid", traits=[RECTIFIER, SIGMOID], least=0.0, **rules("hard_sigmoid"))
def hard_sigmoid(b: Builder, X: Arg, *, alpha: float = 0.2, beta: float = 0.5) -> ast.expr:
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return b("F.hardsigmoid(x)", x=X)
    return b("(alpha * x + beta).clamp(0.0, 1.0)", x=X, alpha=shortest(alpha, X.dtype), beta=shortest(beta, X.dtype))


@op("Gelu", since=20, traits=[RECTIFIER], least=-0.17, **rules("gelu"))
def gelu(b: Builder, X: Arg, *, approximate: str = "none") -> ast.expr:
    return b.call("F.gelu", X, approximate=unless(approximate, "none"))


@op("Swish", since=24, traits=[RECTIFIER])
def swish(b: Builder, X: Arg, *, alpha: float = 1.0) -> ast.expr:
    if alpha == 1.0:
        return b("F.silu(x)", x=X)
    return b("x * torch.sigmoid(alpha * x)", x=X, alpha=shortest(alpha, X.dtype))


@op("PRelu", since=1)
def prelu_by_channel(b: Builder, X: Arg, slope: Arg) -> ast.expr:
    """Before opset 7, a vector has one value per channel."""
    if (call := _prelu_module(b, X, slope)) is not None:
        return call
    if slope.known_rank == 1 and slope.shape != (1,) and X.known_rank > 2:
        return b("torch.where(x < 0, slope.reshape(s) * x, x)", x=X, slope=slope, s=(-1, *[1] * (X.known_rank - 2)))
    return b("torch.where(x < 0, slope * x, x)", x=X, slope=slope)


@op("PRelu", since=7, traits=[RECTIFIER], weights="slope", **rules("prelu"))
def prelu(b: Builder, X: Arg, slope: Arg) -> ast.expr:
    """The slope broadcasts to X; with a single value, or one per channel, it is `nn.PReLU`."""
    if X.dtype in WIDER:  # nothing is below zero
        return X.expr
    call = _prelu_module(b, X, slope)
    return b("torch.where(x < 0, slope * x, x)", x=X, slope=slope) if call is None else call


def _prelu_module(b: Builder, X: Arg, slope: Arg) -> ast.expr | None:
    """Return the call of an `nn.PReLU`, if the slope is stored and has one value, or one per channel."""
    source = slope.source
    if source is None or X.shape is None or len(X.shape) < 2 or not X.is_float:
        return None
    ones = (1,) * (len(X.shape) - 2)
    shape = source.shape[1:] if len(source.shape) == len(X.shape) and source.shape[0] == 1 else source.shape
    if b.opset < 7 and len(shape) == 1:
        shape = (*shape, *ones)
    count = shape[0] if shape == (X.shape[1], *ones) else 1
    if source.nbytes != count * source.dtype.itemsize:
        return None
    flat = source if len(source.shape) == 1 else source.reshape((count,))
    module = b.module("prelu", b.call("nn.PReLU", unless(count, 1)), weight=flat)
    return None if module is None else b("m(x)", m=module, x=X)


def _softmax(function: str) -> tuple[Lowering, Lowering]:
    """Make the functions of a softmax: from opset 13 on, and before, when the tensor was flattened at the axis."""

    def lower(b: Builder, input: Arg, *, axis: int = -1) -> ast.expr:
        return b(f"F.{function}(x, dim=axis)", x=input, axis=shown_axis(axis, input.rank))

    def flattened(b: Builder, input: Arg, *, axis: int = 1) -> ast.expr:
        rank = input.known_rank
        axis = axis % rank if rank else 0
        if axis == rank - 1 or rank == 0 or all(d == 1 for d in (input.shape or ())[axis + 1 :]):
            return b(f"F.{function}(x, dim=axis)", x=input, axis=shown_axis(axis, rank))
        if axis == 0:
            return b(f"F.{function}(x.flatten(), dim=0).reshape(x.shape)", x=input)
        return b(f"F.{function}(x.flatten(axis), dim=-1).reshape(x.shape)", x=input, axis=axis)

    return lower, flattened


for _name, _function in (("Softmax", "softmax"), ("LogSoftmax", "log_softmax")):
    _new, _old = _softmax(_function)
    op(_name, since=13, traits=[SOFTMAX], least=0.0 if _name == "Softmax" else None, **rules(_function))(_new)
    op(_name, since=1, traits=[SOFTMAX])(_old)
