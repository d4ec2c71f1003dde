"""The logits of probabilities that a network ends in.

A probability that is 1 has no gradient, and its logarithm is not known well near 1. While `noting` lasts, each sigmoid
notes what it was computed of, so that a loss of probabilities can be one of logits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_SIGMOIDS = {torch.sigmoid, Tensor.sigmoid, torch.special.expit, nn.functional.sigmoid}
_NOTED = "logits"  # in the metadata of a node of autograd
# Nodes of autograd after which all elements are in the same order. A mean of one element is that element.
_IN_ORDER = re.compile(r"(View|UnsafeView|Reshape|Squeeze|Unsqueeze|Alias|Clone|ToCopy|Mean|Sum)Backward\d*")


class Noting(TorchFunctionMode):
    """See the module's docstring."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _SIGMOIDS and args and result.grad_fn is not None:
            result.grad_fn.metadata[_NOTED] = args[0]
        return result


def logits_of(probabilities: Tensor) -> Tensor | None:
    """Return the logits of an output that is a sigmoid, or several that were stacked; None if they are not known."""
    step, shape = probabilities.grad_fn, tuple(probabilities.shape)
    if step is None or step.name() != "StackBackward0":
        return _logits(step, shape)
    axis = step._saved_dim  # type: ignore[attr-defined]
    axis = axis - (1 << 64) + len(shape) if axis >= 1 << 63 else axis  # torch saves it as an unsigned number
    parts = [_logits(inner, (*shape[:axis], *shape[axis + 1 :])) for inner, _ in step.next_functions]
    known = [part for part in parts if part is not None]
    return torch.stack(known, axis) if len(known) == len(parts) == shape[axis] else None


def _logits(step: Any, shape: tuple[int, ...]) -> Tensor | None:
    """Return the logits of what a node of autograd made, in its shape."""
    while step is not None and _IN_ORDER.fullmatch(step.name()):
        step = step.next_functions[0][0]
    if step is None or step.name() != "SigmoidBackward0":
        return None
    noted: Tensor | None = step.metadata.get(_NOTED)
    return noted.reshape(shape) if noted is not None and noted.numel() == torch.Size(shape).numel() else None
