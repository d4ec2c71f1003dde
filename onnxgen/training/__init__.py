"""Train a generated model on CPU, CUDA, MPS, XPU and other PyTorch devices.

    from model import Model
    from onnxgen.training import fit, evaluate, freeze, replace_head

    model = replace_head(Model.from_pretrained(), 2)
    freeze(model, "layer1.*")
    result = fit(model, "photos/", epochs=5, head_lr=10)

The engine is Lightning's `Trainer`; all other functions here also work in a training loop of your own. Importing this
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
    from onnxgen.training.generation import causal_lm as causal_lm
    from onnxgen.training.model import open_model as open_model
    from onnxgen.training.runs.learner import Learner as Learner
    from onnxgen.training.runs.learner import load as load
    from onnxgen.training.settings import Settings as Settings

_EXPORTS = {
    "surgery.head": "find_head",
    "surgery.ports": "signature_of",
    "surgery.replacing": "replace_head",
    "training.devices": "choose devices",
    "training.evaluate": "evaluate predict",
    "training.finetune.adapters": "add_adapter attach merge",
    "training.finetune.batchnorm": "calibrate_batchnorm",
    "training.finetune.freezing": "freeze param_groups reset unfreeze unfreeze_next",
    "training.finetune.gradual": "GradualUnfreeze",
    "training.fit": "Result fit",
    "training.generation": "causal_lm",
    "training.model": "open_model",
    "training.runs.answers": "Prediction",
    "training.runs.learner": "Learner load",
    "training.settings": "Settings",
}
_MODULES = {name: module for module, names in _EXPORTS.items() for name in names.split()}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'onnxgen.training' has no attribute {name!r}")
    module = importlib.import_module(f"onnxgen.{_MODULES[name]}")
    return module if _MODULES[name] == f"training.{name}" else getattr(module, name)  # the module is callable


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
