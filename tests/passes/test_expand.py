"""Operators that the standard defines by a function body, expanded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from onnxgen.graph import operators as registry
from tests.ops.harness import backend_cases, refusal, run_case, run_node

# by a fixed body; by one that depends on types; by one that uses another such operator
BODIES = {
    "MeanVarianceNormalization": "fixed",
    "ReduceSumSquare": "fixed, written for the opset that its schema is of",
    "Shrink": "fixed, written for a newer opset than its schema",
    "BlackmanWindow": "fixed, with an If on an attribute",
    "Range": "by type",
    "Clip": "by type",
    "Celu": "by type",
    "LayerNormalization": "by type, three outputs",
    "NegativeLogLikelihoodLoss": "by type",
    "SoftmaxCrossEntropyLoss": "by type, a body within a body",
}


@pytest.fixture
def unregistered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Operators that shall be unknown to the registry during a test."""
    names: list[str] = []
    original = registry._own()
    monkeypatch.setattr(registry, "_own", lambda: {key: v for key, v in original.items() if key[1] not in names})
    yield names


@pytest.mark.parametrize("name", BODIES)
def test_onnx_own_cases(name: str, unregistered: list[str]) -> None:
    unregistered.append(name)
    cases = backend_cases(name)
    assert cases
    for case in cases:
        assert run_case(case).outputs


def test_a_body_of_a_newer_opset(unregistered: list[str]) -> None:
    """Shrink-9 has a body in opset 18's words only; each of its nodes carries that opset."""
    unregistered.append("Shrink")
    x = np.array([-2, -0.2, 0.3, 2], np.float32)
    run_node("Shrink", [x], {"lambd": 0.5, "bias": 0.1}, opset=11)


def test_without_a_body_it_is_refused(unregistered: list[str]) -> None:
    unregistered.append("Relu6Like")
    unregistered.append("Det")
    assert "(Det-21): the operator is not supported" in refusal("Det", [np.eye(2, dtype=np.float32)])
