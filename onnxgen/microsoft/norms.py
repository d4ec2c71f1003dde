"""Norms, alone or fused with sums, gates and activations, and BERT's embedding; gates;
hyper-connections.

Gates, and the norms, sums and activations around linear attention, are computed in float32, as
kernels do it. So are hyper-connections: features in several branches that are normalised, mixed and
summed (Zhu et al. 2024). Branches are an axis, [..., branches, size], or lie side by side, [...,
branches * size].
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from onnxgen.errors import FIX_SHAPE, FOR_CPU, WRITER
from onnxgen.graph.operators import REFUSED
from onnxgen.graph.traits import NORMALISES
from onnxgen.microsoft import drawn, infer
from onnxgen.microsoft.domain import body
from onnxgen.passes.contrib.writer import (
    FLOAT,
    INT32,
    Maybe,
    Refused,
    Results,
    Value,
    Writer,
    nchw,
    nhwc,
    plain_rms_norm,
    rounded,
    size_of,
    widened,
)
from onnxgen.shapes import ranges
from onnxgen.shapes.infer_math import same
from onnxgen.shapes.info import info

STATISTICS = "the mean of a fused norm that has none is used", "optimise the model for inference, not for training"


@body("SkipLayerNormalization", infer=infer.skip_norm, axes="b l h; b l h; h; h; h")
def skip_layer_normalization(
    g: Writer, input: Value, skip: Value, gamma: Value, beta: Maybe = None, bias: Maybe = None, *,
    epsilon: float = 1e-12,
) -> Results:  # fmt: skip
    """LayerNormalization of `input + skip + bias`, with its mean and inverse deviation. The sum is an output too."""
    total = _total(g, input, skip, bias)
    count = 3 if g.wants(1) or g.wants(2) else 1
    outputs = g.several(count, "LayerNormalization", total, gamma, beta, axis=-1, epsilon=epsilon)
    return [*outputs, *[None] * (3 - count), total]


@body("SkipSimplifiedLayerNormalization", infer=infer.skip_norm, axes="b l h; b l h; h; h")
def skip_simplified_layer_normalization(
    g: Writer, input: Value, skip: Value, gamma: Value, bias: Maybe = None, *, epsilon: float = 1e-12
) -> Results:
    if g.wants(1):
        raise Refused(*STATISTICS)  # onnxruntime computes none
    total = _total(g, input, skip, bias)
    normal = g.like(total, input) if g.wants(2) else total
    normed, *deviation = _rms(g, normal, gamma, g.wants(2), -1, epsilon, 1)
    return [normed, None, *(deviation or [None]), total]


def _total(g: Writer, input: Value, skip: Value, bias: Maybe) -> Value:
    total = g("Add", input, skip)
    return total if bias is None else g("Add", total, bias)


@body("LayerNormalization", infer=infer.layer_norm)
def layer_normalization(
    g: Writer, X: Value, Scale: Value, B: Maybe = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    return g.several(3, "LayerNormalization", X, Scale, B, axis=axis, epsilon=epsilon, stash_type=stash_type)


@body("SimplifiedLayerNormalization", domain="", traits=[NORMALISES], infer=infer.layer_norm)
@body("SimplifiedLayerNormalization", traits=[NORMALISES], infer=infer.layer_norm)
def simplified_layer_normalization(
    g: Writer, X: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Results:
    """RMSNormalization, and the inverse deviation if it is used."""
    return _rms(g, X, scale, g.wants(1), axis, epsilon, stash_type)


def _rms(
    g: Writer, X: Value, scale: Value, with_deviation: bool, axis: int, epsilon: float, stash_type: int
) -> Results:
    normed = g("RMSNormalization", X, scale, axis=axis, epsilon=epsilon, stash_type=stash_type)
    if not with_deviation:
        return [normed]
    rank = g.rank(X)
    wide = g("Cast", X, to=stash_type)
    square = g("ReduceMean", g("Mul", wide, wide), g.ints(*range(axis % rank, rank)))
    stash = g("Cast", g.constant(ir.tensor([epsilon], FLOAT).numpy()), to=stash_type)
    return [normed, g("Reciprocal", g("Sqrt", g("Add", square, stash)))]


@body("GroupNorm", infer=same)
def group_norm(
    g: Writer, X: Value, gamma: Value, beta: Value, *, activation: int, groups: int, channels_last: int = 1,
    epsilon: float = 1e-5,
) -> Value:  # fmt: skip
    """GroupNormalization of NHWC (or NCHW), optionally followed by SiLU."""
    inner = nchw(g, X, g.rank(X)) if channels_last else X
    weights = [w if info(w).dtype == info(X).dtype else g("CastLike", w, X) for w in (gamma, beta)]
    normed = g("GroupNormalization", inner, *weights, num_groups=groups, epsilon=epsilon)
    normed = nhwc(g, normed, g.rank(X)) if channels_last else normed
    return g("Mul", normed, g("Sigmoid", normed)) if activation else normed


@body("SkipGroupNorm", infer=infer.pairs)
def skip_group_norm(
    g: Writer, X: Value, gamma: Value, beta: Value, skip: Value, bias: Maybe = None, *,
    activation: int, groups: int, channels_last: int = 1, epsilon: float = 1e-5,
) -> Results:  # fmt: skip
    """GroupNorm of `X + skip + bias`. `skip` may be [N, C], and `bias` is [C]."""
    rank, skip_rank = g.rank(X), g.rank(skip)
    inner = list(range(1, rank - 1)) if channels_last else list(range(2, rank))
    if skip_rank == 2 and rank > 2:
        skip = g("Unsqueeze", skip, g.ints(*inner))
    if bias is not None and not channels_last:
        bias = g("Unsqueeze", bias, g.ints(*range(1, rank - 1)))
    total = g("Add", X, skip)
    total = total if bias is None else g("Add", total, bias)
    normed = group_norm(
        g, g.like(total, X), gamma, beta, activation=activation, groups=groups, channels_last=channels_last,
        epsilon=epsilon,
    )  # fmt: skip
    return [normed, total]


@body(
    "EmbedLayerNormalization", infer=infer.embed,
    axes="b l; b l; v h; p h; s h; h; h", ranges=ranges.embed_layer_norm,
    drawn={0: drawn.rows(2), 1: drawn.rows(4), 8: drawn.rows(3)},
)  # fmt: skip
def embed_layer_normalization(
    g: Writer, input_ids: Value, segment_ids: Maybe, word_embedding: Value, position_embedding: Value,
    segment_embedding: Maybe, gamma: Value, beta: Value, mask: Maybe = None, position_ids: Maybe = None, *,
    epsilon: float = 1e-12, mask_index_type: int = 1,
) -> Results:  # fmt: skip
    """The normalised sum of two or three embeddings; the number of tokens that the mask keeps in each row; the sum."""
    if position_ids is None:
        length = g("Shape", input_ids, start=1, end=2)
        positions = g("Slice", position_embedding, g.ints(0), length, g.ints(0))
    else:
        positions = g("Gather", position_embedding, position_ids)
    total = g("Add", g("Gather", word_embedding, input_ids), positions)
    if segment_embedding is not None and segment_ids is not None:
        total = g("Add", total, g("Gather", segment_embedding, segment_ids))
    normed = g("LayerNormalization", total, gamma, beta, axis=-1, epsilon=epsilon)
    return [normed, _kept(g, input_ids, mask), total]


def _kept(g: Writer, input_ids: Value, mask: Maybe) -> Maybe:
    if not g.wants(1):
        return None
    if mask is not None:  # onnxruntime counts the elements that are exactly 1
        ones = g("Cast", g("Equal", mask, g.number(1, mask)), to=INT32)
        return g("ReduceSum", ones, g.ints(1), keepdims=0)
    zeros = ir.tensor([0], INT32)
    return g("ConstantOfShape", g("Shape", input_ids, start=0, end=1), value=zeros)


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
    normed = g("RMSNormalization", x, weight, axis=-1, epsilon=epsilon)
    if last != size:
        normed = g("Reshape", normed, g.ints(*[0] * (rank - 1), last if isinstance(last, int) else -1))
    gated = g("Sigmoid", wide)
    return rounded(g, g("Mul", normed, gated if activation == "sigmoid" else g("Mul", wide, gated)), X)


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


@body("SwiGLU", infer=infer.swiglu)
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
    activated = g("Mul", x, g("Sigmoid", inside))
    if round_activation:
        activated = widened(g, g.like(rounded(g, activated, gate), gate))
    if activation_beta:
        factor = g("Add", factor, g.float32(activation_beta))
    return rounded(g, g("Mul", activated, factor), gate)


@body("RouterGateUpProj", infer=infer.router)
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


@body("LinearAttentionGate", infer=infer.pairs)
def linear_attention_gate(g: Writer, a: Value, dt_bias: Value, decay_scale: Value, b: Maybe = None) -> Results:
    """The decay (in log space) and the update rate of Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024)."""
    if g.wants(1) and b is None:
        raise Refused("the output of the update rate needs the input b, which is missing", WRITER)
    rate = g("Softplus", g("Add", widened(g, a), dt_bias))
    decay = rounded(g, g("Mul", decay_scale, rate), a)
    return [decay, None if b is None or not g.wants(1) else g("Sigmoid", b)]


@body("EngramGate", infer=infer.pairs)
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
    result = rounded(g, gated, value)
    if not g.wants(1) or conv_norm_scale is None:
        return [result]
    return [result, rounded(g, normed(g.like(result, key), conv_norm_scale), key)]


def _split(g: Writer, x: Value, branches: int) -> tuple[Value, int]:
    """Return branches in float32 on an axis of their own, and their rank. `branches`: the attribute `num_branches`."""
    rank = g.rank(x)
    if branches < 0 or rank < 1 + (not branches):
        what = f"an input of rank {rank} has no axis of branches, or num_branches {branches} is negative"
        raise Refused(what, WRITER)
    wide = widened(g, x)
    if not branches:
        return wide, rank
    size = size_of(x, -1)
    if size < 1 or size % branches:
        raise Refused(f"{size} elements do not divide into {branches} branches", WRITER)
    return g("Reshape", wide, g.ints(*[0] * (rank - 1), branches, size // branches)), rank + 1


def _joined(g: Writer, features: Value, x: Value, branches: int) -> Value:
    """Reshape and round branches to the form of the input `x`."""
    if branches:
        features = g("Reshape", features, g.ints(*[0] * (g.rank(x) - 1), size_of(x, -1)))
    return rounded(g, features, x)


def _gate(g: Writer, gate: Value, rank: int, branches: int, size: int, is_flat: bool) -> Value:
    """Return a gate in float32 that broadcasts over the branches: one number for a branch, or for an element."""
    gate_rank, wide = g.rank(gate), widened(g, gate)
    if gate_rank == rank:
        return wide
    last = size_of(gate, -1)
    if gate_rank == rank - 1 and last == branches:
        return g("Unsqueeze", wide, g.ints(-1))
    if gate_rank == rank - 1 and is_flat and last == branches * size:
        return g("Reshape", wide, g.ints(*[0] * (gate_rank - 1), branches, size))
    raise Refused("the gate fits neither the branches nor their elements", WRITER)


def _sizes(x: Value, branches: int) -> tuple[int, int]:
    """Return the number of branches, and the number of elements of each."""
    last = size_of(x, -1)
    return (branches, last // branches) if branches else (size_of(x, -2), last)


@body("BranchwiseRMSNorm", infer=same)
def branchwise_rms_norm(
    g: Writer, X: Value, scale: Maybe = None, *, num_branches: int = 0, epsilon: float = 1e-5
) -> Value:
    """RMSNormalization of each branch. The branches share a scale, or each has its own."""
    x, _ = _split(g, X, num_branches)
    branches, size = _sizes(X, num_branches)
    shape = None if scale is None else info(scale).shape
    if scale is not None and shape == (size,):
        normed = g("RMSNormalization", x, widened(g, scale), axis=-1, epsilon=epsilon)
        return _joined(g, normed, X, num_branches)
    normed = plain_rms_norm(g, x, size, epsilon)
    if scale is not None:
        wide = widened(g, scale)
        if shape == (branches * size,):
            wide = g("Reshape", wide, g.ints(branches, size))
        elif shape != (branches, size):
            raise Refused("the scale fits neither one branch nor all of them", FIX_SHAPE)
        normed = g("Mul", normed, wide)
    return _joined(g, normed, X, num_branches)


@body("HyperConnectionPreMix", infer=infer.pre_mix)
def hyper_connection_pre_mix(
    g: Writer, streams: Value, pre_mix: Value, *, num_branches: int = 0, reduction_scale: float = 1.0
) -> Value:
    """The sum of all branches, each gated."""
    x, rank = _split(g, streams, num_branches)
    branches, size = _sizes(streams, num_branches)
    gate = _gate(g, pre_mix, rank, branches, size, bool(num_branches))
    mixed = g("ReduceSum", g("Mul", x, gate), g.ints(-2), keepdims=0)
    if reduction_scale != 1.0:
        mixed = g("Mul", mixed, g.float32(reduction_scale))
    return rounded(g, mixed, streams)


@body("HyperConnectionPostMix", infer=same)
def hyper_connection_post_mix(
    g: Writer, streams: Value, block_output: Value, post_mix: Value, stream_mix: Maybe = None, *, num_branches: int = 0
) -> Value:
    """Branches, perhaps mixed with each other, plus the output of a block, gated for each branch."""
    x, rank = _split(g, streams, num_branches)
    branches, size = _sizes(streams, num_branches)
    gate = _gate(g, post_mix, rank, branches, size, False)
    if stream_mix is not None:
        turned = [*range(rank - 2), rank - 1, rank - 2]
        x = g("MatMul", g("Transpose", widened(g, stream_mix), perm=turned), x)
    added = g("Mul", gate, g("Unsqueeze", widened(g, block_output), g.ints(-2)))
    return _joined(g, g("Add", x, added), streams, num_branches)


@body("HyperConnectionLowRankMix")
def hyper_connection_low_rank_mix(
    g: Writer, streams: Value, norm_scale: Value, down_weight: Value, up_weight: Value, inject_weight: Value,
    prev_block_output: Maybe = None, prev_post_gate: Maybe = None, *,
    num_branches: int, gate_mul: float = 1.0, gate_div: float = 1.0, silu_alpha: float = 1.0,
    reduction_scale: float = 1.0, epsilon: float = 1e-5,
) -> list[Value]:  # fmt: skip
    """The gated sum of branches that a block takes, and the gates of its output. A low-rank network computes them.

    onnxruntime has a GPU kernel only. As its documentation says, each step is rounded to the type of the inputs.
    """

    def step(op: str, *inputs: Value) -> Value:
        result = rounded(g, g(op, *(widened(g, x) for x in inputs)), streams)
        return g.like(result, streams)

    def scaled(x: Value, factor: float) -> Value:
        return x if factor == 1.0 else step("Mul", x, g.float32(factor))

    total = streams
    if prev_block_output is not None and prev_post_gate is not None:
        total = hyper_connection_post_mix(g, streams, prev_block_output, prev_post_gate, num_branches=num_branches)
        g.like(total, streams)
    normed = branchwise_rms_norm(g, total, norm_scale, num_branches=num_branches, epsilon=epsilon)
    g.like(normed, streams)
    inner = scaled(step("MatMul", normed, down_weight), silu_alpha)
    hidden = step("Mul", inner, step("Sigmoid", inner))
    gates = step("Sigmoid", step("MatMul", hidden, up_weight))
    mixed = hyper_connection_pre_mix(g, normed, gates, num_branches=num_branches, reduction_scale=reduction_scale)
    inject = step("MatMul", normed, inject_weight)
    if gate_div != 1.0:
        inject = step("Div", inject, g.float32(gate_div))
    return [mixed, scaled(step("Sigmoid", inject), gate_mul), total]
