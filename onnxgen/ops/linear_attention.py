"""Linear attention of onnxruntime, whose state is handed on from call to call."""

from __future__ import annotations

import ast
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import OMIT, shortest
from onnxgen.errors import FIX_SHAPE, FOR_CPU, WRITER
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.microsoft import MICROSOFT

# which update rules have a decay, and which one takes the state's own value from a new one
DECAYING, LEARNING = ("gated", "gated_delta"), ("delta", "gated_delta")
BOUNDED = ("sigmoid", "kda")  # activations of a decay that has a bound; vectors are normalised otherwise with them
RULES = {"linear", *DECAYING, *LEARNING}


def terms(b: Builder, update_rule: str, decay: Arg | None, beta: Arg | None) -> tuple[Arg | None, Arg | None]:
    """The decay and the update rate that a rule uses. Raises a problem where one is missing."""
    if update_rule not in RULES:
        raise b.error(f"attribute 'update_rule' must be one of {', '.join(sorted(RULES))}, not {update_rule!r}", WRITER)
    used = decay if update_rule in DECAYING else None, beta if update_rule in LEARNING else None
    if (used[0] is None) == (update_rule in DECAYING) or (used[1] is None) == (update_rule in LEARNING):
        raise b.error(f"update_rule {update_rule} needs an input that is missing (decay or beta)", WRITER)
    return used


def _given(value: Any) -> Any:
    return OMIT if value is None else value


@op("LinearAttention", domain=MICROSOFT)
def linear_attention(
    b: Builder, query: Arg, key: Arg, value: Arg, past_state: Arg | None = None, decay: Arg | None = None,
    beta: Arg | None = None, *, q_num_heads: int, kv_num_heads: int, update_rule: str = "gated_delta",
    scale: float = 0.0, state_window: int = 0, chunk_size: int = 64,
) -> Any:  # fmt: skip
    """Of heads that lie side by side; `chunk_size` says how a kernel may go about it, not what it computes."""
    if state_window:
        raise b.error("state_window runs on GPUs only", FOR_CPU)
    few, many = sorted((q_num_heads, kv_num_heads))
    if few < 1 or many % few:
        raise b.error(
            f"one of q_num_heads {q_num_heads} and kv_num_heads {kv_num_heads} must be a multiple of the other", WRITER
        )
    used = terms(b, update_rule, decay, beta)
    made = b.call(
        "linear_attention", query, key, value, heads=q_num_heads, kv_heads=kv_num_heads, state=_given(past_state),
        decay=_given(used[0]), beta=_given(used[1]), scale=shortest(scale) or OMIT,
    )  # fmt: skip
    return b.unpack(made, 2)


@op("GatedDeltaNet", domain=MICROSOFT, weights="a_log dt_bias")
def gated_delta_net(
    b: Builder, query: Arg, key: Arg | None = None, value: Arg | None = None, cu_seqlens: Arg | None = None,
    decay: Arg | None = None, beta: Arg | None = None, initial_state: Arg | None = None, a_log: Arg | None = None,
    dt_bias: Arg | None = None, capture_count: Arg | None = None, state_update_active: Arg | None = None, *,
    update_rule: str = "gated_delta", gate_activation: str = "none", beta_activation: str = "none",
    qk_l2_norm: int = 0, gate_lower_bound: float = -5.0, scale: float = 0.0, state_update_capacity: int = 0,
    chunk_size: int = 64,
) -> Any:  # fmt: skip
    """Linear attention of tokens of several sequences, one behind the other (Yang, Kautz, Hatamizadeh 2024)."""
    if (capture_count is None) == (state_update_capacity > 0):
        raise b.error("capture_count must be given exactly if state_update_capacity is positive", WRITER)
    if beta_activation not in ("none", "sigmoid"):
        raise b.error(f"attribute 'beta_activation' must be none or sigmoid, not {beta_activation!r}", WRITER)
    used, rate = terms(b, update_rule, decay, beta)
    faded: Any = used
    if used is not None and gate_activation != "none":
        heads_axis = query.known_rank - (key is not None)  # of what has a number for each head
        wide = used.known_rank > heads_axis
        of_heads = _of_heads(b, a_log, dt_bias, wide)
        faded = b.let(_activated(b, used, gate_activation, of_heads, shortest(gate_lower_bound)), "decay")
    elif gate_activation == "none" and (a_log is not None or dt_bias is not None):
        raise b.error("a_log and dt_bias are given, but gate_activation is none", WRITER)
    learned: Any = rate
    if rate is not None and beta_activation == "sigmoid":
        learned = b.let(b("torch.sigmoid(x)", x=_wide(b, rate)), "beta")
    q, k, v = _operands(b, query, key, value, initial_state)
    given = {"state": _given(initial_state), "starts": _given(cu_seqlens), "decay": _given(faded)}
    given |= {"beta": _given(learned)}
    epsilon = (1e-6 if gate_activation in BOUNDED else 1e-12) if qk_l2_norm else OMIT
    made = b.call("packed_delta_rule", q, k, v, **given, scale=shortest(scale) or OMIT, epsilon=epsilon)
    if not b.wants(2) or capture_count is None:
        return b.unpack(made, 2)
    counts: Any = capture_count
    if state_update_active is not None:
        counts = b("n * (a != 0)", n=capture_count, a=state_update_active)
    both = b.let(made, "read")
    return [
        *(b("y[i]", y=both, i=i) for i in (0, 1)),
        b.call("state_updates", k, v, counts, state_update_capacity, **given, epsilon=epsilon),
    ]


def _wide(b: Builder, x: Arg) -> Any:
    return x if x.dtype == ir.DataType.FLOAT else b("x.float()", x=x)


def _of_heads(b: Builder, a_log: Arg | None, dt_bias: Arg | None, wide: bool) -> tuple[ast.expr, ast.expr]:
    """Both as they broadcast over decays of each head, or `wide`: of each element of its keys."""
    if a_log is None or dt_bias is None:
        raise b.error("gate_activation needs the inputs a_log and dt_bias", WRITER)
    if not wide:
        return a_log.expr, dt_bias.expr
    bias = dt_bias.expr
    if dt_bias.known_rank == 1 and dt_bias.shape == a_log.shape:
        bias = b("x.unsqueeze(-1)", x=dt_bias)
    elif dt_bias.known_rank == 1:
        heads = (a_log.shape or (None,))[0]
        bias = b("x.unflatten(0, (h, -1))", x=dt_bias, h=heads if isinstance(heads, int) else b("a.shape[0]", a=a_log))
    return b("x.unsqueeze(-1)", x=a_log), bias


def _activated(
    b: Builder, decay: Arg, activation: str, of_heads: tuple[ast.expr, ast.expr], low: float
) -> ast.expr:  # fmt: skip
    """The logarithm of what is kept of the state: any below 0, or one above a bound (Kimi Delta Attention)."""
    given = {"x": _wide(b, decay), "a": of_heads[0], "c": of_heads[1]}
    if activation in ("softplus", "qwen"):
        return b("-a.exp() * F.softplus(x + c)", **given)
    if activation not in BOUNDED or not low < 0:
        raise b.error(
            f"attribute 'gate_activation' {activation!r} is unknown, or gate_lower_bound {low} is not negative", WRITER
        )
    return b("n * torch.sigmoid(a.exp() * (x + c))", n=low, **given)


def _operands(b: Builder, query: Arg, key: Arg | None, value: Arg | None, state: Arg | None) -> list[Any]:
    """q, k and v with an axis of heads; side by side, the state says how many there are, and their sizes."""
    if key is not None and value is not None:
        return [query, key, value]
    if key is not None or value is not None or state is None:
        raise b.error("the input key, value or initial_state is missing", WRITER)
    found = [*(query.shape or (None,))[-1:], *(state.shape or (None,))[1:]]
    sizes = [n for n in found if isinstance(n, int)]
    if len(sizes) != len(found) or len(sizes) != 4:
        raise b.error("the sizes of query and initial_state are unknown", FIX_SHAPE)
    total, heads, values, keys = sizes
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
