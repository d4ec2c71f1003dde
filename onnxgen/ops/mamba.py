"""Mamba2 of onnxruntime, with states that are passed from call to call."""

from __future__ import annotations

from typing import Any

from onnxgen.code.quote import shortest
from onnxgen.errors import WRITER
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.microsoft import MICROSOFT


@op("Mamba2Verify", domain=MICROSOFT)
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
    made = b.call(
        "mamba2_block", projection, conv_state, ssm_state, state_row, b("(w, c)", w=conv_weight, c=conv_bias),
        b("(t, a, d)", t=dt_bias, a=A_negative, d=D), norm_weight, groups=n_groups, epsilon=shortest(epsilon),
        least=shortest(time_step_min),
    )  # fmt: skip
    return b.unpack(made, 5)
