"""onnxmltools: XGBoost and LightGBM; and CatBoost's own export."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

REQUIREMENTS = ["scikit-learn", "onnxmltools", "skl2onnx", "lightgbm", "xgboost", "catboost", "onnx"]
SMALL: dict[str, Any] = {"n_estimators": 5, "max_depth": 3}


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Classifiers of two and three classes, and regressors with several objectives."""
    for classes in (2, 3):
        yield f"xgb_classes{classes}", partial(_xgboost, "XGBClassifier", classes)
        yield f"lgbm_classes{classes}", partial(_lightgbm, "LGBMClassifier", classes)
        yield f"catboost_classes{classes}", partial(_catboost, "CatBoostClassifier", classes)
    for objective in ("reg:squarederror", "reg:logistic", "count:poisson"):
        yield f"xgb_{objective.replace(':', '_')}", partial(_xgboost, "XGBRegressor", 0, objective=objective)
    for objective in ("regression", "poisson", "binary"):
        yield f"lgbm_{objective}", partial(_lightgbm, "LGBMRegressor", 0, objective=objective)
    yield "xgb_dart", partial(_xgboost, "XGBRegressor", 0, booster="dart")
    yield "xgb_forest", partial(_xgboost, "XGBRFRegressor", 0)
    yield "lgbm_dart", partial(_lightgbm, "LGBMRegressor", 0, boosting_type="dart")
    yield "catboost_regressor", partial(_catboost, "CatBoostRegressor", 0)


def _data(classes: int, between_0_and_1: bool = False) -> tuple[Any, Any]:
    from sklearn.datasets import load_iris

    x, y = load_iris(return_X_y=True)
    x = x.astype("float32")
    if classes:
        return x[y < classes], y[y < classes]
    return x, (y / 2 if between_0_and_1 else x[:, 0] + y)


def _types() -> Any:
    from onnxmltools.convert.common.data_types import FloatTensorType

    return [("X", FloatTensorType([None, 4]))]


def _xgboost(name: str, classes: int, path: Path, **options: Any) -> None:
    import xgboost
    from onnxmltools import convert_xgboost

    made = getattr(xgboost, name)(**SMALL, **options)
    made.fit(*_data(classes, options.get("objective") == "reg:logistic"))
    path.write_bytes(convert_xgboost(made, initial_types=_types()).SerializeToString())


def _lightgbm(name: str, classes: int, path: Path, **options: Any) -> None:
    import lightgbm
    from onnxmltools import convert_lightgbm

    made = getattr(lightgbm, name)(**SMALL, verbose=-1, **options)
    x, y = _data(classes, True)
    made.fit(x, y > 0.5 if options.get("objective") == "binary" else y)
    path.write_bytes(convert_lightgbm(made, initial_types=_types(), zipmap=False).SerializeToString())


def _catboost(name: str, classes: int, path: Path) -> None:
    import catboost

    made = getattr(catboost, name)(iterations=5, depth=3, verbose=False, allow_writing_files=False)
    made.fit(*_data(classes))
    made.save_model(str(path), format="onnx")
