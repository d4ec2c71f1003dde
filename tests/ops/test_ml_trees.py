"""Tree ensembles of ai.onnx.ml, of random shape, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto

from onnxgen.errors import OnnxgenError
from tests.ops.classical import ML, ml_model, run_ml
from tests.ops.harness import generate, run_onnxruntime, unbound_names
from tests.ops.random_trees import MEMBER, Trees

MIXED = list(range(MEMBER))
QUESTIONS = [[mode] for mode in MIXED] + [MIXED]
TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"]
LOOSE = {"rtol": 1e-5, "atol": 1e-5}  # many weights of both signs are added up in another order


@pytest.mark.parametrize("operator", ["TreeEnsemble", "TreeEnsembleRegressor", "TreeEnsembleClassifier"])
def test_every_version_is_bound(operator: str) -> None:
    assert unbound_names(operator, ML) == []


def weighted(trees: Trees, shape: str, count: int, sign: float = 0.0) -> list[list[tuple[int, float]]]:
    """Weights for each leaf: of every target, of one, of some, or only of the first or the last."""

    def weight() -> float:
        drawn = float(trees.rng.standard_normal())
        return abs(drawn) * sign if sign else drawn

    def targets() -> list[int]:
        if shape in ("first", "last"):
            return [0 if shape == "first" else count - 1]
        some = trees.rng.integers(count, size=1 if shape == "one" else int(trees.rng.integers(1, 4)))
        return list(range(count)) if shape == "dense" else sorted({int(k) for k in some})

    return [[(k, weight()) for k in targets()] for _ in trees.leaves]


@pytest.mark.parametrize("modes", QUESTIONS)
@pytest.mark.parametrize("tracks", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_questions(modes: list[int], tracks: bool, dtype: Any) -> None:
    """Inputs meet thresholds exactly, and are NaN."""
    for seed in range(2):
        trees = Trees(seed, trees=3, depth=3, features=3, modes=modes)
        attrs = trees.old("target", weighted(trees, "dense", 1), tracks, double=dtype is np.float64 and seed == 1)
        version = 3 if dtype is np.float64 and seed == 1 else 1
        x = trees.inputs(12, dtype, nan=True)
        run_ml("TreeEnsembleRegressor", [x], {**attrs, "n_targets": 1}, version, dynamic=True, **LOOSE)


@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("shape", ["dense", "one", "some"])
def test_regressor(how: str, count: int, shape: str) -> None:
    for seed, transform in enumerate(TRANSFORMS):
        trees = Trees(seed, trees=seed + 1, depth=seed, features=3, modes=[0])
        attrs = trees.old("target", weighted(trees, shape, count), False, False)
        attrs |= {"n_targets": count, "aggregate_function": how, "post_transform": transform}
        if seed % 2:
            attrs["base_values"] = trees.rng.standard_normal(count).tolist()
        run_ml("TreeEnsembleRegressor", [trees.inputs(6)], attrs, 1, **LOOSE)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("shape", ["dense", "one", "some", "first", "last"])
@pytest.mark.parametrize("sign", [0.0, 1.0, -1.0])
@pytest.mark.parametrize("bases", ["none", "one", "each"])
def test_classifier(count: int, shape: str, sign: float, bases: str) -> None:
    if bases == "one" and (count == 3 or (count == 2 and shape in ("one", "some"))):
        return  # onnxruntime refuses it, or leaves scores unwritten: see the refusals
    for seed, transform in list(enumerate(TRANSFORMS))[:: 1 if shape in ("first", "last") else 2]:
        trees = Trees(seed + 10, trees=seed + 1, depth=2, features=3, modes=[0])
        attrs = trees.old("class", weighted(trees, shape, count, sign), False, False) | {"post_transform": transform}
        if seed % 2 and count > 1:
            attrs["classlabels_strings"] = ["a", "b", "c"][:count]
        else:
            attrs["classlabels_int64s"] = [5, 7, 9][:count] if seed else [0, 1, 2][:count]
        if bases != "none":
            attrs["base_values"] = trees.rng.standard_normal(1 if bases == "one" else count).tolist()
        dtype = [np.float32, np.float64, np.int64, np.int32][seed]
        run_ml("TreeEnsembleClassifier", [trees.inputs(6, dtype)], attrs, 1, 2, **LOOSE)


@pytest.mark.parametrize("modes", [*QUESTIONS, [MEMBER], [0, MEMBER], [*MIXED, MEMBER]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ensemble(modes: list[int], dtype: Any) -> None:
    kind = TensorProto.FLOAT if dtype is np.float32 else TensorProto.DOUBLE
    for seed in range(4):
        trees = Trees(seed, trees=3, depth=seed, features=3, modes=modes)
        count = 1 + seed % 2
        targets = [(int(trees.rng.integers(count)), float(trees.rng.standard_normal())) for _ in trees.leaves]
        attrs = trees.new(targets, tracks=seed > 1, kind=kind)
        attrs |= {"n_targets": count, "aggregate_function": seed, "post_transform": 3 * (seed % 2)}
        run_ml("TreeEnsemble", [trees.inputs(12, dtype, nan=True)], attrs, 5, **LOOSE)


def test_membership_is_of_equal_numbers() -> None:
    """The standard's text; onnxruntime cuts -0.5 off to 0 first."""
    trees = Trees(0, trees=1, depth=1, features=1, modes=[MEMBER])
    trees.nodes = [(0, MEMBER, 0, [-7.0, 0.0], 0, (("leaf", 0), ("leaf", 1)))]
    trees.leaves, trees.roots = [0, 0], [("node", 0)]
    attrs = trees.new([(0, 1.0), (0, 2.0)], False, TensorProto.FLOAT) | {"n_targets": 1}
    x = np.array([[-7.0], [0.0], [-0.0], [-0.5], [1e-45], [-1e-45], [np.nan], [np.inf]], np.float32)
    expected = np.array([[1, 1, 1, 2, 2, 2, 2, 2]], np.float32).T
    run_ml("TreeEnsemble", [x], attrs, 5, expected=[expected])


@pytest.mark.parametrize("mode", MIXED)
def test_thresholds_at_the_ends(mode: int) -> None:
    numbers = [-np.inf, np.inf, np.nan, np.finfo(np.float32).max, 0.0, -0.0, 1e-45]
    x = np.array([[n] for n in [*numbers, np.finfo(np.float32).min, 1.0]], np.float32)
    for number in numbers:
        trees = Trees(0, trees=1, depth=1, features=1, modes=[mode])
        trees.nodes = [(0, mode, 0, [number], 1, (("leaf", 0), ("leaf", 1)))]
        trees.leaves, trees.roots = [0, 0], [("node", 0)]
        for tracks in (False, True):
            attrs = trees.old("target", [[(0, 1.0)], [(0, 2.0)]], tracks, False) | {"n_targets": 1}
            run_ml("TreeEnsembleRegressor", [x], attrs)


def test_weights_of_leaves_are_trained() -> None:
    trees = Trees(3, trees=4, depth=3, features=3, modes=[0])
    attrs = trees.old("class", weighted(trees, "dense", 3), False, False)
    attrs |= {"classlabels_int64s": [0, 1, 2], "post_transform": "SOFTMAX", "base_values": [0.1, 0.2, 0.3]}
    x = trees.inputs(5)
    model = run_ml("TreeEnsembleClassifier", [x], attrs, outputs=2, **LOOSE).model
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes == {"class_weights": (len(trees.leaves), 3), "base_values": (3,)}
    weights = model.class_weights.detach().double().requires_grad_()

    def scores(weights: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, {"class_weights": weights}, (torch.from_numpy(x),))[1]

    for name in ("one", "dense"):
        attrs = trees.old("target", weighted(trees, name, 2), False, False) | {"n_targets": 2}
        model = run_ml("TreeEnsembleRegressor", [x], attrs, **LOOSE).model
        model(torch.from_numpy(x)).sum().backward()
        assert model.target_weights.grad is not None and bool((model.target_weights.grad != 0).any())
    assert weights.shape == (len(trees.leaves), 3)


@pytest.mark.parametrize("shape", ["dense", "one"])
@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_gradients_of_weights(shape: str, how: str) -> None:
    trees = Trees(5, trees=3, depth=2, features=3, modes=[0])
    attrs = trees.old("target", weighted(trees, shape, 2), False, False) | {"n_targets": 2, "aggregate_function": how}
    x = trees.inputs(4, np.float64)
    model = run_ml("TreeEnsembleRegressor", [x], attrs, **LOOSE).model.double()
    given = torch.from_numpy(x)
    start = model.target_weights.detach().clone().requires_grad_()

    def scores(weights: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.func.functional_call(model, {"target_weights": weights}, (given,))
        return found

    # the result is float32, as the standard has it: steps and tolerances are wide
    assert torch.autograd.gradcheck(scores, [start], eps=1e-2, atol=1e-3, rtol=1e-3)


def test_many_trees_are_no_literals() -> None:
    trees = Trees(1, trees=30, depth=5, features=8, modes=[1])
    attrs = trees.old("target", weighted(trees, "dense", 1), False, False) | {"n_targets": 1}
    ran = run_ml("TreeEnsembleRegressor", [trees.inputs(20)], attrs, rtol=1e-4, atol=1e-4)
    assert len(ran.source) < 6000 and "constants.thresholds" in ran.source


@pytest.mark.parametrize("missing", [False, True])
def test_they_compile(missing: bool) -> None:
    trees = Trees(2, trees=3, depth=3, features=3, modes=MIXED)
    attrs = trees.old("class", weighted(trees, "one", 3), missing, False) | {"classlabels_int64s": [0, 1, 2]}
    x = trees.inputs(6, nan=missing)
    ran = run_ml("TreeEnsembleClassifier", [x], attrs, outputs=2, dynamic=True, **LOOSE)
    torch._dynamo.reset()
    compiled = torch.compile(ran.model, fullgraph=True, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(compiled(torch.from_numpy(x)), ran.model(torch.from_numpy(x)))


def test_refusals() -> None:
    trees = Trees(7, trees=2, depth=2, features=3, modes=[0])
    x = trees.inputs(4)

    def message(operator: str, attrs: dict[str, Any], version: int = 1, **changed: Any) -> str:
        model = ml_model(operator, [x], {**attrs, **changed}, version, 2 if operator.endswith("Classifier") else 1)
        with pytest.raises(OnnxgenError) as caught:
            generate(model)
        return str(caught.value)

    attrs = trees.old("class", weighted(trees, "one", 2), False, False) | {"classlabels_int64s": [0, 1]}
    attrs["class_ids"] = [i % 2 for i in range(len(trees.leaves))]
    assert "one base value" in message("TreeEnsembleClassifier", attrs, base_values=[0.5])
    assert "one class with a text label" in message(
        "TreeEnsembleClassifier", {k: v for k, v in attrs.items() if k != "classlabels_int64s"},
        classlabels_strings=["a"], class_ids=[0] * len(trees.leaves),
    )  # fmt: skip
    attrs = trees.old("target", weighted(trees, "dense", 1), False, False) | {"n_targets": 1}
    nodes = len(attrs["nodes_modes"])
    assert "unknown mode" in message("TreeEnsembleRegressor", attrs, nodes_modes=["BRANCH_MAYBE"] * nodes)
    assert "a node that does not exist" in message("TreeEnsembleRegressor", attrs, nodes_truenodeids=[99] * nodes)
    assert "tests feature 9" in message("TreeEnsembleRegressor", attrs, nodes_featureids=[9] * nodes)
    assert "a tree has a cycle" in message(
        "TreeEnsembleRegressor", attrs, nodes_truenodeids=[0] * nodes, nodes_falsenodeids=[0] * nodes
    )
    attrs = trees.new([(0, 1.0)] * len(trees.leaves), False, TensorProto.FLOAT) | {"n_targets": 1}
    assert "SOFTMAX in the standard and LOGISTIC in onnxruntime" in message("TreeEnsemble", attrs, 5, post_transform=1)


def test_probit() -> None:
    trees = Trees(4, trees=1, depth=2, features=3, modes=[0])
    for count in (1, 2):
        targets = [[(k, 0.2 + 0.1 * k + 0.05 * i) for k in range(count)] for i in range(len(trees.leaves))]
        attrs = trees.old("target", targets, False, False) | {"n_targets": count, "post_transform": "PROBIT"}
        run_ml("TreeEnsembleRegressor", [trees.inputs(5)], attrs, rtol=1e-4, atol=1e-5)


def test_onnxruntime_still_exchanges_two_transforms() -> None:
    """What makes them be refused; if this fails, they need not be."""
    trees = Trees(0, trees=1, depth=0, features=1, modes=[0])
    attrs = trees.new([(0, 1.0)], False, TensorProto.FLOAT) | {"n_targets": 2, "post_transform": 2}
    found = run_onnxruntime(ml_model("TreeEnsemble", [trees.inputs(1)], attrs, 5, 1), {"i0": trees.inputs(1)})[0]
    np.testing.assert_allclose(found, [[1 / (1 + np.exp(-1)), 1 - 1 / (1 + np.exp(-1))]], rtol=1e-5)
