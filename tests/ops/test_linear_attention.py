"""Linear attention against the kernels of onnxruntime: the delta rule, decays, and heads that are shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onnxgen.helpers.linear_attention import delta_rule
from tests.ops.fuzz import floats
from tests.ops.harness import Ran, refusal, run_node
from tests.ops.kernels import needs

MICROSOFT = "com.microsoft"
F, H = np.float32, np.float16
RULES = ["linear", "gated", "delta", "gated_delta"]


def run(inputs: list[Any], attrs: dict[str, Any], **kwargs: Any) -> Ran:
    return run_node("LinearAttention", inputs, attrs, domain=MICROSOFT, outputs=2, **kwargs)


def inputs_of(
    rule: str, batch: int = 2, length: int = 5, heads: tuple[int, int, int] = (2, 2, 2),
    sizes: tuple[int, int] = (4, 3), past: bool = True, wide: bool = False, one: bool = False,
) -> list[Any]:  # fmt: skip
    """Heads of queries, keys and values; `wide`: a decay of each element, `one`: a rate for all heads."""
    q, k, v = (floats(batch, length, n * s, seed=i) for i, (n, s) in enumerate(zip(heads, (sizes[0], *sizes))))
    decay = -np.abs(floats(batch, length, heads[2] * (sizes[0] if wide else 1), seed=4))
    return [
        q, k * F(0.3), v, floats(batch, heads[2], *sizes, seed=3) if past else None,
        decay if "gated" in rule else None,
        np.abs(floats(batch, length, 1 if one else heads[2], seed=5)) * F(0.3) if "delta" in rule else None,
    ]  # fmt: skip


def attrs_of(rule: str, heads: tuple[int, int, int] = (2, 2, 2)) -> dict[str, Any]:
    return {"q_num_heads": heads[0], "kv_num_heads": heads[2], "update_rule": rule}


@needs("LinearAttention")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "heads", [(2, 2, 2), (4, 2, 2), (4, 1, 1), (1, 2, 2), (2, 4, 4), (2, 2, 4), (2, 1, 4), (4, 1, 2)]
)
@pytest.mark.parametrize("past", [False, True])
def test_heads(rule: str, heads: tuple[int, int, int], past: bool) -> None:
    """Queries share a state, or states share a query; keys are shared, too."""
    run(inputs_of(rule, heads=heads, past=past), attrs_of(rule, heads))


@needs("LinearAttention")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "batch, length, sizes", [(1, 1, (4, 4)), (2, 0, (4, 3)), (0, 3, (4, 3)), (1, 70, (8, 8)), (2, 5, (1, 1))]
)
def test_sizes(rule: str, batch: int, length: int, sizes: tuple[int, int]) -> None:
    """None at all, one, and more than a chunk."""
    run(inputs_of(rule, batch, length, sizes=sizes), attrs_of(rule))


@needs("LinearAttention")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("scale", [0.0, 0.7, -0.5])
def test_decays_and_rates(rule: str, wide: bool, one: bool, scale: float) -> None:
    ran = run(inputs_of(rule, wide=wide, one=one), attrs_of(rule) | {"scale": scale, "chunk_size": 16})
    assert ("decay=" in ran.forward, "beta=" in ran.forward) == ("gated" in rule, "delta" in rule)


@needs("LinearAttention")
@pytest.mark.parametrize("rule", RULES)
def test_named_sizes(rule: str) -> None:
    """Those of heads need not be known, either."""
    run(inputs_of(rule, heads=(4, 2, 2)), attrs_of(rule, (4, 2, 2)), dynamic=True)


@needs("LinearAttention")
@pytest.mark.parametrize("rule", RULES)
def test_what_a_rule_does_not_use(rule: str) -> None:
    """It may be there all the same."""
    ran = run(inputs_of("gated_delta"), attrs_of(rule))
    assert ("decay=" in ran.forward, "beta=" in ran.forward) == ("gated" in rule, "delta" in rule)


@pytest.mark.parametrize("rule", RULES)
def test_half_precision_is_computed_in_float32(rule: str) -> None:
    """There is no such CPU kernel: the result is that of float32, rounded once."""
    inputs = [None if v is None else v.astype(H) for v in inputs_of(rule)]
    wide = [None if v is None else torch.from_numpy(v.astype(F)) for v in inputs]
    q, k, v = (x.unflatten(-1, (2, -1)) for x in wide[:3] if x is not None)
    decay, beta = (None if x is None else x.unsqueeze(-1) for x in wide[4:])
    made, state = delta_rule(q, k, v, wide[3], decay, beta)
    expected = [made.flatten(2).half().numpy(), state.half().numpy()]
    run(inputs, attrs_of(rule), expected=expected, rtol=0, atol=0)


def test_what_the_kernel_refuses_is_refused() -> None:
    def why(inputs: list[Any], attrs: dict[str, Any]) -> str:
        return refusal("LinearAttention", inputs, attrs, outputs=2, domain=MICROSOFT)

    inputs, attrs = inputs_of("gated_delta"), attrs_of("gated_delta")
    assert "runs on GPUs only" in why(inputs, attrs | {"state_window": 2})
    assert "'update_rule' must be one of" in why(inputs, attrs | {"update_rule": "other"})
    assert "missing (decay or beta)" in why(inputs[:5], attrs)
    assert "missing (decay or beta)" in why(inputs[:3], attrs | {"update_rule": "gated"})
    assert "q_num_heads 3 and kv_num_heads 2" in why(inputs, attrs | {"q_num_heads": 3})
