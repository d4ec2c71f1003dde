"""An LSTM with attention to a memory between its steps, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.ops.fuzz import floats
from tests.ops.harness import Ran, refusal, run_node
from tests.ops.kernels import needs

OP, MICROSOFT = "AttnLSTM", "com.microsoft"
HIDDEN, INPUT, BATCH, SEQ, STEPS, DEPTH, SIZE = 3, 2, 3, 4, 5, 4, 6
WEIGHTS = (1, 2, 3, 7, 8, 9, 10, 13)


def drawn(
    d: int = 1, seen: int = 0, bias: bool = True, states: bool = False, peepholes: bool = False,
    lengths: list[int] | None = None, steps: list[int] | None = None,
) -> list[Any]:  # fmt: skip
    """Inputs of `d` directions; `seen`: how wide the weight AW makes what is seen of the memory, 0 for none."""
    counts = [None if v is None else np.array(v, np.int32) for v in (lengths, steps)]
    state = [floats(d, BATCH, HIDDEN, seed=s) if states else None for s in (1, 2)]
    return [
        floats(SEQ, BATCH, INPUT), floats(d, 4 * HIDDEN, INPUT + (seen or DEPTH)), floats(d, 4 * HIDDEN, HIDDEN),
        floats(d, 8 * HIDDEN) if bias else None, counts[0], *state, floats(d, 3 * HIDDEN) if peepholes else None,
        floats(d, HIDDEN, SIZE), floats(d, DEPTH, SIZE), floats(d, SIZE), floats(BATCH, STEPS, DEPTH), counts[1],
        floats(d, HIDDEN + DEPTH, seen) if seen else None,
    ]  # fmt: skip


def run(inputs: list[Any], attrs: dict[str, Any] | None = None, stored: bool = False, **kwargs: Any) -> Ran:
    kept = {i for i in WEIGHTS if stored and inputs[i] is not None}
    attrs = {"hidden_size": HIDDEN, **(attrs or {})}
    return run_node(
        OP, inputs, attrs, domain=MICROSOFT, initializers=kept, **{"outputs": 3, "rtol": 1e-4, "atol": 1e-5, **kwargs}
    )


GIVEN: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "a mixed context": {"seen": 7},
    "lengths of the memory": {"steps": [5, 3, 1]},
    "lengths": {"lengths": [4, 2, 1]},
    "states": {"states": True},
    "peepholes": {"peepholes": True},
    "all": {"seen": 2, "steps": [1, 5, 2], "lengths": [1, 3, 4], "states": True, "peepholes": True},
}


@needs(OP)
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_what_is_given(given: str, direction: str) -> None:
    inputs = drawn(2 if direction == "bidirectional" else 1, **GIVEN[given])
    run(inputs, {"direction": direction}, stored=True)
    run(inputs, {"direction": direction}, dynamic=True)


ATTRS: list[dict[str, Any]] = [
    {"clip": 0.4},
    {"input_forget": 1, "clip": 0.7},
    {"activations": ["HardSigmoid", "LeakyRelu", "Softsign"], "activation_alpha": [0.3, 0.4], "activation_beta": [0.1]},
    {"activations": ["Sigmoid", "Relu", "Elu"]},
]


@needs(OP)
@pytest.mark.parametrize("attrs", ATTRS)
def test_attributes(attrs: dict[str, Any]) -> None:
    run(drawn(peepholes=True, states=True), attrs)


@needs(OP)
def test_activations_of_both_directions() -> None:
    names = ["Relu", "Tanh", "Sigmoid", "Sigmoid", "Softsign", "Tanh"]
    run(drawn(2), {"direction": "bidirectional", "activations": names})


@needs(OP)
@pytest.mark.parametrize("outputs", [1, 2, ["", "h"], ["", "", "c"], ["y", "", "c"]])
def test_some_outputs(outputs: Any) -> None:
    run(drawn(seen=3), outputs=outputs)


@needs(OP)
def test_all_weights_are_trained() -> None:
    ran = run(drawn(seen=3, peepholes=True), stored=True)
    assert len(list(ran.model.parameters())) == len(WEIGHTS)
    made = ran.model(torch.tensor(floats(SEQ, BATCH, INPUT)), torch.tensor(floats(BATCH, STEPS, DEPTH)))
    made[0].sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in ran.model.parameters())


def test_padding_of_the_memory_is_not_looked_at() -> None:
    inputs = drawn(steps=[5, 3, 1])
    before = run(inputs, compare=False).outputs
    inputs[11][1:, 3:] = np.inf
    assert all(np.array_equal(a, b) for a, b in zip(before, run(inputs, compare=False).outputs, strict=True))


def test_what_the_kernel_refuses_is_refused() -> None:
    def why(inputs: list[Any], **attrs: Any) -> str:
        return refusal(OP, inputs, {"hidden_size": HIDDEN, **attrs}, domain=MICROSOFT)

    assert "Softmax" in why(drawn(), activations=["Softmax", "Tanh", "Tanh"])
    assert "has 2 names, but 3 gate functions" in why(drawn(), activations=["Tanh", "Tanh"])
    inputs = drawn()
    inputs[10] = None
    assert "'V' is missing" in why(inputs)
    assert "hidden_size" in refusal(OP, drawn(), domain=MICROSOFT)
