"""The logits of probabilities that a network ends in.

A probability that is 1 has no gradient, and one that is rounded to 0 has no logarithm. While `Noting` lasts, the result
of each sigmoid and softmax remembers what it was computed of, so that a loss of probabilities can be one of logits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_SIGMOID = dict.fromkeys((torch.sigmoid, Tensor.sigmoid, torch.special.expit, nn.functional.sigmoid), "sigmoid")
_SOFTMAX = dict.fromkeys((torch.softmax, Tensor.softmax, torch.special.softmax, nn.functional.softmax), "softmax")
_MADE = _SIGMOID | _SOFTMAX
_NOTED = "_onnxgen_logits"  # an attribute of the result, and of its node of autograd: (what made it, its input)
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
        if func in _MADE:
            note = _MADE[func], args[0] if args else (kwargs or {})["input"]
            setattr(result, _NOTED, note)
            if result.grad_fn is not None:
                result.grad_fn.metadata[_NOTED] = note
        elif _writes(func) and args and hasattr(args[0], _NOTED):  # in place
            delattr(args[0], _NOTED)
        return result


def _writes(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")


def _noted(output: Tensor, kind: str) -> Tensor | None:
    """Return what an output was computed of by a sigmoid or softmax."""
    made_by, logits = getattr(output, _NOTED, ("", None))
    if logits is None or made_by != kind:
        return None
    in_graph = logits.requires_grad or not output.requires_grad  # else it is of a block that is computed again
    return logits if in_graph else None


def log_probabilities(output: Tensor, axis: int) -> Tensor:
    """Return the logarithms of the probabilities that a softmax along an axis made, in float32.

    Of its logits if they were noted: a probability that is rounded to 0 has a logarithm there, and a gradient.
    """
    logits = _noted(output, "softmax")
    if logits is None:
        output = output.float()
        logits = output.clamp_min(torch.finfo(output.dtype).tiny).log()
    probabilities: Tensor = logits.float().log_softmax(axis)
    return probabilities


def logits_of(probabilities: Tensor) -> Tensor | None:
    """Return the logits of an output that is a sigmoid, or several that were stacked; None if they are not known."""
    if (noted := _noted(probabilities, "sigmoid")) is not None:
        return noted
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
    _, noted = step.metadata.get(_NOTED, ("", None))
    return noted.reshape(shape) if noted is not None and noted.numel() == torch.Size(shape).numel() else None
