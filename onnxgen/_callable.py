"""Makes modules callable, for a function that has its module's name.

`onnxgen.verify` is a function, and also the module that defines it. Importing a submodule rebinds the package's
attribute to the module, so the meaning of `onnxgen.verify` would depend on the order of imports. With a callable module
both meanings work. (For assigning `__class__` see "Customizing module attribute access" in the Python reference.)
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def callable_module(name: str, function: Callable[..., Any]) -> None:
    """Let the imported module `name` be called as `function`."""
    space = {"__call__": staticmethod(function), "__signature__": inspect.signature(function), "__slots__": ()}
    sys.modules[name].__class__ = type("CallableModule", (ModuleType,), space)
