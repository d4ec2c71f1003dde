"""Readable PyTorch source from an ONNX file.

    import onnxgen

    onnxgen.generate("mnist.onnx", "model.py")      # model.py and model.safetensors
    model = onnxgen.load("mnist.onnx")              # an nn.Module in memory, with the trained weights
    report = onnxgen.verify("mnist.onnx", "model.py")
    assert report.agrees
    onnxgen.export("model.py", weights="best.safetensors", out="tuned.onnx")   # what training made of it, as ONNX

Importing this package imports nothing else: each name is looked up when it is first used (PEP 562), and only `load`,
`verify`, `prove`, `transplant`, `diff` and `export` import torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from onnxgen._version import __version__ as __version__

if TYPE_CHECKING:
    from onnxgen.build_hooks import ModelGen as ModelGen
    from onnxgen.canonical.prove import Proof as Proof
    from onnxgen.canonical.prove import prove as prove
    from onnxgen.canonical.transplant import NotTheSame as NotTheSame
    from onnxgen.canonical.transplant import transplant as transplant
    from onnxgen.common.limits import Limits as Limits
    from onnxgen.diff import Comparison as Comparison
    from onnxgen.diff import diff as diff
    from onnxgen.errors import EditedError as EditedError
    from onnxgen.errors import OnnxgenError as OnnxgenError
    from onnxgen.errors import Problem as Problem
    from onnxgen.export import ExportReport as ExportReport
    from onnxgen.export import export as export
    from onnxgen.graph.operators import op as op
    from onnxgen.identify import identify as identify
    from onnxgen.identify.answering import Answer as Answer
    from onnxgen.lowering.builder import Arg as Arg
    from onnxgen.lowering.builder import Builder as Builder
    from onnxgen.options import Options as Options
    from onnxgen.output.compose import Generated as Generated
    from onnxgen.output.compose import Report as Report
    from onnxgen.pipeline import generate as generate
    from onnxgen.runtime.load import load as load
    from onnxgen.runtime.reload import reload as reload
    from onnxgen.ship import ship as ship
    from onnxgen.ship.comparison import Shipped as Shipped
    from onnxgen.verify import VerifyReport as VerifyReport
    from onnxgen.verify import verify as verify

# In a checkout, `templates/` and `build_hooks/` lie beside the package and not in it.
if not os.path.isdir(os.path.join(__path__[0], "build_hooks")):
    __path__.append(os.path.dirname(__path__[0]))

# `verify`, `diff` and `export` are submodules too, and importing a submodule binds its name in the package: whichever
# comes first, `onnxgen.verify` is the module, and that module can be called (see `_callable.py`).
_NAMES = {
    "build_hooks.model_gen": "ModelGen",
    "canonical.prove": "Proof prove",
    "canonical.transplant": "NotTheSame transplant",
    "common.limits": "Limits",
    "diff": "Comparison diff",
    "errors": "EditedError OnnxgenError Problem",
    "export": "ExportReport export",
    "graph.operators": "op",
    "identify": "identify",
    "identify.answering": "Answer",
    "lowering.builder": "Arg Builder",
    "options": "Options",
    "output.compose": "Generated Report",
    "pipeline": "generate",
    "runtime.load": "load",
    "runtime.reload": "reload",
    "ship": "ship",
    "ship.comparison": "Shipped",
    "verify": "VerifyReport verify",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'onnxgen' has no attribute {name!r}")
    module = importlib.import_module(f"onnxgen.{_HOME[name]}")
    if name == _HOME[name]:
        return module
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
