"""Layers with a state that is passed between calls: linear attention, Mamba2, causal convolutions."""

from __future__ import annotations

import ast
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import OMIT, shortest, unless
from onnxgen.errors import FIX_SHAPE, FOR_CPU, WRITER
from onnxgen.graph.operators import REFUSED, op
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.microsoft import drawn, infer
from onnxgen.microsoft.domain import MICROSOFT
from onnxgen.ops.cast import as_float32
from onnxgen.ops.linear_attention import linear_attention as plain_linear_attention
from onnxgen.ops.linear_attention import terms

BOUNDED = ("sigmoid", "kda")  # gate activations with a lower bound; they also normalise with another epsilon
EPSILONS = (1e-12, 1e-6)


@op(
    "LinearAttention", domain=MICROSOFT, infer=infer.linear_attention,
    axes="b l h; b l k; b l v; b n d e; b l g; b l u",
)  # fmt: skip
def linear_attention(
    b: Builder, query: Arg, key: Arg, value: Arg, past_state: Arg | None = None, decay: Arg | None = None,
    beta: Arg | None = None, *, q_num_heads: int, kv_num_heads: int, update_rule: str = "gated_delta",
    scale: float = 0.0, state_window: int = 0, chunk_size: int = 64,
) -> Any:  # fmt: skip
    """The standard's operator, with a state that onnxruntime's GPU kernels may keep for several steps."""
    return plain_linear_attention(
        b, query, key, value, past_state, decay, beta, q_num_heads=q_num_heads, kv_num_heads=kv_num_heads,
        update_rule=update_rule, scale=scale, state_window=state_window, chunk_size=chunk_size,
    )  # fmt: skip


@op(
    "GatedDeltaNet", domain=MICROSOFT, weights="a_log dt_bias", infer=infer.gated_delta_net,
    axes="t n d; t n d; t h e; ; t h; t h; b h e d; h",
    drawn={3: drawn.starts},
)  # fmt: skip
def gated_delta_net(
    b: Builder, query: Arg, key: Arg | None = None, value: Arg | None = None, cu_seqlens: Arg | None = None,
    decay: Arg | None = None, beta: Arg | None = None, initial_state: Arg | None = None, a_log: Arg | None = None,
    dt_bias: Arg | None = None, capture_count: Arg | None = None, state_update_active: Arg | None = None, *,
    update_rule: str = "gated_delta", gate_activation: str = "none", beta_activation: str = "none",
    qk_l2_norm: int = 0, gate_lower_bound: float = -5.0, scale: float = 0.0, state_update_capacity: int = 0,
    chunk_size: int = 64,
) -> Any:  # fmt: skip
    """Linear attention over packed sequences (Yang, Kautz, Hatamizadeh 2024)."""
    if (capture_count is None) == (state_update_capacity > 0):
        raise b.error("capture_count must be given exactly if state_update_capacity is positive", WRITER)
    if beta_activation not in ("none", "sigmoid"):
        raise b.error(f"attribute 'beta_activation' must be none or sigmoid, not {beta_activation!r}", WRITER)
    used, rate = terms(b, update_rule, decay, beta)
    faded: Any = used
    if used is not None and gate_activation != "none":
        has_keys = used.known_rank > query.known_rank - (key is not None)  # the decay has numbers per key element
        terms_of_heads = _head_terms(b, a_log, dt_bias, has_keys)
        faded = b.let(_activated(b, used, gate_activation, terms_of_heads, shortest(gate_lower_bound)), "decay")
    elif gate_activation == "none" and (a_log is not None or dt_bias is not None):
        raise b.error("a_log and dt_bias are given, but gate_activation is none", WRITER)
    learned = _rate(b, rate) if beta_activation == "sigmoid" else rate
    q, k, v = _operands(b, query, key, value, initial_state)
    options = {"state": unless(initial_state, None), "starts": unless(cu_seqlens, None), "decay": unless(faded, None)}
    options["beta"] = unless(learned, None)
    epsilon = EPSILONS[gate_activation in BOUNDED] if qk_l2_norm else OMIT
    attended = b.call("packed_delta_rule", q, k, v, **options, scale=shortest(scale) or OMIT, epsilon=epsilon)
    if not b.wants(2) or capture_count is None:
        return b.unpack(attended, 2)
    counts: Any = capture_count
    if state_update_active is not None:
        counts = b("n * (a != 0)", n=capture_count, a=state_update_active)
    both = b.let(attended, "read")
    return [
        *(b("y[i]", y=both, i=i) for i in (0, 1)),
        b.call("state_updates", k, v, counts, state_update_capacity, **options, epsilon=epsilon),
    ]


def _rate(b: Builder, rate: Arg | None) -> Any:
    return None if rate is None else b.let(b("torch.sigmoid(x)", x=as_float32(b, rate)), "beta")


def _head_terms(b: Builder, a_log: Arg | None, dt_bias: Arg | None, has_keys: bool) -> tuple[ast.expr, ast.expr]:
    """Return both in shapes that broadcast over decays per head or, with `has_keys`, per element of a head's keys."""
    if a_log is None or dt_bias is None:
        raise b.error("gate_activation needs the inputs a_log and dt_bias", WRITER)
    if not has_keys:
        return a_log.expr, dt_bias.expr
    bias = dt_bias.expr
    if dt_bias.known_rank == 1 and dt_bias.shape == a_log.shape:
        bias = b("x.unsqueeze(-1)", x=dt_bias)
    elif dt_bias.known_rank == 1:
        heads = (a_log.shape or (None,))[0]
        bias = b("x.unflatten(0, (h, -1))", x=dt_bias, h=heads if isinstance(heads, int) else b("a.shape[0]", a=a_log))
    return b("x.unsqueeze(-1)", x=a_log), bias


def _activated(
    b: Builder, decay: Arg, activation: str, terms_of_heads: tuple[ast.expr, ast.expr], low: float
) -> ast.expr:
    """Return the logarithm of the share of the state that is kept; with a lower bound as in Kimi Delta Attention."""
    operands = {"x": as_float32(b, decay), "a": terms_of_heads[0], "c": terms_of_heads[1]}
    if activation in ("softplus", "qwen"):
        return b("-a.exp() * F.softplus(x + c)", **operands)
    if activation not in BOUNDED or not low < 0:
        raise b.error(
            f"attribute 'gate_activation' {activation!r} is unknown, or gate_lower_bound {low} is not negative", WRITER
        )
    return b("n * torch.sigmoid(a.exp() * (x + c))", n=low, **operands)


def _operands(b: Builder, query: Arg, key: Arg | None, value: Arg | None, state: Arg | None) -> list[Any]:
    """Return q, k and v with an axis of heads. If `query` has them side by side, their sizes follow from the state."""
    if key is not None and value is not None:
        return [query, key, value]
    if key is not None or value is not None or state is None:
        raise b.error("the input key, value or initial_state is missing", WRITER)
    total, heads, values, keys = _packed_sizes(b, query, state)
    end = (total - heads * values) // 2
    if keys < 1 or end < keys or end % keys or total != 2 * end + heads * values:
        raise b.error(
            f"the sizes of query ({total}) and initial_state ({heads}, {values}, {keys}) contradict each other", WRITER
        )
    return [
        b.let(b("x[..., :n].unflatten(-1, (-1, s))", x=query, n=end, s=keys), "q"),
        b.let(b("x[..., m:n].unflatten(-1, (-1, s))", x=query, m=end, n=2 * end, s=keys), "k"),
        b.let(b("x[..., m:].unflatten(-1, (-1, s))", x=query, m=2 * end, s=values), "v"),
    ]


def _packed_sizes(b: Builder, query: Arg, state: Arg) -> list[int]:
    """Return the sizes of q, k and v together, and of the state: heads, values, keys."""
    dims = [*(query.shape or (None,))[-1:], *(state.shape or (None,))[1:]]
    sizes = [n for n in dims if isinstance(n, int)]
    if len(sizes) != len(dims) or len(sizes) != 4:
        raise b.error("the sizes of query and initial_state are unknown", FIX_SHAPE)
    return sizes


@op("Mamba2Verify", domain=MICROSOFT, infer=infer.mamba)
def mamba2_verify(
    b: Builder, projection: Arg, conv_state: Arg, ssm_state: Arg, conv_weight: Arg, conv_bias: Arg, dt_bias: Arg,
    A_negative: Arg, D: Arg, norm_weight: Arg, state_row: Arg, *, heads: int, n_groups: int, head_dim: int = 64,
    d_state: int = 128, epsilon: float = 1e-5, time_step_min: float = 0.001,
) -> Any:  # fmt: skip
    """A convolution, a recurrence and a gated norm; also returns the states after each of the last tokens."""
    sizes = zip((ssm_state.shape or ())[1:], (heads, d_state, head_dim))
    if n_groups < 1 or heads % n_groups or any(isinstance(d, int) and d != wanted for d, wanted in sizes):
        raise b.error(
            f"heads {heads}, n_groups {n_groups}, d_state {d_state} or head_dim {head_dim} do not fit ssm_state", WRITER
        )
    block = b.call(
        "mamba2_block", projection, conv_state, ssm_state, state_row, b("(w, c)", w=conv_weight, c=conv_bias),
        b("(t, a, d)", t=dt_bias, a=A_negative, d=D), norm_weight, groups=n_groups, epsilon=shortest(epsilon),
        least=shortest(time_step_min),
    )  # fmt: skip
    return b.unpack(block, 5)


@op(
    "VarlenCausalConvWithState", domain=MICROSOFT, weights="weight bias", infer=infer.packed_conv,
    axes="t c; c o k; ; c; b c s; b",
    flat={"kernel_delta": REFUSED, "previous_mask": REFUSED},
    drawn={2: drawn.starts, 5: drawn.below(-1, 4)},
)  # fmt: skip
def varlen_causal_conv_with_state(
    b: Builder, input: Arg, weight: Arg, cumulative_sequence_length: Arg, bias: Arg | None, initial_state: Arg,
    capture_count: Arg | None = None, kernel_delta: Arg | None = None, previous_mask: Arg | None = None, *,
    activation: str = "none", dilation: int = 1, state_update_capacity: int = 0, group_size: int = 1,
    delta_offset: int = 0,
) -> list[ast.expr | None]:  # fmt: skip
    """Convolve each channel by itself, in float32; also returns the inputs that the next call needs."""
    if kernel_delta is not None or previous_mask is not None or group_size != 1 or delta_offset:
        raise b.error("kernel_delta, previous_mask, group_size and delta_offset run on GPUs only", FOR_CPU)
    if activation not in ("none", "silu", "swish") or dilation < 1:
        raise b.error(
            f"activation {activation!r} must be none, silu or swish, and dilation {dilation} at least 1", WRITER
        )
    if (capture_count is None) == (state_update_capacity > 0):
        raise b.error("capture_count must be given exactly if state_update_capacity is positive", WRITER)
    x, w, past = (as_float32(b, v) for v in (input, weight, initial_state))
    offset = OMIT if bias is None else as_float32(b, bias)
    convolved = b.call(
        "packed_causal_conv", x, w, cumulative_sequence_length, past, offset, dilation=unless(dilation, 1)
    )
    if activation != "none":
        convolved = b("F.silu(y)", y=convolved)
    if input.dtype != ir.DataType.FLOAT:
        convolved = b("y.to(x.dtype)", y=convolved, x=input)
    state = b.call("packed_conv_state", input, cumulative_sequence_length, initial_state)
    if not b.wants(2) or capture_count is None:
        return [convolved, state]
    first = b.call("leading_inputs", input, cumulative_sequence_length, capture_count, state_update_capacity)
    return [convolved, state, first]
