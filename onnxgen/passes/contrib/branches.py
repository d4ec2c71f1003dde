"""Hyper-connections: features in several branches that are normalised, mixed and summed (Zhu et al. 2024).

Branches are an axis, [..., branches, size], or lie side by side, [..., branches * size]. Kernels compute in float32.
"""

from __future__ import annotations

from onnxgen.errors import FIX_SHAPE, WRITER
from onnxgen.passes.contrib.writer import Maybe, Refused, Value, Writer, body, plain_rms_norm, rounded, size_of, widened
from onnxgen.shapes import infer_microsoft
from onnxgen.shapes.infer_elementwise import same
from onnxgen.shapes.info import info


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


def _joined(g: Writer, made: Value, x: Value, branches: int) -> Value:
    """Reshape and round branches to the form of the input `x`."""
    if branches:
        made = g("Reshape", made, g.ints(*[0] * (g.rank(x) - 1), size_of(x, -1)))
    return rounded(g, made, x)


def _gate(g: Writer, gate: Value, rank: int, branches: int, size: int, is_flat: bool) -> Value:
    """Return a gate in float32 that broadcasts over the branches: one number for a branch, or for an element."""
    given, wide = g.rank(gate), widened(g, gate)
    if given == rank:
        return wide
    last = size_of(gate, -1)
    if given == rank - 1 and last == branches:
        return g("Unsqueeze", wide, g.ints(-1))
    if given == rank - 1 and is_flat and last == branches * size:
        return g("Reshape", wide, g.ints(*[0] * (given - 1), branches, size))
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
    given = None if scale is None else info(scale).shape
    if scale is not None and given == (size,):
        made = g("RMSNormalization", x, widened(g, scale), axis=-1, epsilon=epsilon)
        return _joined(g, made, X, num_branches)
    made = plain_rms_norm(g, x, size, epsilon)
    if scale is not None:
        wide = widened(g, scale)
        if given == (branches * size,):
            wide = g("Reshape", wide, g.ints(branches, size))
        elif given != (branches, size):
            raise Refused("the scale fits neither one branch nor all of them", FIX_SHAPE)
        made = g("Mul", made, wide)
    return _joined(g, made, X, num_branches)


@body("HyperConnectionPreMix", infer=infer_microsoft.pre_mix)
def hyper_connection_pre_mix(
    g: Writer, streams: Value, pre_mix: Value, *, num_branches: int = 0, reduction_scale: float = 1.0
) -> Value:
    """The sum of all branches, each gated."""
    x, rank = _split(g, streams, num_branches)
    branches, size = _sizes(streams, num_branches)
    gate = _gate(g, pre_mix, rank, branches, size, bool(num_branches))
    made = g("ReduceSum", g("Mul", x, gate), g.ints(-2), keepdims=0)
    if reduction_scale != 1.0:
        made = g("Mul", made, g.float32(reduction_scale))
    return rounded(g, made, streams)


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
        made = rounded(g, g(op, *(widened(g, x) for x in inputs)), streams)
        return g.like(made, streams)

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
    given = hyper_connection_pre_mix(g, normed, gates, num_branches=num_branches, reduction_scale=reduction_scale)
    inject = step("MatMul", normed, inject_weight)
    if gate_div != 1.0:
        inject = step("Div", inject, g.float32(gate_div))
    return [given, scaled(step("Sigmoid", inject), gate_mul), total]
