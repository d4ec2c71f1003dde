"""Build hooks: keep the generated module up to date with its `.onnx` file (see docs/BUILDING.md).

Importing this package imports nothing else: `ModelGen` is looked up when it is first used (PEP 562).
"""

from __future__ import annotations

import importlib

__all__ = ["ModelGen"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'onnxgen.build_hooks' has no attribute {name!r}")
    value = getattr(importlib.import_module("onnxgen.build_hooks.model_gen"), name)
    globals()[name] = value
    return value
