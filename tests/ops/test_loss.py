"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss against onnxruntime; ONNX's cases are in tests/backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.fuzz import floats
from tests.ops.harness import refusal, run_node

TARGET = np.array([[0, 2, 4], [1, 1, 3]])


@pytest.mark.parametrize("op", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("more", [{}, {"ignore_index": 1}])
def test_weights_of_classes(op: str, reduction: str, more: dict[str, Any]) -> None:
    """Stored weights are given to torch's function. Others may be computed, and torch has no gradient for those."""
    inputs = [floats(2, 5, 3), TARGET, np.abs(floats(5, seed=1))]
    stored = run_node(op, inputs, {"reduction": reduction, **more}, 13, initializers={2})
    assert "weight=self." in stored.forward
    run_node(op, inputs, {"reduction": reduction, **more}, 13)
    run_node(op, [inputs[0], TARGET.astype(np.int32)], {"reduction": reduction, **more}, 13, dynamic=True)


def test_an_unknown_reduction() -> None:
    said = refusal("NegativeLogLikelihoodLoss", [floats(2, 5, 3), TARGET], {"reduction": "max"}, 13)
    assert "attribute 'reduction' must be one of none, sum, mean, not 'max'" in said
