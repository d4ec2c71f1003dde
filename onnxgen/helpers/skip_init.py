"""Skips the initialisation of networks that are built on the meta device and then get weights."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode


class SkipInit(TorchFunctionMode):  # on the meta device `normal_` imports the compiler
    def __torch_function__(self, func: Any, _: Any, a: Any = (), k: Any = None) -> Any:
        func = nn.init.trunc_normal_ if func is nn.init.normal_ else func
        return func(*a, **(k or {}))
