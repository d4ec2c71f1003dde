"""LSTM, GRU and RNN against onnxruntime: as torch's modules where they are that, step by step where they are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.harness import Ran, run_node, unbound_names
from tests.support.tiers import drawn

KINDS = {"LSTM": 4, "GRU": 3, "RNN": 1}
HIDDEN, INPUT, BATCH, SEQ = 3, 2, 3, 4


def node(
    kind: str,
    direction: str = "forward",
    bias: bool = True,
    lengths: list[int] | None = None,
    h: bool = False,
    c: bool = False,
    peepholes: bool = False,
    stored: bool = True,
    opset: int = 14,
    dynamic: bool = False,
    outputs: Any = None,
    seq: int = SEQ,
    **attrs: Any,
) -> Ran:
    rng = np.random.default_rng(sum(map(ord, kind + direction)))
    gates, d = KINDS[kind], 2 if direction == "bidirectional" else 1

    def draw(*shape: int) -> np.ndarray[Any, Any]:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    inputs: list[Any] = [draw(seq, BATCH, INPUT), draw(d, gates * HIDDEN, INPUT), draw(d, gates * HIDDEN, HIDDEN)]
    inputs += [draw(d, 2 * gates * HIDDEN) if bias else None]
    inputs += [None if lengths is None else np.array(lengths, np.int32), draw(d, BATCH, HIDDEN) if h else None]
    if kind == "LSTM":
        inputs += [draw(d, BATCH, HIDDEN) if c else None, draw(d, 3 * HIDDEN) if peepholes else None]
    kept = {i for i in (1, 2, 3, 7) if stored and i < len(inputs) and inputs[i] is not None}
    wanted = outputs or (3 if kind == "LSTM" else 2)
    attrs = {"hidden_size": HIDDEN, "direction": direction, **attrs}
    return run_node(kind, inputs, attrs, opset, wanted, kept, dynamic, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_schema_version_binds(kind: str) -> None:
    assert unbound_names(kind) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("bias", [True, False])
def test_what_torch_computes_is_a_module(kind: str, direction: str, bias: bool) -> None:
    extra = {"linear_before_reset": 1} if kind == "GRU" else {}
    ran = node(kind, direction, bias, h=True, dynamic=True, **extra)
    assert f"nn.{kind}(" in ran.source and "onnx_" not in ran.source
    keys = {f"{w}_{g}_l0" for w in (("weight", "bias") if bias else ("weight",)) for g in ("ih", "hh")}
    keys |= {k + "_reverse" for k in keys} if direction == "bidirectional" else set()
    assert {k.split(".")[-1] for k in ran.model.state_dict()} == keys


def test_relu_is_a_nonlinearity() -> None:
    assert "nonlinearity='relu'" in node("RNN", activations=["Relu"]).source


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lengths(kind: str, direction: str) -> None:
    assert f"onnx_{kind.lower()}(" in node(kind, direction, lengths=[4, 1, 2], h=True).source


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [[0, 4, 2], [0, 0, 0]])
def test_sequences_without_a_step(kind: str, direction: str, lengths: list[int]) -> None:
    """What they end in is 0, not what they began with."""
    extra = {"c": True} if kind == "LSTM" else {}
    node(kind, direction, lengths=lengths, h=True, **extra)


@pytest.mark.parametrize("kind", KINDS)
def test_no_step_at_all(kind: str) -> None:
    extra = {"c": True} if kind == "LSTM" else {}
    ran = node(kind, "bidirectional", lengths=[0, 0, 0], h=True, dynamic=True, seq=0, **extra)
    assert all(not np.any(np.asarray(a)) for a in ran.outputs)


@pytest.mark.parametrize("kind", KINDS)
def test_computed_weights(kind: str) -> None:
    node(kind, stored=False)
    node(kind, "reverse", stored=False, dynamic=True)


@pytest.mark.parametrize("outputs", [["Y"], ["", "h"], ["", "", "c"], ["Y", "", "c"]])
def test_outputs_left_out(outputs: list[str]) -> None:
    node("LSTM", outputs=outputs)
    node("LSTM", clip=0.5, outputs=outputs)


@pytest.mark.parametrize("opset", [7, 22])
def test_old_and_new_opsets(opset: int) -> None:
    node("LSTM", "reverse", opset=opset, peepholes=True)
    assert "activations" not in node("GRU", opset=opset).forward, "what the step takes anyway is not written"
    node("RNN", "bidirectional", opset=opset)


ACTIVATIONS = [
    "Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu",
    "Softsign", "Softplus",
]  # fmt: skip
TAKES = {"Affine": 2, "LeakyRelu": 1, "ThresholdedRelu": 1, "ScaledTanh": 2, "HardSigmoid": 2, "Elu": 1}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("given_parameters", [True, False])
def test_activations(name: str, given_parameters: bool) -> None:
    attrs: dict[str, Any] = {"activations": [name]}
    if given_parameters and name in TAKES:
        attrs |= {"activation_alpha": [0.3]} | ({"activation_beta": [0.4]} if TAKES[name] == 2 else {})
    node("RNN", **attrs)


@settings(max_examples=drawn(25), deadline=None)
@given(data=st.data())
def test_whatever_they_are_given(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(KINDS)))
    direction = data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    flags = {k: data.draw(st.booleans()) for k in ("bias", "h", "stored", "dynamic")}
    attrs: dict[str, Any] = {}
    if data.draw(st.booleans()):
        attrs["clip"] = data.draw(st.sampled_from([0.1, 0.7, 5.0]))
    if data.draw(st.booleans()):
        attrs["lengths"] = data.draw(st.lists(st.integers(0, SEQ), min_size=BATCH, max_size=BATCH))
    if kind == "GRU":
        attrs["linear_before_reset"] = data.draw(st.integers(0, 1))
    if kind == "LSTM":
        attrs["input_forget"] = data.draw(st.integers(0, 1))
        attrs |= {"c": data.draw(st.booleans()), "peepholes": data.draw(st.booleans())}
    if data.draw(st.booleans()):
        count = {"LSTM": 3, "GRU": 2, "RNN": 1}[kind] * (2 if direction == "bidirectional" else 1)
        some = st.sampled_from(["Sigmoid", "Tanh", "Relu", "Softsign"])
        attrs["activations"] = data.draw(st.lists(some, min_size=count, max_size=count))
    node(kind, direction, **flags, **attrs)


def test_gradients_flow_through_every_step() -> None:
    ran = node("LSTM", "bidirectional", peepholes=True, lengths=[4, 2, 3])
    made = ran.model(torch.randn(SEQ, BATCH, INPUT), torch.tensor([4, 2, 3], dtype=torch.int32))
    sum(m.sum() for m in made).backward()
    for name, parameter in ran.model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
