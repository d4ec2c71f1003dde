"""Raises for what DirectML lacks: float64, and the kernels of lerp, foreach, fused and recurrent operators."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_NAMES = ("lerp", "_foreach_", "_fused_", "_amp_", "_thnn_fused")
_PARTS = ("lstm", "gru", "rnn")
_DTYPES = (torch.float64, torch.complex128)


class LackedByDirectML(RuntimeError):
    """An operator or a dtype that DirectML lacks."""


def check_call(name: str) -> None:
    if name.startswith(_NAMES) or any(part in name for part in _PARTS):
        raise LackedByDirectML(f"DirectML has no {name}")


def check_tensor(tensor: torch.Tensor) -> None:
    if tensor.dtype in _DTYPES:
        raise LackedByDirectML(f"DirectML has no {tensor.dtype}")


class Lacking(TorchDispatchMode):
    """Raises if DirectML lacks an operator, or the dtype of one of its tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        check_call(name)
        result = func(*args, **(kwargs or {}))
        seen = result if name == "_to_copy" else (args, kwargs or {}, result)  # float64 may be cast before it is moved
        for tensor in tree_leaves(seen):
            if isinstance(tensor, torch.Tensor):
                check_tensor(tensor)
        return result
