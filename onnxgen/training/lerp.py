"""Runs optimizers of torch on devices without `lerp`, such as DirectML."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class WithoutLerp(TorchFunctionMode):
    """In this context, `lerp` is computed by additions and multiplications.

    The formula is that of torch's kernel (aten/src/ATen/native/Lerp.h), which starts from the nearer end.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.lerp, Tensor.lerp):
            return _lerp(*args, **(kwargs or {}))
        if func is Tensor.lerp_:
            return args[0].copy_(_lerp(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))


def _lerp(input: Tensor, end: Tensor, weight: float | Tensor) -> Tensor:
    near, far = input + (end - input) * weight, end - (end - input) * (1 - weight)
    if isinstance(weight, Tensor):
        return torch.where(weight.abs() < 0.5, near, far)
    return near if abs(weight) < 0.5 else far


def without_lerp(optimizer: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return a subclass of the optimizer whose step runs in `WithoutLerp`. Its state and results are the same.

    A closure runs before the step, as in the original, and outside the mode.
    """
    # torch wraps `step` for its hooks when the first instance is made. It wraps ours too, so unwrap the original.
    plain = inspect.unwrap(optimizer.step)

    def step(self: torch.optim.Optimizer, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad(), WithoutLerp():
            plain(self)
        return loss

    return type(optimizer.__name__, (optimizer,), {"step": step, "__doc__": optimizer.__doc__})
