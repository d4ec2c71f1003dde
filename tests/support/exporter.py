"""The newer of torch's exporters keeps what it makes anew for every file: that is two thirds of a small export."""

from __future__ import annotations

import copy
import functools
import importlib
import sys
from typing import Any

TABLES = "torch.onnx._internal.exporter._registration"


def keep_tables(anyway: bool = False) -> None:
    """Let this process keep torch's table of operators for each opset, if it has the exporter or is to have it.

    An export gets a copy, to which it may add operators.
    """
    if anyway or TABLES in sys.modules:
        _kept()


@functools.cache
def _kept() -> None:
    tables: Any = importlib.import_module(TABLES).ONNXRegistry
    made = functools.cache(tables.from_torchlib)

    def from_torchlib(*opset: int, **named: int) -> Any:
        table = copy.copy(made(*opset, **named))
        table.functions = {name: [*known] for name, known in table.functions.items()}
        return table

    tables.from_torchlib = staticmethod(from_torchlib)
    utils: Any = importlib.import_module("torch._export.utils")
    looked_up: list[Any] = [None, utils._materialize_cpp_cia_ops]

    def look_up() -> None:
        """Look up the operators that C++ has registered: only if it has others than the last time."""
        found = importlib.import_module("torch")._C._dispatch_get_registrations_for_dispatch_key(
            "CompositeImplicitAutograd"
        )
        if found != looked_up[0]:
            looked_up[1]()
            looked_up[0] = found

    utils._materialize_cpp_cia_ops = look_up
