"""Readable PyTorch source from an ONNX file.

    import onnxgen

    onnxgen.generate("mnist.onnx", "model.py")      # model.py and model.safetensors
    model = onnxgen.load("mnist.onnx")              # an nn.Module in memory, with the trained weights
    report = onnxgen.verify("mnist.onnx", "model.py")
    assert report.agrees
    onnxgen.export("model.py", weights="best.safetensors", out="tuned.onnx")   # what training made of it, as ONNX

Importing this package imports nothing else: each name is looked up when it is first used (PEP 562), and only `load`,
`verify` and `export` import torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from onnxgen._version import __version__

if TYPE_CHECKING:
    from onnxgen.build_hooks import ModelGen
    from onnxgen.common.limits import Limits
    from onnxgen.errors import EditedError, OnnxgenError, Problem
    from onnxgen.export import ExportReport, export
    from onnxgen.graph.operators import op
    from onnxgen.lowering.arg import Arg
    from onnxgen.lowering.builder import Builder
    from onnxgen.options import Options
    from onnxgen.output.compose import Generated, Report
    from onnxgen.pipeline import generate
    from onnxgen.runtime.load import load
    from onnxgen.runtime.reload import reload
    from onnxgen.verify import VerifyReport, verify

# In a checkout, `templates/` and `build_hooks/` lie beside the package and not in it.
if not os.path.isdir(os.path.join(__path__[0], "build_hooks")):
    __path__.append(os.path.dirname(__path__[0]))

__all__ = [
    "Arg",
    "Builder",
    "EditedError",
    "ExportReport",
    "Generated",
    "Limits",
    "ModelGen",
    "OnnxgenError",
    "Options",
    "Problem",
    "Report",
    "VerifyReport",
    "__version__",
    "export",
    "generate",
    "load",
    "op",
    "reload",
    "verify",
]

# `verify` and `export` are submodules too, and importing a submodule binds its name in the package: whichever comes
# first, `onnxgen.verify` is the module, and that module can be called (see `_callable.py`).
_HOME = {
    "EditedError": "errors",
    "OnnxgenError": "errors",
    "Problem": "errors",
    "Limits": "common.limits",
    "Options": "options",
    "Generated": "output.compose",
    "Report": "output.compose",
    "generate": "pipeline",
    "VerifyReport": "verify",
    "ExportReport": "export",
    "ModelGen": "build_hooks.model_gen",
    "load": "runtime.load",
    "reload": "runtime.reload",
    "op": "graph.operators",
    "Arg": "lowering.arg",
    "Builder": "lowering.builder",
}


def __getattr__(name: str) -> object:
    if name in ("export", "verify"):
        return importlib.import_module(f"onnxgen.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'onnxgen' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"onnxgen.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
