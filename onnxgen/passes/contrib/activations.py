"""Activations, alone or fused behind a sum."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.errors import WRITER
from onnxgen.passes.contrib.writer import Refused, Writer, body

# the activations that onnxruntime fuses behind a layer, and their parameters in order
FUSED: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
}


def activated(g: Writer, x: ir.Value, activation: str, *parameters: float | None) -> ir.Value:
    """`x` through what a fused node calls its activation ("": none)."""
    if activation == "":
        return x
    if activation == "Clip" and len(parameters) == 2:
        return g("Clip", x, *(None if p is None else g.number(p, x) for p in parameters))
    names = FUSED.get(activation)
    if names is None or len(parameters) > len(names) and any(p is not None for p in parameters[len(names) :]):
        raise Refused(f"activation {activation!r} with these parameters is not one that onnxruntime fuses", WRITER)
    return g(activation, x, **dict(zip(names, parameters)))


@body("Gelu")
def gelu(g: Writer, X: ir.Value) -> ir.Value:
    return g("Gelu", X)


@body("BiasGelu")
def bias_gelu(g: Writer, A: ir.Value, B: ir.Value) -> ir.Value:
    return g("Gelu", g("Add", A, B))


@body("FastGelu")
def fast_gelu(g: Writer, X: ir.Value, bias: ir.Value | None = None) -> ir.Value:
    return g("Gelu", X if bias is None else g("Add", X, bias), approximate="tanh")


@body("QuickGelu")
def quick_gelu(g: Writer, X: ir.Value, *, alpha: float = 1.702) -> ir.Value:
    inside = X if alpha == 1.0 else g("Mul", X, g.number(alpha, X))
    return g("Mul", X, g("Sigmoid", inside))


def silu(g: Writer, x: ir.Value) -> ir.Value:
    return g("Mul", x, g("Sigmoid", x))


@body("BiasSplitGelu")
def bias_split_gelu(g: Writer, X: ir.Value, bias: ir.Value) -> ir.Value:
    """The first half of the channels, gated by GELU of the second."""
    halves = g.several(2, "Split", g("Add", X, bias), axis=-1, num_outputs=2)
    return g("Mul", halves[0], g("Gelu", halves[1]))


@body("BiasSoftmax")
def bias_softmax(g: Writer, data: ir.Value, bias: ir.Value, *, axis: int = 1, is_inner_broadcast: int) -> ir.Value:
    """Softmax over all axes from `axis` on; the bias broadcasts as in numpy, or along axes before it."""
    rank, bias_rank = g.rank(data), g.rank(bias)
    if axis % rank != rank - 1:
        raise Refused("the softmax is over several axes", "optimise the model without BiasSoftmaxFusion")
    if not is_inner_broadcast and bias_rank != rank:
        raise Refused("the bias broadcasts along outer axes", "optimise the model without BiasSoftmaxFusion")
    return g("Softmax", g("Add", data, bias), axis=-1)
