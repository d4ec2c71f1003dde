"""Skips the initialisation of embeddings that are built on the meta device and then get weights."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode


class SkipInit(TorchFunctionMode):
    """Leaves tensors on the meta device as they are: for them, `normal_` imports torch's compiler, which takes 1 s."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, but for `normal_` on the meta device."""
        if func is nn.init.normal_ and kwargs["tensor"].is_meta:
            return kwargs["tensor"]
        return func(*args, **(kwargs or {}))
