"""What is scaled by a gate: the norms, sums and activations around linear attention. Kernels compute in float32."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxgen.errors import FIX_SHAPE, FOR_CPU, INFER, WRITER
from onnxgen.graph.annotations import BLOCKED
from onnxgen.passes.contrib.writer import FLOAT, Refused, Writer, body
from onnxgen.shapes.info import info

Results = list[ir.Value | None]
LEAST = 1e-6  # the smallest number whose root EngramGate takes


def widened(g: Writer, x: ir.Value) -> ir.Value:
    """A value in float32."""
    return x if info(x).dtype == FLOAT else g("Cast", x, to=FLOAT.value)


def rounded(g: Writer, made: ir.Value, like: ir.Value) -> ir.Value:
    """A value of float32 in the type of an input."""
    dtype = info(like).dtype
    if dtype is None:
        raise Refused("the type of the input is unknown", INFER)
    return made if dtype == FLOAT else g("Cast", made, to=dtype.value)


def size_of(x: ir.Value, axis: int) -> int:
    """A dim of an input. Raises `Refused` where it is unknown."""
    shape = info(x).shape
    if shape is None or not -len(shape) <= axis < len(shape) or not isinstance(size := shape[axis], int):
        raise Refused("the sizes of the inputs are unknown", FIX_SHAPE)
    return size


def flag_of(x: ir.Value, what: str) -> bool:
    """What the file says of a truth value that decides which nodes there are. Raises `Refused` where it does not."""
    known = info(x).constant
    if known is None or known.size != 1:
        raise Refused(f"{what} is known only at run time", "make the flag a constant of the file")
    return bool(known.item())


def plain_rms_norm(g: Writer, x: ir.Value, size: int, epsilon: float) -> ir.Value:
    """RMSNormalization over the last axis in float32, by ones that nobody trains."""
    made = g("RMSNormalization", x, g.constant(np.ones(size, np.float32)), axis=-1, epsilon=epsilon)
    BLOCKED.set(g.written[-1], {1})
    return made


@body("GatedRMSNorm")
def gated_rms_norm(
    g: Writer, X: ir.Value, scale: ir.Value, gate: ir.Value, *, activation: str = "silu", epsilon: float = 1e-5
) -> ir.Value:
    """RMSNormalization of each group of as many elements as `scale` has, times an activated gate.

    The gate is the one of Mamba2 and of Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024).
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


@body("GatedAdd")
def gated_add(
    g: Writer, X: ir.Value, Y: ir.Value, gate: ir.Value, gate_weight: ir.Value | None = None
) -> ir.Value:  # fmt: skip
    """A sum whose second operand is scaled by a number for each row."""
    if gate_weight is not None:
        raise Refused("a projection of the gate runs on GPUs only", FOR_CPU)
    return g("Add", X, g("Mul", Y, gate))


@body("ScaledSiLU")
def scaled_silu(g: Writer, X: ir.Value, scale: ir.Value | None = None, *, alpha: float = 1.0) -> ir.Value:
    """SiLU of a scaled input; the product is rounded to the input's type before."""
    inner = X
    if scale is not None:
        inner = rounded(g, g("Mul", widened(g, X), widened(g, scale)), X)
    elif alpha != 1.0:
        inner = rounded(g, g("Mul", widened(g, X), g.constant(np.asarray(alpha, np.float32))), X)
    return g("Mul", inner, g("Sigmoid", inner))


@body("SwiGLU")
def swiglu(
    g: Writer, gate: ir.Value, up: ir.Value | None = None, *,
    activation_alpha: float = 1.0, activation_beta: float = 0.0, limit: float = 0.0, round_activation: int = 0,
) -> ir.Value:  # fmt: skip
    """One half times the other, which gates itself; both may be bounded. onnxruntime has kernels for GPUs only."""
    if up is None:
        halves = g.several(2, "Split", gate, axis=-1, num_outputs=2)
        gate, up = (g.like(half, gate) for half in halves)
    x, factor = widened(g, gate), widened(g, up)
    if limit > 0:
        bound = g.constant(np.asarray(limit, np.float32))
        x = g("Min", x, bound)
        factor = g("Clip", factor, g.constant(np.asarray(-limit, np.float32)), bound)
    inside = x if activation_alpha == 1.0 else g("Mul", x, g.constant(np.asarray(activation_alpha, np.float32)))
    made = g("Mul", x, g("Sigmoid", inside))
    if round_activation:
        made = widened(g, g.like(rounded(g, made, gate), gate))
    if activation_beta:
        factor = g("Add", factor, g.constant(np.asarray(activation_beta, np.float32)))
    return rounded(g, g("Mul", made, factor), gate)


@body("RouterGateUpProj")
def router_gate_up_proj(
    g: Writer, X: ir.Value, W: ir.Value, *,
    router_size: int, activation: str = "swiglu", activation_alpha: float = 1.0, activation_beta: float = 0.0,
    limit: float = 0.0,
) -> Results:  # fmt: skip
    """The scores of experts, and SwiGLU of a shared expert, by one product. onnxruntime has it for GPUs only."""
    inner = size_of(W, 1) - router_size
    if activation != "swiglu" or router_size < 0 or inner < 0 or inner % 2:
        raise Refused(
            f"activation {activation!r} must be swiglu, and the weight have an even number of columns", WRITER
        )
    parts = g.several(2, "Split", g("MatMul", X, W), g.ints(router_size, inner), axis=-1)
    gated = swiglu(
        g, g.like(parts[1], X), activation_alpha=activation_alpha, activation_beta=activation_beta, limit=limit
    )
    return [parts[0], gated]


@body("LinearAttentionGate")
def linear_attention_gate(
    g: Writer, a: ir.Value, dt_bias: ir.Value, decay_scale: ir.Value, b: ir.Value | None = None
) -> Results:
    """The decay (in log space) and the update rate of Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024)."""
    if g.wants(1) and b is None:
        raise Refused("the output of the update rate needs the input b, which is missing", WRITER)
    rate = g("Softplus", g("Add", widened(g, a), dt_bias))
    decay = rounded(g, g("Mul", decay_scale, rate), a)
    return [decay, None if b is None or not g.wants(1) else g("Sigmoid", b)]


@body("EngramGate")
def engram_gate(
    g: Writer, key: ir.Value, query: ir.Value, value: ir.Value, key_norm_scale: ir.Value,
    query_norm_scale: ir.Value, conv_norm_scale: ir.Value | None = None, *, epsilon: float = 1e-5,
) -> Results:  # fmt: skip
    """A value, gated by how well each stream's key fits its query; and that, normed, as it is rounded."""
    if g.wants(1) and conv_norm_scale is None:
        raise Refused("the output of normed values needs the input conv_norm_scale, which is missing", WRITER)
    size = size_of(key, -1)

    def normed(x: ir.Value, scale: ir.Value) -> ir.Value:
        return g("Mul", plain_rms_norm(g, widened(g, x), size, epsilon), widened(g, scale))

    product = g("Mul", normed(key, key_norm_scale), normed(query, query_norm_scale))
    root = g.constant(np.asarray(math.sqrt(size), np.float32))
    fit = g("Div", g("ReduceSum", product, g.ints(-1), keepdims=1), root)
    least = g.constant(np.asarray(LEAST, np.float32))
    strength = g("Mul", g("Sign", fit), g("Sqrt", g("Max", g("Abs", fit), least)))
    gated = g("Mul", g("Sigmoid", strength), g("Unsqueeze", widened(g, value), g.ints(2)))
    made = rounded(g, gated, value)
    if not g.wants(1) or conv_norm_scale is None:
        return [made]
    return [made, rounded(g, normed(g.like(made, key), conv_norm_scale), key)]
