"""skl2onnx: scikit-learn's estimators, alone and in pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

REQUIREMENTS = ["scikit-learn", "skl2onnx", "onnx"]

# by the module of scikit-learn, what is learned from flowers with three classes
CLASSIFIERS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "linear_model": {"LogisticRegression": [{}], "SGDClassifier": [{"loss": "log_loss"}], "RidgeClassifier": [{}]},
    "svm": {"SVC": [{}, {"kernel": "poly"}, {"kernel": "sigmoid"}], "LinearSVC": [{}], "NuSVC": [{"nu": 0.2}]},
    "tree": {"DecisionTreeClassifier": [{}]},
    "ensemble": {
        "RandomForestClassifier": [{"n_estimators": 10}], "ExtraTreesClassifier": [{"n_estimators": 10}],
        "GradientBoostingClassifier": [{"n_estimators": 5}], "HistGradientBoostingClassifier": [{"max_iter": 5}],
        "AdaBoostClassifier": [{"n_estimators": 5}], "BaggingClassifier": [{"n_estimators": 3}],
    },
    "neighbors": {"KNeighborsClassifier": [{}, {"weights": "distance"}]},
    "naive_bayes": {"GaussianNB": [{}], "MultinomialNB": [{}], "BernoulliNB": [{}]},
    "neural_network": {"MLPClassifier": [{"max_iter": 20}, {"max_iter": 20, "activation": "tanh"}]},
    "discriminant_analysis": {"LinearDiscriminantAnalysis": [{}], "QuadraticDiscriminantAnalysis": [{}]},
}  # fmt: skip
REGRESSORS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "linear_model": {
        "LinearRegression": [{}], "Ridge": [{}], "Lasso": [{}], "PoissonRegressor": [{}], "BayesianRidge": [{}],
    },
    "svm": {"SVR": [{}], "LinearSVR": [{}]},
    "tree": {"DecisionTreeRegressor": [{}]},
    "ensemble": {
        "RandomForestRegressor": [{"n_estimators": 10}], "GradientBoostingRegressor": [{"n_estimators": 5}],
        "HistGradientBoostingRegressor": [{"max_iter": 5}],
    },
    "neighbors": {"KNeighborsRegressor": [{}]},
    "neural_network": {"MLPRegressor": [{"max_iter": 20}]},
    "gaussian_process": {"GaussianProcessRegressor": [{}]},
}  # fmt: skip
TRANSFORMERS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "preprocessing": {
        "StandardScaler": [{}], "MinMaxScaler": [{}], "RobustScaler": [{}], "Normalizer": [{}], "MaxAbsScaler": [{}],
        "PolynomialFeatures": [{}], "KBinsDiscretizer": [{"n_bins": 4, "encode": "ordinal"}], "PowerTransformer": [{}],
    },
    "decomposition": {"PCA": [{"n_components": 2}], "TruncatedSVD": [{}], "KernelPCA": [{"n_components": 2}]},
    "cluster": {"KMeans": [{"n_clusters": 3}]},
    "mixture": {"GaussianMixture": [{"n_components": 2}]},
    "impute": {"SimpleImputer": [{}]},
    "ensemble": {"IsolationForest": [{"n_estimators": 10}]},
}  # fmt: skip


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Classifiers without the ZipMap and some with it; regressors; transformers; two pipelines."""
    for kind, table in (("class", CLASSIFIERS), ("number", REGRESSORS), ("", TRANSFORMERS)):
        for module, estimators in table.items():
            for name, several in estimators.items():
                for i, options in enumerate(several):
                    yield f"{name}_{i}" if i else name, partial(_one, module, name, options, kind)
    yield "zipmap", partial(_one, "linear_model", "LogisticRegression", {}, "class", zipmap=True)
    yield "pipeline", _pipeline
    yield "columns", _columns


def _data() -> tuple[Any, Any]:
    from sklearn.datasets import load_iris

    x, y = load_iris(return_X_y=True)
    return x.astype("float32"), y


def _one(module: str, name: str, options: dict[str, Any], kind: str, path: Path, zipmap: bool = False) -> None:
    import importlib

    estimator = getattr(importlib.import_module(f"sklearn.{module}"), name)(**options)
    x, y = _data()
    estimator.fit(x, x[:, 0] * 2 + y if kind == "number" else y)
    _write(estimator, path, None if kind != "class" or zipmap or name == "LinearSVC" else {id(estimator): NO_ZIPMAP})


NO_ZIPMAP = {"zipmap": False}


def _write(estimator: Any, path: Path, options: Any = None, types: Any = None) -> None:
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType

    types = types or [("X", FloatTensorType([None, 4]))]
    path.write_bytes(to_onnx(estimator, initial_types=types, options=options).SerializeToString())


def _pipeline(path: Path) -> None:
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    x, y = _data()
    last = LogisticRegression()
    whole = make_pipeline(StandardScaler(), make_union(PCA(2), MinMaxScaler()), last).fit(x, y)
    _write(whole, path, {id(last): NO_ZIPMAP})


def _columns(path: Path) -> None:
    """Numbers and words in one table."""
    import numpy as np
    import pandas
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    x, y = _data()
    words = np.array(["red", "green", "blue"])[np.arange(len(x)) % 3]
    table = pandas.DataFrame({"length": x[:, 0], "width": x[:, 1], "colour": words})
    encode = make_column_transformer((StandardScaler(), ["length", "width"]), (OneHotEncoder(), ["colour"]))
    last = LogisticRegression()
    types = [(name, FloatTensorType([None, 1])) for name in ("length", "width")]
    _write(
        make_pipeline(encode, last).fit(table, y), path, {id(last): NO_ZIPMAP},
        [*types, ("colour", StringTensorType([None, 1]))],
    )  # fmt: skip
