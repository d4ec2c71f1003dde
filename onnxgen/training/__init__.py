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
    from onnxgen.surgery.ports import signature_of as signature_of
    from onnxgen.training.evaluate import evaluate as evaluate
    from onnxgen.training.evaluate import predict as predict
    from onnxgen.training.fit import Result as Result
    from onnxgen.training.fit import fit as fit
    from onnxgen.training.model import open_model as open_model
    from onnxgen.training.settings import Settings as Settings

_NAMES = {
    "devices": "choose devices",
    "fit": "Result fit",
    "evaluate": "evaluate predict",
    "finetune": "GradualUnfreeze calibrate_batchnorm find_head freeze param_groups replace_head reset unfreeze"
    " unfreeze_next",
    "model": "open_model signature_of",
    "settings": "Settings",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'onnxgen.training' has no attribute {name!r}")
    module = importlib.import_module(f"onnxgen.training.{_HOME[name]}")
    return module if name == _HOME[name] else getattr(module, name)  # a module that can be called


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
