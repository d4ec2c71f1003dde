"""Linear models of ai.onnx.ml against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onnxgen.errors import OnnxgenError
from tests.ops.classical import ML, floats, ml_model, run_ml
from tests.ops.harness import generate, unbound_names

TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"]
OPERATORS = ["LinearRegressor", "LinearClassifier"]


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_version_is_bound(operator: str) -> None:
    assert unbound_names(operator, ML) == []


def coefficients(rows: int, transform: str) -> list[float]:
    """Of three columns; those for PROBIT, with `samples`, make probabilities."""
    return [0.2 + 0.01 * i for i in range(rows * 3)] if transform == "PROBIT" else floats(rows * 3, seed=1).tolist()


def samples(transform: str, rows: int = 5) -> np.ndarray[Any, Any]:
    return np.abs(floats(rows, 3)) * np.float32(0.1) + np.float32(0.2) if transform == "PROBIT" else floats(rows, 3)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("intercepts", [None, [0.125], [0.125, 0.25]])
def test_regressor(transform: str, targets: int, intercepts: list[float] | None) -> None:
    attrs = {"coefficients": coefficients(targets, transform), "targets": targets, "post_transform": transform}
    if intercepts:
        attrs["intercepts"] = intercepts  # onnxruntime leaves those out that are not as many as targets
    x = samples(transform)
    run_ml("LinearRegressor", [x], attrs, dynamic=True)
    run_ml("LinearRegressor", [x[0]], attrs)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("labels", [[0, 1, 2], [5, -7, 9], ["a", "b", "c"], []])
def test_classifier(transform: str, classes: int, labels: list[Any]) -> None:
    attrs: dict[str, Any] = {
        "coefficients": coefficients(classes, transform),
        "intercepts": [0.125, 0.25, -0.5][:classes] if transform != "PROBIT" else [0.01] * classes,
        "post_transform": transform,
    }
    if labels:
        key = "classlabels_strings" if isinstance(labels[0], str) else "classlabels_ints"
        attrs[key] = labels[: max(2, classes)]
    elif classes > 1:
        return  # a label a class is needed: see the refusals
    if transform == "PROBIT" and classes == 1 and labels:
        model = ml_model("LinearClassifier", [samples(transform)], attrs, 1, 2)
        with pytest.raises(OnnxgenError, match="PROBIT is not defined for one score of two classes"):
            generate(model)  # onnxruntime leaves half of the output unwritten
        return
    run_ml("LinearClassifier", [samples(transform)], attrs, outputs=2, dynamic=True)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
def test_classifier_takes_other_types(dtype: Any) -> None:
    attrs = {"coefficients": coefficients(3, ""), "intercepts": [0.1, 0.2, 0.3], "classlabels_ints": [3, 1, 2]}
    run_ml("LinearClassifier", [(floats(6, 3) * 3).astype(dtype)], attrs, outputs=2)
    run_ml("LinearClassifier", [(floats(3) * 3).astype(dtype)], attrs, outputs=2)


def test_it_is_a_linear_layer_that_is_trained() -> None:
    attrs = {"coefficients": coefficients(3, ""), "intercepts": [0.1, 0.2, 0.3], "classlabels_strings": ["a", "b", "c"]}
    ran = run_ml("LinearClassifier", [floats(6, 3)], {**attrs, "post_transform": "SOFTMAX"}, outputs=2)
    assert "self.fc = nn.Linear(3, 3)" in ran.source and "scores = self.fc(i0)" in ran.source
    assert all(p.requires_grad for p in ran.model.parameters())
    model = ran.model.double()
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: model(v)[1], [x])


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_gradients_flow_through_transforms(transform: str) -> None:
    attrs = {"coefficients": coefficients(2, "PROBIT"), "targets": 2, "post_transform": transform}
    x = samples("PROBIT")
    model = run_ml("LinearRegressor", [x], attrs).model.double()
    given = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    assert torch.autograd.gradcheck(model, [given])


def test_refusals() -> None:
    def message(x: np.ndarray[Any, Any], **attrs: Any) -> str:
        with pytest.raises(OnnxgenError) as caught:
            generate(ml_model("LinearClassifier", [x], attrs, 1, 2))
        return str(caught.value)

    x = floats(2, 3)
    assert "no intercepts" in message(x, coefficients=[1.0] * 6, classlabels_ints=[0, 1])
    assert "2 scores but 0 labels" in message(x, coefficients=[1.0] * 6, intercepts=[0.0, 0.0])
    assert "one score must have two labels, not 1" in message(
        x, coefficients=[1.0] * 3, intercepts=[0.0], classlabels_ints=[4]
    )
    assert "has rank 3" in message(x[None], coefficients=[1.0] * 3, intercepts=[0.0])
    assert "do not divide into 2" in message(x, coefficients=[1.0] * 3, intercepts=[0.0] * 2, classlabels_ints=[0, 1])
