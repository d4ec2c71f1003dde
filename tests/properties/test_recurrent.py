"""LSTM, GRU and RNN: every attribute and every input, given or left out."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.properties.judge import EPS, Case, agreement
from tests.properties.strategies import Draw, ints, numbers, opsets, placed

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
# activation functions, and ranges of what they take (alpha, beta)
ACTIVATIONS: dict[str, list[tuple[float, float]]] = {
    "Relu": [], "Tanh": [], "Sigmoid": [], "Softsign": [], "Softplus": [], "Affine": [(0.5, 1.5), (-0.5, 0.5)],
    "LeakyRelu": [(0.01, 0.5)], "ThresholdedRelu": [(0.1, 1)], "ScaledTanh": [(0.5, 1.5), (0.5, 1.5)],
    "HardSigmoid": [(0.1, 0.5), (0.2, 0.8)], "Elu": [(0.5, 1.5)],
}  # fmt: skip


@st.composite
def activations(draw: Draw, count: int) -> dict[str, Any]:
    """Names, in whatever case, and their parameters, as many as they take."""
    names = [draw(st.sampled_from(list(ACTIVATIONS))) for _ in range(count)]
    attrs: dict[str, Any] = {"activations": [draw(st.sampled_from([n, n, n.lower()])) for n in names]}
    for place, key in enumerate(("activation_alpha", "activation_beta")):
        values = [
            draw(st.floats(*ACTIVATIONS[n][place])) for n in names if len(ACTIVATIONS[n]) > place
        ]  # fmt: skip
        if values:
            attrs[key] = values
    return attrs


@st.composite
def layer(draw: Draw, kind: str) -> Case:
    opset, direction = draw(opsets()), draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    steps, batch, size, hidden = (draw(st.integers(1, top)) for top in (4, 3, 3, 4))
    d, gates = 1 + (direction == "bidirectional"), GATES[kind]
    attrs: dict[str, Any] = {"hidden_size": hidden}
    if direction != "forward" or draw(st.booleans()):
        attrs["direction"] = direction
    if draw(st.sampled_from([False, False, True])):
        attrs["clip"] = draw(st.sampled_from([0.1, 0.5, 2.0]))
    if draw(st.sampled_from([False, False, True])):
        attrs |= draw(activations(FUNCTIONS[kind] * d))
    flags = {"GRU": "linear_before_reset", "LSTM": "input_forget"}
    if kind in flags and draw(st.booleans()):
        attrs[flags[kind]] = draw(st.integers(0, 1))
    if opset >= 14 and draw(st.booleans()):
        attrs["layout"] = draw(st.integers(0, 1))
    first = bool(attrs.get("layout"))
    state = [batch, d, hidden] if first else [d, batch, hidden]
    inputs: list[Any] = [draw(numbers([batch, steps, size] if first else [steps, batch, size]))]
    inputs += [draw(numbers([d, gates * hidden, n])) for n in (size, hidden)]
    inputs += [draw(numbers([d, 2 * gates * hidden])) if draw(st.booleans()) else None]
    lengths = draw(ints(1, steps, batch)) if draw(st.booleans()) else None
    inputs += [None if lengths is None else np.array(lengths, np.int32)]
    inputs += [draw(numbers(state)) if draw(st.booleans()) else None for _ in range(2 if kind == "LSTM" else 1)]
    if kind == "LSTM":
        inputs += [draw(numbers([d, 3 * hidden])) if draw(st.booleans()) else None]
    most = 3 if kind == "LSTM" else 2
    outputs = [name if draw(st.sampled_from([True, True, False])) else "" for name in ["Y", "Yh", "Yc"][:most]]
    # every step's rounding is handed on: at most about a sum of `size + hidden` terms in each of `steps` steps
    bound = 16 * steps * (size + hidden) * EPS
    return draw(placed(kind, inputs, attrs, opset, outputs if any(outputs) else ["Y"], rtol=bound, atol=bound))


test_lstm = agreement(layer("LSTM"), 64)
test_gru = agreement(layer("GRU"), 64)
test_rnn = agreement(layer("RNN"), 48)
