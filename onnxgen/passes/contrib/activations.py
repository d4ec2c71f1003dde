"""Activations, alone or fused with a preceding sum."""

from __future__ import annotations

from onnxgen.errors import WRITER
from onnxgen.graph.traits import ACTIVATION
from onnxgen.passes.contrib.writer import Maybe, Refused, Value, Writer, body
from onnxgen.shapes import infer_microsoft
from onnxgen.shapes.infer_elementwise import same

# the activations that onnxruntime fuses into a layer, with their parameters in order
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


def activated(g: Writer, x: Value, activation: str, *parameters: float | None) -> Value:
    """Apply the activation that a fused node names ("" for none)."""
    if activation == "":
        return x
    if activation == "Clip" and len(parameters) == 2:
        return g("Clip", x, *(None if p is None else g.number(p, x) for p in parameters))
    names = FUSED.get(activation)
    if names is None or len(parameters) > len(names) and any(p is not None for p in parameters[len(names) :]):
        raise Refused(f"activation {activation!r} with these parameters is not one that onnxruntime fuses", WRITER)
    return g(activation, x, **dict(zip(names, parameters)))


@body("Gelu", infer=same)
def gelu(g: Writer, X: Value) -> Value:
    return g("Gelu", X)


@body("BiasGelu", infer=same)
def bias_gelu(g: Writer, A: Value, B: Value) -> Value:
    return g("Gelu", g("Add", A, B))


@body("FastGelu", infer=same)
def fast_gelu(g: Writer, X: Value, bias: Maybe = None) -> Value:
    return g("Gelu", X if bias is None else g("Add", X, bias), approximate="tanh")


@body("QuickGelu", traits=[ACTIVATION], infer=same)
def quick_gelu(g: Writer, X: Value, *, alpha: float = 1.702) -> Value:
    inside = X if alpha == 1.0 else g("Mul", X, g.number(alpha, X))
    return g("Mul", X, g("Sigmoid", inside))


def silu(g: Writer, x: Value) -> Value:
    return g("Mul", x, g("Sigmoid", x))


@body("BiasSplitGelu", infer=infer_microsoft.split_gelu)
def bias_split_gelu(g: Writer, X: Value, bias: Value) -> Value:
    """The first half of the channels, times the GELU of the second half."""
    halves = g.several(2, "Split", g("Add", X, bias), axis=-1, num_outputs=2)
    return g("Mul", halves[0], g("Gelu", halves[1]))


@body("BiasSoftmax", infer=same)
def bias_softmax(g: Writer, data: Value, bias: Value, *, axis: int = 1, is_inner_broadcast: int) -> Value:
    """Softmax over all axes from `axis` on. The bias broadcasts as in numpy, or along the axes before `axis`."""
    rank, bias_rank = g.rank(data), g.rank(bias)
    if axis % rank != rank - 1:
        raise Refused("the softmax is over several axes", "optimise the model without BiasSoftmaxFusion")
    if not is_inner_broadcast and bias_rank != rank:
        raise Refused("the bias broadcasts along outer axes", "optimise the model without BiasSoftmaxFusion")
    return g("Softmax", g("Add", data, bias), axis=-1)
