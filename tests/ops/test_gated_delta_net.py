"""Gated DeltaNet of sequences that lie one behind the other, against the kernels of onnxruntime (1.32 or newer)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.ops.fuzz import floats
from tests.ops.harness import Ran, refusal, run_node
from tests.ops.kernels import needs

MICROSOFT = "com.microsoft"
F, H, I32 = np.float32, np.float16, np.int32
RULES = ["linear", "gated", "delta", "gated_delta"]
HEADS, KEYS, VALUES = 4, 4, 3


def run(inputs: list[Any], attrs: dict[str, Any] | None = None, **kwargs: Any) -> Ran:
    return run_node("GatedDeltaNet", inputs, attrs, **{"domain": MICROSOFT, "outputs": 2, **kwargs})


def inputs_of(
    rule: str = "gated_delta", lead: tuple[int, ...] = (10,), starts: list[int] | None = None, shared: int = 2,
    state: bool = True, wide: bool = False, bias: tuple[int, ...] | None = None, dtype: Any = F, gates: Any = F,
) -> list[Any]:  # fmt: skip
    """Tokens of two sequences; `shared`: heads of queries and keys, `wide`: a decay of each element of keys."""
    q, k, v = (
        floats(*lead, n, s, seed=i) for i, (n, s) in enumerate([(shared, KEYS), (shared, KEYS), (HEADS, VALUES)])
    )
    decay = -np.abs(floats(*lead, HEADS, *([KEYS] if wide else []), seed=4))
    rate = np.abs(floats(*lead, HEADS, seed=5)) * F(0.3)
    batch = len(starts) - 1 if starts else 2
    return [
        q.astype(dtype), (k * F(0.3)).astype(dtype), v.astype(dtype),
        np.array(starts, I32) if starts else None,
        decay.astype(gates) if "gated" in rule else None, rate.astype(gates) if "delta" in rule else None,
        floats(batch, HEADS, VALUES, KEYS, seed=3) if state else None,
        *([floats(HEADS, seed=6), floats(*bias, seed=7)] if bias else []),
    ]  # fmt: skip


def side_by_side(inputs: list[Any]) -> list[Any]:
    q, k, v = (x.reshape(*x.shape[:-2], -1) for x in inputs[:3])
    return [np.concatenate([q, k, v], -1), None, None, *inputs[3:]]


@needs("GatedDeltaNet")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lead, starts, state", [
    ((10,), None, True), ((2, 5), None, True), ((2, 5), None, False), ((10,), [0, 3, 10], True),
    ((10,), [0, 3, 10], False), ((10,), [0, 0, 10], True), ((9,), [0, 2, 5, 9], True), ((1,), [0, 1], False),
])  # fmt: skip
@pytest.mark.parametrize("shared", [1, 2, 4])
def test_sequences(rule: str, lead: tuple[int, ...], starts: list[int] | None, state: bool, shared: int) -> None:
    """All as long as each other, or of lengths of their own; an empty one keeps its state."""
    inputs = inputs_of(rule, lead, starts, shared, state)
    run(inputs, {"update_rule": rule})
    run(inputs, {"update_rule": rule, "scale": 0.7}, outputs=1)


@needs("GatedDeltaNet")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lead, starts", [((10,), None), ((2, 5), None), ((10,), [0, 3, 10])])
@pytest.mark.parametrize("shared", [1, 2])
def test_side_by_side(rule: str, lead: tuple[int, ...], starts: list[int] | None, shared: int) -> None:
    ran = run(side_by_side(inputs_of(rule, lead, starts, shared)), {"update_rule": rule})
    assert "".join(re.findall(r"^ *(\w+) = i0\[", ran.forward, re.MULTILINE)) in ("qk", "qkv")


@needs("GatedDeltaNet")
@pytest.mark.parametrize("activation", ["softplus", "qwen", "sigmoid", "kda"])
@pytest.mark.parametrize("wide, bias", [(False, (4,)), (True, (4,)), (True, (4, 4)), (True, (16,))])
@pytest.mark.parametrize("lead", [(10,), (2, 5)])
@pytest.mark.parametrize("packed", [False, True])
def test_activated_decays(
    activation: str, wide: bool, bias: tuple[int, ...], lead: tuple[int, ...], packed: bool
) -> None:
    """The numbers of heads are weights."""
    attrs = {"gate_activation": activation, "beta_activation": "sigmoid", "gate_lower_bound": -2.0}
    inputs = inputs_of(lead=lead, wide=wide, bias=bias)
    ran = run(side_by_side(inputs) if packed else inputs, attrs, initializers={7, 8})
    assert len(list(ran.model.parameters())) == 2


@needs("GatedDeltaNet")
@pytest.mark.parametrize("dtype, gates", [(F, F), (H, F), (H, H)])
@pytest.mark.parametrize("activation", ["none", "softplus", "kda"])
@pytest.mark.parametrize("normal", [0, 1])
def test_types(dtype: Any, gates: Any, activation: str, normal: int) -> None:
    """Its state and all arithmetic are of float32."""
    attrs = {"gate_activation": activation, "qk_l2_norm": normal, "beta_activation": "sigmoid" if normal else "none"}
    bias = None if activation == "none" else (4,)
    run(inputs_of(dtype=dtype, gates=gates, bias=bias), attrs)


@needs("GatedDeltaNet")
@pytest.mark.parametrize("size", [0, 1e-7, 1e-5, 1e-3, 1])
@pytest.mark.parametrize("activation", ["none", "softplus", "sigmoid", "kda"])
@pytest.mark.parametrize("rule", RULES)
def test_short_keys(size: float, activation: str, rule: str) -> None:
    """1e-12 is added to the square of a length, and 1e-6 with a decay that has a bound, even where it is not used."""
    k, one, zero = np.full((1, 1, 1), size, F), np.ones((1, 1, 1), F), np.zeros(1, F)
    attrs = {"update_rule": rule, "qk_l2_norm": 1, "gate_activation": activation}
    gates = [one[0] if name in rule else None for name in ("gated", "delta")]
    numbers = [] if activation == "none" else [zero, zero]
    run([one, k, one, None, *gates, np.zeros((1, 1, 1, 1), F), *numbers], attrs)


@needs("GatedDeltaNet")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("starts", [None, [0, 2, 10], [0, 0, 10]])
@pytest.mark.parametrize("counts, active", [([3, 3], None), ([1, -2], 1), ([9, 9], 5), ([2, 2], 0)])
@pytest.mark.parametrize("wide, normal", [(False, 0), (True, 1)])
def test_state_updates(
    rule: str, starts: list[int] | None, counts: list[int], active: int | None, wide: bool, normal: int
) -> None:
    """What each of the first tokens did to the state; nothing behind these, where zeros are unspecified but there."""
    attrs = {"update_rule": rule, "state_update_capacity": 3, "qk_l2_norm": normal}
    more = [None, None, np.array(counts, I32), *([] if active is None else [np.array([active], I32)])]
    run([*inputs_of(rule, starts=starts, wide=wide), *more], attrs, outputs=3)


@needs("GatedDeltaNet")
@pytest.mark.parametrize("lead, starts, state, packed", [
    ((2, 5), None, False, False), ((10,), [0, 4, 10], False, False), ((2, 5), None, True, True),
])  # fmt: skip
@pytest.mark.parametrize("dtype, gates", [(F, F), (H, F), (H, H)])
def test_state_updates_of_other_layouts(
    lead: tuple[int, ...], starts: list[int] | None, state: bool, packed: bool, dtype: Any, gates: Any
) -> None:
    inputs = inputs_of(lead=lead, starts=starts, state=state, dtype=dtype, gates=gates)
    more = [None, None, np.array([2, 3], I32)]
    run([*(side_by_side(inputs) if packed else inputs), *more], {"state_update_capacity": 2}, outputs=3)


@needs("GatedDeltaNet")
@pytest.mark.parametrize("starts", [None, [0, 3, 10]])
def test_named_sizes(starts: list[int] | None) -> None:
    run(inputs_of(starts=starts, bias=(4,)), {"gate_activation": "softplus"}, dynamic=True, initializers={7, 8})


def test_text() -> None:
    attrs = {"gate_activation": "softplus", "beta_activation": "sigmoid", "qk_l2_norm": 1}
    ran = run(inputs_of(bias=(4,)), attrs, compare=False, initializers={7, 8})
    assert "decay = -self.i7.exp() * F.softplus(i4 + self.i8)" in ran.source
    assert "beta = torch.sigmoid(i5)" in ran.source
    assert "packed_delta_rule(i0, i1, i2, state=i6, decay=decay, beta=beta, epsilon=1e-12)" in ran.source


def test_what_the_kernel_refuses_is_refused() -> None:
    def why(inputs: list[Any], attrs: dict[str, Any] | None = None, outputs: int = 2) -> str:
        return refusal("GatedDeltaNet", inputs, attrs, outputs=outputs, domain=MICROSOFT)

    inputs, biased = inputs_of(), inputs_of(bias=(4,))
    assert "'update_rule' must be one of" in why(inputs, {"update_rule": "other"})
    assert "missing (decay or beta)" in why(inputs_of("delta"))
    assert "needs the inputs a_log and dt_bias" in why(inputs, {"gate_activation": "softplus"})
    assert "gate_activation is none" in why(biased)
    assert "'relu' is unknown" in why(biased, {"gate_activation": "relu"})
    assert "gate_lower_bound 1.0 is not negative" in why(biased, {"gate_activation": "kda", "gate_lower_bound": 1.0})
    assert "must be none or sigmoid, not 'tanh'" in why(inputs, {"beta_activation": "tanh"})
    assert "is missing" in why([inputs[0], None, *inputs[2:]])
    assert "capture_count must be given exactly if" in why(inputs, {"state_update_capacity": 2}, outputs=3)
    assert "capture_count must be given exactly if" in why([*inputs, None, None, np.ones(2, I32)])
