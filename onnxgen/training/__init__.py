"""Train a generated model on whatever hardware there is.

    from model import Model
    from onnxgen.training import fit, evaluate, freeze, replace_head

    model = replace_head(Model.from_pretrained(), 2)
    freeze(model, "layer1.*")
    result = fit(model, "photos/", epochs=5, head_lr=10)

The engine is Lightning's `Trainer`; every verb here also works without it, with a loop of your own. Importing this
package imports neither torch nor lightning: each name is looked up when it is first used (PEP 562).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxgen.surgery.ports import signature_of
    from onnxgen.training.evaluate import evaluate, predict
    from onnxgen.training.fit import Result, fit
    from onnxgen.training.model import open_model
    from onnxgen.training.settings import Settings

_HOME = {
    "devices": "devices",
    "choose": "devices",
    "fit": "fit",
    "Result": "fit",
    "evaluate": "evaluate",
    "predict": "evaluate",
    "calibrate_batchnorm": "finetune",
    "find_head": "finetune",
    "freeze": "finetune",
    "GradualUnfreeze": "finetune",
    "param_groups": "finetune",
    "replace_head": "finetune",
    "reset": "finetune",
    "unfreeze": "finetune",
    "unfreeze_next": "finetune",
    "open_model": "model",
    "signature_of": "model",
    "Settings": "settings",
}
__all__ = [
    "GradualUnfreeze",
    "Result",
    "Settings",
    "calibrate_batchnorm",
    "choose",
    "devices",
    "evaluate",
    "find_head",
    "fit",
    "freeze",
    "open_model",
    "param_groups",
    "predict",
    "replace_head",
    "reset",
    "signature_of",
    "unfreeze",
    "unfreeze_next",
]

_MODULES = ("devices", "evaluate", "fit")  # submodules that are called like the function they are for


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'onnxgen.training' has no attribute {name!r}")
    module = importlib.import_module(f"onnxgen.training.{_HOME[name]}")
    return module if name in _MODULES else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
