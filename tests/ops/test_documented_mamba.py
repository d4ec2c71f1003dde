"""Mamba2Verify, for which onnxruntime has no kernel on CPUs, against its documentation in numpy, a number at a time."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxgen.errors import WRITER
from tests.ops.fuzz import floats
from tests.ops.harness import Ran, node_model, refusal, run_model, run_node

F, B16 = np.float32, np.dtype(ml_dtypes.bfloat16)
HEADS, SIZE, STATE = 4, 3, 5  # the kernel's own sizes are 64 and 128


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def drawn(tokens: int, slots: int, groups: int, row: int) -> list[Any]:
    inner = HEADS * SIZE
    channels = inner + 2 * groups * STATE
    shapes = [(tokens, inner + channels + HEADS), (slots, channels, 3), (slots, HEADS, STATE, SIZE), (channels, 4),
              (channels,), (HEADS,), (HEADS,), (HEADS,), (inner,)]  # fmt: skip
    found = [floats(*shape, seed=i) for i, shape in enumerate(shapes)]
    found[6] = -np.abs(found[6])
    return [v.astype(B16) if i in (0, 1, 3, 4) else v for i, v in enumerate(found)] + [np.array([row], np.int32)]


def computed(inputs: list[Any], groups: int, epsilon: float = 1e-5, least: float = 0.001) -> list[Any]:
    p, conv, ssm, weight, bias, dt_bias, decay, skip, norm = (v.astype(F) for v in inputs[:9])
    row, slots, inner, tokens = int(inputs[9][0]), len(conv), HEADS * SIZE, len(p)
    channels = conv.shape[1]
    is_there, row = 0 <= row < slots, min(max(row, 0), slots - 1)
    history, state = list(conv[row].T), ssm[row]
    y, xbc, readout, convs, states = [], [], [], [], []
    for t in range(tokens):
        gate, x, raw = p[t, :inner], p[t, inner : inner + channels], p[t, inner + channels :] + dt_bias
        history.append(x)
        mixed = sum(weight.reshape(channels, 4)[:, j] * history[t + j] for j in range(4)) + bias
        mixed = (mixed * sigmoid(mixed)).astype(B16).astype(F)
        with np.errstate(over="ignore"):
            dt = np.maximum(np.where(raw > 20, raw, np.log1p(np.exp(raw))), least)
        read = np.zeros((HEADS, SIZE), F)
        state = state.copy()
        for h in range(HEADS):
            g = h // (HEADS // groups)
            own = mixed[h * SIZE : (h + 1) * SIZE]
            key, query = (mixed[inner + (s * groups + g) * STATE :][:STATE] for s in (0, 1))
            state[h] = np.exp(decay[h] * dt[h]) * state[h] + key[:, None] * (dt[h] * own)[None]
            read[h] = skip[h] * own + (query[:, None] * state[h]).sum(0)
        gated = (read.reshape(-1) * gate * sigmoid(gate)).reshape(groups, -1)
        gated = gated / np.sqrt((gated**2).mean(-1, keepdims=True) + F(epsilon))
        y.append(gated.reshape(-1) * norm)
        xbc.append(mixed)
        readout.append(read.reshape(-1))
        convs.append(np.array(history[-3:]).T)
        states.append(state)
    found = [np.array(v) if is_there else np.full_like(v, np.nan) for v in (y, convs, states, xbc, readout)]
    few = min(tokens, slots)
    found[1], found[2] = (np.concatenate([v[tokens - few :], old[few:]]) for v, old in zip(found[1:3], (conv, ssm)))
    return [v.astype(F if i in (2, 4) else B16) for i, v in enumerate(found)]


def attributes(groups: int, **more: Any) -> dict[str, Any]:
    return {"heads": HEADS, "n_groups": groups, "head_dim": SIZE, "d_state": STATE, **more}


def run(inputs: list[Any], attrs: dict[str, Any], expected: list[Any], **kwargs: Any) -> Ran:
    made = {"outputs": 5, "domain": "com.microsoft", "expected": expected, **kwargs}
    return run_node("Mamba2Verify", inputs, attrs, **made)


@pytest.mark.parametrize("tokens, slots, row", [(1, 1, 0), (1, 3, 2), (3, 3, 1), (2, 4, 0), (5, 2, 1)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dynamic", [False, True])
def test_verify(tokens: int, slots: int, row: int, groups: int, dynamic: bool) -> None:
    inputs = drawn(tokens, slots, groups, row)
    ran = run(inputs, attributes(groups), computed(inputs, groups), dynamic=dynamic)
    assert [o.shape for o in ran.outputs[1:3]] == [inputs[1].shape, inputs[2].shape]


def test_stored_weights() -> None:
    """They are trained."""
    inputs = drawn(3, 2, 2, 0)
    expected = computed(inputs, 2, 0.5, 0.8)
    inputs[3] = inputs[3].reshape(-1, 1, 4)
    attrs = attributes(2, epsilon=0.5, time_step_min=0.8)
    ran = run(inputs, attrs, expected, initializers={3, 4, 5, 6, 7, 8})
    assert len(list(ran.model.parameters())) == 6


def test_large_time_steps() -> None:
    inputs = drawn(2, 1, 1, 0)
    inputs[5] = np.array([25, 90, 19, -30], F)
    run(inputs, attributes(1), computed(inputs, 1))


@pytest.mark.parametrize("row", [-1, 3])
@pytest.mark.parametrize("tokens", [2, 4])
def test_a_slot_that_is_not_there(row: int, tokens: int) -> None:
    """It makes NaN, but for the slots that no token writes."""
    inputs = drawn(tokens, 3, 1, row)
    expected = computed(inputs, 1)
    assert np.isnan(expected[0].astype(F)).all() and np.isfinite(expected[2][tokens:]).all()
    run(inputs, attributes(1), expected)


def test_nothing_but_the_results() -> None:
    inputs = drawn(2, 2, 1, 1)
    expected = computed(inputs, 1)[:3]
    run(inputs, attributes(1), expected, outputs=3)


def test_one_call_after_the_other() -> None:
    """Of five tokens at once, or of two and three, beginning where the first call ended."""
    inputs = drawn(5, 8, 2, 3)
    whole = run(inputs, attributes(2), computed(inputs, 2)).outputs
    model = node_model("Mamba2Verify", [inputs[0][:2], *inputs[1:]], attributes(2), outputs=3, domain="com.microsoft")
    first = run_model(model, {f"i{n}": v for n, v in enumerate([inputs[0][:2], *inputs[1:]])}).outputs
    rest = [inputs[0][2:], first[1], first[2], *inputs[3:9], np.array([1], np.int32)]
    made = run(rest, attributes(2), computed(rest, 2)).outputs
    np.testing.assert_allclose(made[0].astype(F), whole[0][2:].astype(F), rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(made[2][:3], whole[2][2:5], rtol=1e-5, atol=1e-6)


def test_what_is_refused() -> None:
    inputs = drawn(2, 2, 1, 0)
    for wrong in ({"n_groups": 3}, {"head_dim": 64}, {"heads": 2}):
        text = refusal("Mamba2Verify", inputs, attributes(1) | wrong, domain="com.microsoft", outputs=3)
        assert "do not fit ssm_state" in text and WRITER in text
