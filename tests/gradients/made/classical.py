"""ai.onnx.ml: features, linear models, support vectors and trees, whose attributes are trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.gradients.cases import Case
from tests.gradients.made.nodes import between, floats, learned, mapped


def cases() -> Iterator[Case]:
    yield from _features()
    yield from _linear()
    yield from _vectors()
    yield from _trees()


def _features() -> Iterator[Case]:
    x = floats(3, 4)
    yield learned("Scaler", x, offset=[0.1, 0.2, 0.3, 0.4], scale=[2.0, 0.5, 1.5, 3.0])
    yield learned("Scaler", x, offset=[0.1], scale=[2.0])
    for norm in ("MAX", "L1", "L2"):
        yield learned("Normalizer", x, norm=norm)
    missing = x.copy()
    missing[0, 1] = missing[2, 3] = np.nan
    yield learned("Imputer", missing, imputed_value_floats=[1.0, 2.0, 3.0, 4.0], replaced_value_float=float("nan"))
    yield learned("FeatureVectorizer", x, floats(3, 2), inputdimensions=[4, 2])
    yield learned("ArrayFeatureExtractor", x, np.array([2, 0]))
    yield learned("Binarizer", x, threshold=0.3)
    yield learned("OneHotEncoder", x.round(), cats_int64s=[-1, 0, 1])
    yield learned("LabelEncoder", x, keys_floats=[0.5], values_floats=[1.5], version=2)
    yield learned("ZipMap", x, classlabels_int64s=[1, 2, 3, 4])
    numbers = {1: np.array(1.5, np.float32), 3: np.array(-0.5, np.float32)}
    yield mapped("DictVectorizer", numbers, int64_vocabulary=[3, 2, 1])
    yield mapped("CastMap", numbers, cast_to="TO_FLOAT", map_form="SPARSE", max_map=5)


def _linear() -> Iterator[Case]:
    more: dict[str, Any] = {"intercepts": [0.1, 0.2, 0.05], "classlabels_ints": [5, 7, 9]}
    for transform in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"):
        attrs: dict[str, Any] = {"post_transform": transform}
        x, few = (between(0.2, 0.4, 3, 2), [0.2, 0.21, 0.22, 0.23, 0.24, 0.25]) if transform == "PROBIT" else (
            floats(3, 2), floats(6).tolist()
        )  # fmt: skip
        yield learned("LinearRegressor", x, coefficients=few[:4], intercepts=[0.1, 0.2], targets=2, **attrs)
        yield learned("LinearClassifier", x, coefficients=few, outputs=2, **more, **attrs)
    yield learned("LinearClassifier", floats(3, 2), coefficients=[0.4, -0.7], intercepts=[0.1], outputs=2,
                  classlabels_ints=[0, 1], post_transform="LOGISTIC")  # fmt: skip


def _vectors() -> Iterator[Case]:
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        shared: dict[str, Any] = {"kernel_type": kernel, "kernel_params": [0.4, 0.5, 3.0]}
        vectors = floats(12, seed=2).tolist()
        yield learned("SVMRegressor", floats(3, 3), coefficients=floats(4).tolist(), support_vectors=vectors,
                      rho=[0.25], n_supports=4, **shared)  # fmt: skip
        chances: dict[str, Any] = {"prob_a": [-1.0, -1.1, -1.2], "prob_b": [0.1, 0.2, 0.3]}
        for more in ({}, chances):
            yield learned("SVMClassifier", floats(2, 3), coefficients=floats(8).tolist(), support_vectors=vectors,
                          rho=[0.1, 0.2, 0.3], vectors_per_class=[1, 2, 1], classlabels_ints=[5, 7, 9], outputs=2,
                          **more, **shared)  # fmt: skip
    yield learned("SVMRegressor", floats(3, 3), coefficients=floats(3).tolist(), rho=[0.25])


def _trees() -> Iterator[Case]:
    """Two trees of one question each."""
    nodes: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2, 0, 1, 2],
        "nodes_featureids": [0, 0, 0, 1, 0, 0], "nodes_values": [0.1, 0.0, 0.0, -0.2, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * 2,
        "nodes_truenodeids": [1, 0, 0] * 2, "nodes_falsenodeids": [2, 0, 0] * 2,
    }  # fmt: skip
    leaves: dict[str, Any] = {"treeids": [0, 0, 1, 1], "nodeids": [1, 2, 1, 2], "weights": [0.5, 1.5, -0.7, 2.5]}
    for transform in ("NONE", "LOGISTIC"):
        targets = {f"target_{name}": value for name, value in leaves.items()}
        yield learned("TreeEnsembleRegressor", floats(4, 2), n_targets=1, target_ids=[0] * 4, base_values=[0.3],
                      post_transform=transform, **targets, **nodes)  # fmt: skip
        classes = {f"class_{name}": value for name, value in leaves.items()}
        yield learned("TreeEnsembleClassifier", floats(4, 2), class_ids=[0, 1, 2, 1], classlabels_int64s=[4, 5, 6],
                      base_values=[0.3, 0.2, 0.1], post_transform=transform, outputs=2, **classes, **nodes)  # fmt: skip
