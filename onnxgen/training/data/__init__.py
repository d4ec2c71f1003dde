"""Reads data, makes it fit a model, and feeds it.

Each name is looked up when it is first used (PEP 562): modules in here import modules that import this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxgen.training.data.checking import check as check
    from onnxgen.training.data.feeding import feed as feed
    from onnxgen.training.data.opening import open_data as open_data
    from onnxgen.training.data.samples import Data as Data
    from onnxgen.training.data.samples import Feeding as Feeding
    from onnxgen.training.data.samples import Field as Field
    from onnxgen.training.data.samples import Samples as Samples

_MODULES = {"check": "checking", "feed": "feeding", "open_data": "opening"}
_MODULES |= dict.fromkeys(("Data", "Feeding", "Field", "Samples"), "samples")
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
