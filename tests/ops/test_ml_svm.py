"""Support vector machines of ai.onnx.ml against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onnxgen.errors import OnnxgenError
from tests.ops.classical import ML, floats, ml_model, run_ml
from tests.ops.harness import generate, unbound_names

KERNELS = ["LINEAR", "POLY", "RBF", "SIGMOID"]
TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"]
LOOSE = {"rtol": 2e-5, "atol": 2e-5}


@pytest.mark.parametrize("operator", ["SVMRegressor", "SVMClassifier"])
def test_every_version_is_bound(operator: str) -> None:
    assert unbound_names(operator, ML) == []


def listed(count: int, seed: int) -> list[float]:
    found: list[float] = floats(count, seed=seed).tolist()
    return found


def regressor(kernel: str, vectors: int, **more: Any) -> dict[str, Any]:
    attrs = {"kernel_type": kernel, "kernel_params": [0.4, 0.5, 3.0], "n_supports": vectors, "rho": [0.25], **more}
    attrs["coefficients"] = listed(vectors or 3, 1)
    return attrs | ({"support_vectors": listed(vectors * 3, 2)} if vectors else {})


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("vectors", [0, 1, 4])
@pytest.mark.parametrize("one_class", [0, 1])
def test_regressor(kernel: str, vectors: int, one_class: int) -> None:
    attrs = regressor(kernel, vectors, one_class=one_class)
    run_ml("SVMRegressor", [floats(6, 3)], attrs, dynamic=True, **LOOSE)
    run_ml("SVMRegressor", [floats(3)], {**attrs, "post_transform": "LOGISTIC"}, **LOOSE)
    (
        run_ml("SVMRegressor", [floats(6, 3)], {**attrs, "kernel_params": [0.4, 0.0, 2.5]}, **LOOSE)
        if kernel == "RBF"
        else 0
    )


def classifier(kernel: str, classes: int, chances: bool, transform: str = "NONE") -> dict[str, Any]:
    counts = [2, 1, 3, 2][:classes]
    pairs = classes * (classes - 1) // 2
    attrs = {
        "kernel_type": kernel, "kernel_params": [0.4, 0.5, 2.0], "post_transform": transform,
        "vectors_per_class": counts, "support_vectors": listed(sum(counts) * 3, 2), "rho": listed(pairs, 3),
        "coefficients": listed((classes - 1) * sum(counts), 1), "classlabels_ints": [5, 7, 9, 11][:classes],
    }  # fmt: skip
    return attrs | ({"prob_a": [-1.0 - 0.1 * i for i in range(pairs)], "prob_b": listed(pairs, 4)} if chances else {})


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("chances", [False, True])
def test_classifier(kernel: str, classes: int, chances: bool) -> None:
    transform = TRANSFORMS[(classes + KERNELS.index(kernel)) % 4]
    run_ml("SVMClassifier", [floats(9, 3)], classifier(kernel, classes, chances), outputs=2, dynamic=True, **LOOSE)
    attrs = classifier(kernel, classes, chances, transform)
    attrs["classlabels_strings"] = ["a", "b", "c", "d"][: len(attrs.pop("classlabels_ints"))]
    run_ml("SVMClassifier", [(floats(9, 3) * 3).astype(np.int64)], attrs, outputs=2, **LOOSE)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("chances", [False, True])
def test_linear_classifier(transform: str, classes: int, positive: bool, chances: bool) -> None:
    """Without support vectors: a row of coefficients a class."""
    numbers = np.abs(listed(classes * 3, 1)) if positive else np.array(listed(classes * 3, 1))
    attrs = {"coefficients": numbers.tolist(), "rho": [0.1], "post_transform": transform, "kernel_params": [0.0] * 3}
    attrs |= {"classlabels_ints": [5, 7, 9][:classes]}
    if chances and classes > 1:
        attrs |= {"prob_a": [1.0], "prob_b": [1.0]}
    run_ml("SVMClassifier", [floats(9, 3)], attrs, outputs=2, **LOOSE)


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients(kernel: str) -> None:
    ran = run_ml("SVMRegressor", [floats(6, 3)], regressor(kernel, 4), **LOOSE)
    assert sorted(n for n, _ in ran.model.named_parameters()) == ["coefficients", "rho", "support_vectors"]
    model = ran.model.double()
    names, values = zip(*model.named_parameters())
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)

    def scores(x: torch.Tensor, *values: torch.Tensor) -> Any:
        return torch.func.functional_call(model, dict(zip(names, values)), (x,))

    assert torch.autograd.gradcheck(scores, [x, *(v.detach().requires_grad_() for v in values)])


@pytest.mark.parametrize("classes", [2, 3])
def test_gradients_of_probabilities(classes: int) -> None:
    model = run_ml("SVMClassifier", [floats(4, 3)], classifier("RBF", classes, True), outputs=2, **LOOSE).model.double()
    assert len(list(model.parameters())) == 5
    x = torch.from_numpy(floats(4, 3).astype(np.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: model(x)[1], [x])


def test_they_compile() -> None:
    for operator, attrs in (
        ("SVMRegressor", regressor("POLY", 4)),
        ("SVMClassifier", classifier("RBF", 3, False)),
    ):
        ran = run_ml(operator, [floats(5, 3)], attrs, outputs=2 if operator == "SVMClassifier" else 1, **LOOSE)
        torch._dynamo.reset()
        compiled = torch.compile(ran.model, fullgraph=True, backend="aot_eager")
        x = torch.from_numpy(floats(5, 3))
        torch.testing.assert_close(compiled(x), ran.model(x))


def test_refusals() -> None:
    def message(operator: str, attrs: dict[str, Any]) -> str:
        with pytest.raises(OnnxgenError) as caught:
            generate(ml_model(operator, [floats(2, 3)], attrs, 1, 2 if operator == "SVMClassifier" else 1))
        return str(caught.value)

    assert "attribute 'kernel_params' (gamma, coef0, degree) is missing" in message(
        "SVMRegressor", regressor("RBF", 4) | {"kernel_params": [0.5]}
    )
    assert "'kernel_type' must be one of LINEAR, POLY, RBF, SIGMOID, not 'CUBE'" in message(
        "SVMRegressor", regressor("CUBE", 4)
    )
    assert "must have 5 support vectors" in message("SVMRegressor", regressor("RBF", 4) | {"n_supports": 5})
    assert "PROBIT is not defined for one score of two classes" in message(
        "SVMClassifier", classifier("RBF", 2, False, "PROBIT")
    )
    assert "does not fit the classes and support vectors" in message(
        "SVMClassifier", classifier("RBF", 3, False) | {"rho": [0.5]}
    )
