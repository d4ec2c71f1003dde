"""Modules that can be called, for a function that shares its module's name.

`onnxgen.verify` is documented as a function and is also the module that the function lives in. Importing a submodule
rebinds the package's attribute to the module, so which of the two `onnxgen.verify` names would depend on who imported
what first. A module that can be called makes both readings right. (Assigning a module's `__class__` is what the Python
reference, "Customizing module attribute access", provides for this.)
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def callable_module(name: str, function: Callable[..., Any]) -> None:
    """Let the imported module `name` be called as `function`."""
    space = {
        "__call__": staticmethod(function),
        "__signature__": inspect.signature(function),
        "__slots__": (),
    }
    sys.modules[name].__class__ = type("CallableModule", (ModuleType,), space)
