"""Gates, and the norms, sums and activations around linear attention. Kernels compute in float32."""

from __future__ import annotations

import math

from onnxgen.errors import FOR_CPU, WRITER
from onnxgen.graph.gradients import REFUSED
from onnxgen.passes.contrib.writer import (
    Maybe,
    Refused,
    Results,
    Value,
    Writer,
    body,
    plain_rms_norm,
    rounded,
    size_of,
    widened,
)
from onnxgen.shapes import infer_microsoft
from onnxgen.shapes.infer_elementwise import same
from onnxgen.shapes.info import info

MIN_FIT = 1e-6  # EngramGate takes no root of a smaller number


@body("GatedRMSNorm", infer=same)
def gated_rms_norm(
    g: Writer, X: Value, scale: Value, gate: Value, *, activation: str = "silu", epsilon: float = 1e-5
) -> Value:
    """RMSNormalization of each group of as many elements as `scale` has, times an activated gate.

    Mamba2 and Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024) have this gate.
    """
    if activation not in ("silu", "swish", "sigmoid"):
        raise Refused(f"attribute 'activation' must be silu, swish or sigmoid, not {activation!r}", WRITER)
    rank, size, last = g.rank(X), size_of(scale, 0), (info(X).shape or (None,))[-1]
    if size < 1 or isinstance(last, int) and last % size:
        raise Refused(f"scale has {size} elements, which do not divide input rows of {last}", WRITER)
    x, weight, wide = (widened(g, v) for v in (X, scale, gate))
    if last != size:
        groups = last // size if isinstance(last, int) else -1
        x = g("Reshape", x, g.ints(*[0] * (rank - 1), groups, size))
    made = g("RMSNormalization", x, weight, axis=-1, epsilon=epsilon)
    if last != size:
        made = g("Reshape", made, g.ints(*[0] * (rank - 1), last if isinstance(last, int) else -1))
    gated = g("Sigmoid", wide)
    return rounded(g, g("Mul", made, gated if activation == "sigmoid" else g("Mul", wide, gated)), X)


@body("GatedAdd", infer=same, flat={"gate_weight": REFUSED})
def gated_add(g: Writer, X: Value, Y: Value, gate: Value, gate_weight: Maybe = None) -> Value:
    """X plus Y, scaled by a number for each row."""
    if gate_weight is not None:
        raise Refused("a projection of the gate runs on GPUs only", FOR_CPU)
    return g("Add", X, g("Mul", Y, gate))


@body("ScaledSiLU", infer=same)
def scaled_silu(g: Writer, X: Value, scale: Maybe = None, *, alpha: float = 1.0) -> Value:
    """SiLU of a scaled input. The product is rounded to the input's type first."""
    inner = X
    if scale is not None:
        inner = rounded(g, g("Mul", widened(g, X), widened(g, scale)), X)
    elif alpha != 1.0:
        inner = rounded(g, g("Mul", widened(g, X), g.float32(alpha)), X)
    return g("Mul", inner, g("Sigmoid", inner))


@body("SwiGLU", infer=infer_microsoft.swiglu)
def swiglu(
    g: Writer, gate: Value, up: Maybe = None, *, activation_alpha: float = 1.0, activation_beta: float = 0.0,
    limit: float = 0.0, round_activation: int = 0,
) -> Value:  # fmt: skip
    """SwiGLU: SiLU of one half, times the other half. Both may be clipped. onnxruntime has GPU kernels only."""
    if up is None:
        halves = g.several(2, "Split", gate, axis=-1, num_outputs=2)
        gate, up = (g.like(half, gate) for half in halves)
    x, factor = widened(g, gate), widened(g, up)
    if limit > 0:
        bound = g.float32(limit)
        x = g("Min", x, bound)
        factor = g("Clip", factor, g.float32(-limit), bound)
    inside = x if activation_alpha == 1.0 else g("Mul", x, g.float32(activation_alpha))
    made = g("Mul", x, g("Sigmoid", inside))
    if round_activation:
        made = widened(g, g.like(rounded(g, made, gate), gate))
    if activation_beta:
        factor = g("Add", factor, g.float32(activation_beta))
    return rounded(g, g("Mul", made, factor), gate)


@body("RouterGateUpProj", infer=infer_microsoft.router)
def router_gate_up_proj(
    g: Writer, X: Value, W: Value, *, router_size: int, activation: str = "swiglu", activation_alpha: float = 1.0,
    activation_beta: float = 0.0, limit: float = 0.0,
) -> Results:  # fmt: skip
    """The scores of experts, and SwiGLU of a shared expert, from one product. onnxruntime has a GPU kernel only."""
    inner = size_of(W, 1) - router_size
    if activation != "swiglu" or router_size < 0 or inner < 0 or inner % 2:
        what = f"activation {activation!r} must be swiglu, and the weight have an even number of columns"
        raise Refused(what, WRITER)
    parts = g.several(2, "Split", g("MatMul", X, W), g.ints(router_size, inner), axis=-1)
    gated = swiglu(
        g, g.like(parts[1], X), activation_alpha=activation_alpha, activation_beta=activation_beta, limit=limit
    )
    return [parts[0], gated]


@body("LinearAttentionGate", infer=infer_microsoft.pairs)
def linear_attention_gate(g: Writer, a: Value, dt_bias: Value, decay_scale: Value, b: Maybe = None) -> Results:
    """The decay (in log space) and the update rate of Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024)."""
    if g.wants(1) and b is None:
        raise Refused("the output of the update rate needs the input b, which is missing", WRITER)
    rate = g("Softplus", g("Add", widened(g, a), dt_bias))
    decay = rounded(g, g("Mul", decay_scale, rate), a)
    return [decay, None if b is None or not g.wants(1) else g("Sigmoid", b)]


@body("EngramGate", infer=infer_microsoft.pairs)
def engram_gate(
    g: Writer, key: Value, query: Value, value: Value, key_norm_scale: Value, query_norm_scale: Value,
    conv_norm_scale: Maybe = None, *, epsilon: float = 1e-5,
) -> Results:  # fmt: skip
    """A value, gated by how well the key fits the query; and that value, normalised after rounding."""
    if g.wants(1) and conv_norm_scale is None:
        raise Refused("the output of normed values needs the input conv_norm_scale, which is missing", WRITER)
    size = size_of(key, -1)

    def normed(x: Value, scale: Value) -> Value:
        return g("Mul", plain_rms_norm(g, widened(g, x), size, epsilon), widened(g, scale))

    product = g("Mul", normed(key, key_norm_scale), normed(query, query_norm_scale))
    fit = g("Div", g("ReduceSum", product, g.ints(-1), keepdims=1), g.float32(math.sqrt(size)))
    strength = g("Mul", g("Sign", fit), g("Sqrt", g("Max", g("Abs", fit), g.float32(MIN_FIT))))
    gated = g("Mul", g("Sigmoid", strength), g("Unsqueeze", widened(g, value), g.ints(2)))
    made = rounded(g, gated, value)
    if not g.wants(1) or conv_norm_scale is None:
        return [made]
    return [made, rounded(g, normed(g.like(made, key), conv_norm_scale), key)]
