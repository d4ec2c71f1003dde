"""Linear attention: a state that each step decays and updates, and that is passed between calls."""

from __future__ import annotations

from typing import Any

from onnxgen.code.quote import OMIT, shortest, unless
from onnxgen.errors import FOR_CPU, WRITER
from onnxgen.graph.operators import op
from onnxgen.lowering.builder import Arg, Builder

# Update rules with a decay, and those with an update rate (beta).
DECAYING, LEARNING = ("gated", "gated_delta"), ("delta", "gated_delta")
UPDATE_RULES = {"linear", *DECAYING, *LEARNING}


def terms(b: Builder, update_rule: str, decay: Arg | None, beta: Arg | None) -> tuple[Arg | None, Arg | None]:
    """Return the decay and the update rate that a rule uses. Raises a problem if one is missing."""
    if update_rule not in UPDATE_RULES:
        names = ", ".join(sorted(UPDATE_RULES))
        raise b.error(f"attribute 'update_rule' must be one of {names}, not {update_rule!r}", WRITER)
    decays, learns = update_rule in DECAYING, update_rule in LEARNING
    if (decays and decay is None) or (learns and beta is None):
        raise b.error(f"update_rule {update_rule} needs an input that is missing (decay or beta)", WRITER)
    return decay if decays else None, beta if learns else None


@op("LinearAttention", since=27)
def linear_attention(
    b: Builder, query: Arg, key: Arg, value: Arg, past_state: Arg | None = None, decay: Arg | None = None,
    beta: Arg | None = None, *, q_num_heads: int, kv_num_heads: int, update_rule: str = "gated_delta",
    scale: float = 0.0, state_window: int = 0, chunk_size: int = 64,
) -> Any:  # fmt: skip
    """Heads lie side by side in the last axis. `chunk_size` is a hint for kernels and does not change the result."""
    if state_window:
        raise b.error("state_window runs on GPUs only", FOR_CPU)
    few, many = sorted((q_num_heads, kv_num_heads))
    if few < 1 or many % few:
        raise b.error(
            f"one of q_num_heads {q_num_heads} and kv_num_heads {kv_num_heads} must be a multiple of the other", WRITER
        )
    used = terms(b, update_rule, decay, beta)
    attended = b.call(
        "linear_attention", query, key, value, heads=q_num_heads, kv_heads=kv_num_heads, state=unless(past_state, None),
        decay=unless(used[0], None), beta=unless(used[1], None), scale=shortest(scale) or OMIT,
    )  # fmt: skip
    return b.unpack(attended, 2)
